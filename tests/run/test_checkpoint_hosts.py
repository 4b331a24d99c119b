"""What Orbax is told of several processes, and what its barriers say when somebody is late."""

import jax
import pytest

from vit_jax.errors import HostsError
from vit_jax.parallel import hosts
from vit_jax.run import checkpoint_hosts
from vit_jax.run.checkpoint_hosts import host_options, told_who_is_missing

# As jaxlib 0.10.2 words it; today by number, before by the name of a task.
LATE = (
    "DEADLINE_EXCEEDED: Barrier timed out. Id: checkpoint_Checkpointer:save_start::0. This usually"
    " happens because a task triggered the barrier too early or too slowly. Please look at the task"
    " logs (both timed out and first task) to debug further.\n# of tasks that reached the barrier:"
    " 1/{count}.\nThe first task at the barrier: 0. Some timed out task names:\n{late}\n\n\n"
    "RPC: /xla.coordination.CoordinationService/Barrier [type.googleapis.com/tensorflow.x='']"
)


def test_alone_there_is_nothing_to_say():
    assert host_options() == {}


def test_barriers_of_several_have_names_and_time_outs(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    found = host_options()
    processes, waiting = found["multiprocessing_options"], found["async_options"]
    # With processes named, Orbax meets by JAX's coordinator, not by collectives without an end.
    assert (processes.primary_host, processes.active_processes) == (0, {0, 1, 2})
    assert processes.barrier_sync_key_prefix == "checkpoint"
    assert waiting.timeout_secs == 1800
    met = []
    monkeypatch.setattr(hosts, "barrier", lambda *args: met.append(args))
    waiting.barrier_sync_fn(key="checkpoint_async_write_complete.10", timeout_ms=2500)
    checkpoint_hosts.meet("save checkpoint 10")
    assert met == [("checkpoint_async_write_complete.10", 2.5), ("save checkpoint 10", 900.0)]


@pytest.mark.parametrize(
    ("late", "who"),
    [
        ("1", "process 1"),
        ("1\n3", "processes 1, 3"),
        ("/job:jax_worker/replica:0/task:12", "process 12"),
        ("", "somebody"),
    ],
)
def test_a_late_process_is_told_in_one_line(late, who):
    with pytest.raises(HostsError) as caught, told_who_is_missing():
        raise jax.errors.JaxRuntimeError(LATE.format(count=4, late=late))
    assert str(caught.value) == (
        f"{who} did not come to 'checkpoint_Checkpointer:save_start' in time; expected every"
        " process there; look there for what it waits for, and run the same command again"
    )


def test_other_errors_stay_what_they_are():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), told_who_is_missing():
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
