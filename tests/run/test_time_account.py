"""The account of a run's time, over sessions that end in every way."""

import subprocess
import sys
import time

import pytest

from vit_jax.errors import RunFolderError
from vit_jax.run.time_account import FILE, PARTS, TimeAccount, read_sessions


@pytest.fixture
def clock(monkeypatch):
    """A clock that only `sleep` advances."""
    now = [1000.0]
    for name in ("time", "perf_counter"):
        monkeypatch.setattr(f"vit_jax.run.time_account.time.{name}", lambda: now[0])

    def sleep(seconds):
        now[0] += seconds

    return sleep


def of(account):
    """The parts that took time."""
    return {part: seconds for part, seconds in account.seconds().items() if seconds}


def test_the_innermost_part_counts_and_the_parts_add_up(clock):
    account = TimeAccount(began_s=990.0)  # Imports took ten seconds.
    with account.part("steps"):
        clock(3)
        with account.part("saving"):
            clock(2)
            with account.part("evaluation"):
                clock(4)
        clock(1)
        account.move(0.5, "data")
    clock(5)
    assert of(account) == {
        "start": 15.0, "steps": 3.5, "saving": 2.0, "evaluation": 4.0, "data": 0.5,
    }  # fmt: skip
    assert sum(account.seconds().values()) == 25
    assert list(account.seconds()) == list(PARTS)


def test_an_error_inside_a_part_ends_it(clock):
    account = TimeAccount()

    def fail():
        with account.part("compile"):
            clock(2)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    clock(1)
    assert of(account) == {"start": 1.0, "compile": 2.0}


def session(folder, clock, *, steps, restored=(0, {}), event="running"):  # noqa: B006
    """One second a step from a restored one, saved before the last five steps.

    With the event "running", the file looks as if it was killed.
    """
    account = TimeAccount()
    account.open(folder)
    step, saved = restored
    account.resume(step, saved)
    with account.part("steps"):
        for account.step in range(step + 1, step + steps + 1):
            clock(1)
            if account.step == step + steps - 5:
                saved = account.seconds()
                with account.part("saving"):
                    clock(0.25)
                account.log()
    account.close(event)
    return account, (account.step - 5, saved)


def test_steps_after_the_restored_checkpoint_are_lost_in_the_next_session(tmp_path, clock):
    first, saved = session(tmp_path, clock, steps=20)
    assert of(first) == {"steps": 20.0, "saving": 0.25}
    clock(60)  # The machine is gone, comes back, and starts the process.
    second, _ = session(tmp_path, clock, steps=10, restored=saved)
    assert of(second) == {"steps": 25.0, "lost": 5.0, "saving": 0.5, "idle": 60.0}
    third = TimeAccount()
    third.open(tmp_path)
    third.resume(*saved)  # The second session's checkpoint is damaged: all its steps are lost.
    assert of(third) == {"steps": 15.0, "lost": 15.0, "saving": 0.5, "idle": 60.0}
    third.close("failed")
    rows = read_sessions(tmp_path)
    assert [row["session"] for row in rows if row["event"] == "running"][-1] == 3
    assert sum(rows[-1]["seconds"].values()) == rows[-1]["time"] - rows[0]["began"]


def test_a_session_without_a_checkpoint_is_lost(tmp_path, clock):
    session(tmp_path, clock, steps=4)
    again, _ = session(tmp_path, clock, steps=1)
    assert of(again) == {"lost": 4.0, "steps": 1.0}


def test_nothing_is_lost_after_a_stop_that_saved_the_last_step(tmp_path, clock):
    first, _ = session(tmp_path, clock, steps=8, event="stopped")
    clock(3)
    second, _ = session(tmp_path, clock, steps=2, restored=(8, first.seconds()))
    assert of(second) == {"steps": 10.0, "saving": 0.25, "idle": 3.0}


def opened(folder):
    account = TimeAccount()
    account.open(folder)
    return account


def test_an_evaluation_at_the_restored_step_is_not_lost(tmp_path, clock):
    first = opened(tmp_path)
    with first.part("steps"):
        clock(2)
    first.step, saved = 2, first.seconds()
    with first.part("evaluation"):
        clock(7)
    first.close("stopped")
    second = opened(tmp_path)
    second.resume(2, saved)
    assert of(second) == {"steps": 2.0, "evaluation": 7.0}
    second.close("finished")


def test_a_log_that_lags_behind_the_checkpoint_gives_its_seconds_back_from_idle(tmp_path, clock):
    first, _ = session(tmp_path, clock, steps=4)
    clock(6)
    later = {**first.seconds(), "steps": 9.0}  # Saved 5 s after the last line.
    second = opened(tmp_path)
    second.resume(9, later)
    assert of(second) == {"steps": 9.0, "idle": 1.0}
    second.close("stopped")


def test_a_thread_writes_while_the_main_thread_is_busy(tmp_path):
    account = opened(tmp_path)
    with account.part("compile"):
        begin = time.monotonic()
        while read_sessions(tmp_path)[-1]["seconds"].get("compile", 0) < 0.5:
            assert time.monotonic() - begin < 60
            time.sleep(0.05)
    account.close("failed")


def test_a_process_knows_when_it_was_started():
    begin = time.time()
    code = "from vit_jax.run.time_account import process_start_s; print(process_start_s())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(begin, abs=0.1)


def test_a_file_that_cannot_be_written_is_a_run_folder_error(tmp_path):
    (tmp_path / FILE).mkdir()
    with pytest.raises(RunFolderError, match=r"sessions.jsonl"):
        TimeAccount().open(tmp_path)
