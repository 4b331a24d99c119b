"""Real processes, connected by JAX's client on loopback; none of them computes anything."""

import os
import signal
import time

import pytest
from many_processes import free_port
from processes import start_command

PROGRAM = """
import json, os, signal, sys, threading, time
from vit_jax.errors import DataError
from vit_jax.parallel import processes
from vit_jax.parallel.launch import Launch
from vit_jax.train.signals import StopSignals

port, process, count, case = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4]
launch = Launch("flags", f"127.0.0.1:{port}", count, process)
times = {"start_timeout_s": 60, "peer_timeout_s": 3}
with StopSignals() as stop, processes.connected(
    launch, config={"seed": process * (case == "config")}, code={}, **times
):
    last = process == count - 1
    if case == "gather":
        for name in ("first", "second", "first"):  # Names may be used again.
            print(json.dumps(processes.gather(name, [process, name])))
        print(json.dumps(processes.on_first_host("third", lambda: process + 7)))
    elif case == "late" and not last:
        processes.barrier("save", 2)
    elif case == "error" and last:
        raise DataError("no such dataset", "another", "look for it")
    elif case == "bug" and last:
        raise KeyError("seed")
    elif case.startswith("SIG"):
        agreement = processes.StopAgreement(lambda: stop.requested)
        for step in range(1, 2000):
            time.sleep(0.01 * (1 + process))
            if step == 10 and last:
                os.kill(os.getpid(), getattr(signal, case))
            if agreement.reached():
                print(json.dumps(step))
                break
    if case not in ("gather", "SIGTERM", "SIGINT"):
        print("waiting", flush=True)
        threading.Event().wait()
"""


@pytest.fixture
def run(tmp_path):
    """Starts the program and returns its processes."""
    started = []
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(case, count=2):
        port = free_port()
        for process in range(count):
            arguments = [tmp_path / "program.py", port, process, count, case]
            started.append(start_command(*arguments, env={"TF_CPP_MIN_LOG_LEVEL": "3"}))
        return started

    yield start
    for process in started:
        process.kill()


def ended(processes):
    """Returns the exit codes, and the lines that each process has printed on stderr."""
    codes = [process.wait(120) for process in processes]
    return codes, [process.printed()[1].splitlines() for process in processes]


def test_every_process_gets_the_values_of_all_in_order(run):
    processes = run("gather", count=3)
    assert ended(processes) == ([0, 0, 0], [[], [], []])
    expected = [f'[[0, "{n}"], [1, "{n}"], [2, "{n}"]]' for n in ("first", "second", "first")]
    for process in processes:
        assert process.printed()[0].splitlines()[-4:] == [*expected, "7"]
    assert "3 processes, 3 devices (started by flags)" in processes[0].printed()[0]


@pytest.mark.parametrize(
    ("case", "code", "line"),
    [
        ("config", 2, "error: process 1 has another config (seed: 1 there, 0 on process 0)"),
        ("late", 76, "error: process 1 ({host}) did not reach 'save' within 2 s; expected all"),
        ("error", 2, "error: process 1 ({host}) stopped: no such dataset; expected another;"),
        ("bug", 1, "error: process 1 ({host}) stopped: KeyError: 'seed'"),
    ],
)
def test_an_error_ends_all_processes_with_one_line(run, case, code, line):
    """Those that hang in a wait, too."""
    codes, lines = ended(run(case))
    assert codes == [code, code]
    assert len(lines[0]) == 1
    assert lines[0][0].startswith(line.format(host=os.uname().nodename))
    # The line of the process with the error does not name it.
    assert lines[1][-1] == lines[0][0].replace(f"process 1 ({os.uname().nodename}) stopped: ", "")


@pytest.mark.parametrize("number", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.slow)])
def test_a_signal_to_one_process_stops_all_at_the_same_step(run, number):
    processes = run(number)
    codes, _ = ended(processes)
    assert codes == [0, 0]
    steps = {int(process.printed()[0].splitlines()[-1]) for process in processes}
    assert len(steps) == 1
    assert min(steps) > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "line", "seconds"),
    [
        (1, "error: no heartbeat from process 1 ({host}) for 3 s; expected all processes", 30),
        # JAX aborts the others, and the abort is delayed.
        (0, "error: process 0 ({host}) was killed or crashed; expected all", 10),
    ],
)
def test_a_killed_process_is_named(run, victim, line, seconds):
    processes = run("wait")
    while not all("waiting" in process.printed()[0] for process in processes):
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)
    processes[victim].kill()
    killed = time.monotonic()
    codes, lines = ended(processes)
    assert time.monotonic() - killed < seconds
    assert codes[victim] == -signal.SIGKILL
    assert codes[1 - victim] == 76
    (message,) = [row for row in lines[1 - victim] if row.startswith("error: ")]
    assert message.startswith(line.format(host=os.uname().nodename))
