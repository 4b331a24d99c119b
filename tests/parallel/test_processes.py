"""What processes compare before they start, and what a late one is called."""

import socket

import jax
import pytest

from vit_jax.errors import ConfigError, HostsError
from vit_jax.parallel import processes
from vit_jax.parallel.processes import StopAgreement, name_late_processes
from vit_jax.run.checkpoints import multi_process_options

# The text of jaxlib 0.10.2, which has the number of a process; earlier ones had a name.
LATE = (
    "DEADLINE_EXCEEDED: Barrier timed out. Id: checkpoint_Checkpointer:save_start::0. This usually"
    " happens because a task triggered the barrier too early or too slowly. Please look at the task"
    " logs (both timed out and first task) to debug further.\n# of tasks that reached the barrier:"
    " 1/4.\nThe first task at the barrier: 0. Some timed out task names:\n{late}\n\n\n"
    "RPC: /xla.coordination.CoordinationService/Barrier [type.googleapis.com/tensorflow.x='']"
)


def facts(**code):
    code = {"git revision": "abc", "jax": "0.10.2"} | code
    return {"host": "a", "config": {"seed": 0, "optimizer.learning_rate": 0.1}, "code": code}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (facts(jax="0.11.0"), "another code (jax: '0.11.0' there, '0.10.2' on process 0)"),
        (facts() | {"config": {"seed": 0}},
         "another config (optimizer.learning_rate: None there, 0.1 on process 0)"),
    ],
)  # fmt: skip
def test_a_process_with_another_config_or_code_is_named(other, message):
    with pytest.raises(ConfigError) as caught:
        processes._check_same_program([facts(), facts(), other])
    assert str(caught.value).startswith(f"process 2 has {message}")


@pytest.mark.parametrize(
    ("late", "who"),
    [
        ("1", "process 1"),
        ("1\n3", "processes 1, 3"),
        ("/job:jax_worker/replica:0/task:12", "process 12"),
        ("", "a process"),
    ],
)
def test_a_process_that_is_late_at_a_barrier_is_named(late, who):
    with pytest.raises(HostsError) as caught, name_late_processes():
        raise jax.errors.JaxRuntimeError(LATE.format(late=late))
    assert str(caught.value) == (
        f"{who} did not reach 'checkpoint_Checkpointer:save_start' in time; expected all processes"
        " to reach it; see its log for the cause, then run the same command again"
    )


def test_other_errors_of_jax_are_not_changed():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), name_late_processes():
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


def test_a_single_process_needs_no_coordination():
    assert processes.gather("name", 7) == [7]
    assert processes.on_first_host("name", lambda: 8) == 8
    processes.barrier("name")
    assert processes.is_first_host()
    requested = iter([False, True])
    agreement = StopAgreement(lambda: next(requested))
    assert [agreement.reached(), agreement.reached()] == [False, True]
    assert multi_process_options() == {}


def test_several_processes_that_are_not_connected_are_an_error(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    with pytest.raises(HostsError, match="3 processes without coordination"):
        processes.barrier("name")


def test_orbax_uses_barriers_with_names_and_time_limits(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    options = multi_process_options()
    multi, background = options["multiprocessing_options"], options["async_options"]
    # With a set of processes, Orbax uses JAX's coordination service instead of collectives.
    assert (multi.primary_host, multi.active_processes) == (0, {0, 1, 2})
    assert multi.barrier_sync_key_prefix == "checkpoint"
    assert background.timeout_secs == 1800


def test_a_port_in_use_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on port {port} of this host"):
            processes._check_port(f"127.0.0.1:{port}")
    processes._check_port(f"127.0.0.1:{port}")
