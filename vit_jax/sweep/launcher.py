"""Runs a sweep: starts what may start, watches, and goes on where it was."""

import contextlib
import dataclasses
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from vit_jax.errors import EXIT_STOPPED, SweepError
from vit_jax.sweep.board import Row, changes, why_failed
from vit_jax.sweep.ledger import Ledger
from vit_jax.sweep.plan import PlannedJob
from vit_jax.sweep.records import Attempt, open_lock, read_attempt, write_attempt
from vit_jax.sweep.table import TableView

EXIT_FAILED = 1
# A job that ends again and again without having got further is not started any more.
_MOST_STARTS_WITHOUT_PROGRESS = 4
_SECONDS_BETWEEN_STOPS = 2.0


@runtime_checkable
class Engine(Protocol):
    """What runs jobs: this machine or a cluster; see `LocalEngine`, `SlurmEngine`."""

    name: str
    poll_s: float
    # After how long without a word a job that is gone is taken to have left none.
    seconds_to_see: float

    def adopt(self, job: PlannedJob) -> None: ...
    def is_elsewhere(self, job: PlannedJob) -> bool: ...
    def running(self, jobs: list[PlannedJob]) -> dict[str, str]: ...
    def free(self) -> int: ...
    def start(self, job: PlannedJob) -> None: ...
    def stop(self, jobs: list[PlannedJob]) -> None: ...
    def fate(self, job: PlannedJob) -> str | None: ...


@contextlib.contextmanager
def only_launcher(folder: Path) -> Iterator[None]:
    """Holds a sweep's folder while entered.

    Raises:
        SweepError: another launcher has it, or it cannot be written.
    """
    path = folder / ".launcher"
    try:
        lock = open_lock(path)
    except OSError as error:
        raise SweepError(
            f"cannot write to sweep folder {folder}: {error.strerror}", "a writable folder",
            "choose another --workdir",
        ) from None  # fmt: skip
    if lock is None:
        raise SweepError(
            f"sweep folder {folder} is in use by another launcher ({path.read_text().strip()})",
            "one launcher a folder", "wait for it, stop it, or choose another --workdir",
        )  # fmt: skip
    with lock:
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {platform.node()}\n")
        lock.flush()
        yield


class Launcher:
    """Runs the jobs of a plan to the end, or until it is asked to stop.

    Args:
        ledger: the jobs and where they stand.
        engine: what runs them.
        view: shows where they stand.
        stop: says when to stop.
    """

    def __init__(self, ledger: Ledger, engine: Engine, view: TableView, stop: Callable[[], bool]):
        self.ledger, self.board, self.plan = ledger, ledger.board, ledger.plan
        self.engine, self.view, self.stop = engine, view, stop
        # Job -> number of its attempt before it was started.
        self._started: dict[str, int] = {}
        # Job -> when it was first seen to be gone.
        self._gone: dict[str, float] = {}
        # Job -> the step it had reached when it last ended, and how often it ended there.
        self._ends: dict[str, tuple[int, int]] = {}
        self._cancelled: set[str] = set()

    def run(self) -> int:
        """Returns the exit code: 0 all finished, 1 some failed, 75 stopped."""
        stopping, asked_at = False, float("-inf")
        self._adopt()
        while True:
            running = self._look()
            if self.stop():
                stopping = True
                if not running and not self._started:
                    break
                if time.monotonic() - asked_at > _SECONDS_BETWEEN_STOPS:
                    self.engine.stop([self.plan.jobs[name] for name in running])
                    asked_at = time.monotonic()
            elif not self._start_some() and not self._started:
                break
            self._rest()
        self.ledger.write_sweep()
        unfinished = [row for row in self.board.rows.values() if row.state != "finished"]
        if unfinished and (stopping or self._cancelled):
            return EXIT_STOPPED
        return EXIT_FAILED if unfinished else 0

    def _rest(self) -> None:
        """Waits until the next look; less where a signal wants an answer."""
        deadline, before = time.monotonic() + self.engine.poll_s, self.stop()
        while time.monotonic() < deadline and self.stop() == before:
            time.sleep(0.1)

    def _adopt(self) -> None:
        """Takes over what an earlier launcher has left running."""
        for job in self.plan.jobs.values():
            if not job.result.exists() and self.engine.is_elsewhere(job):
                self.engine.adopt(job)
                attempt = read_attempt(job.folder)
                self._started[job.name] = attempt.number - 1 if attempt else 0
                self.view.say(f"{job.name}: started by an earlier launcher")

    def _look(self) -> dict[str, str]:
        """Brings the board up to date and returns what runs."""
        running = self.engine.running(list(self.plan.jobs.values()))
        for name in [name for name in self._started if name not in running]:
            if self._is_settled(name):
                self._ended(name)
        self.ledger.update({**dict.fromkeys(self._started, "running"), **running})
        self.view.show(self.board)
        return running

    def _is_settled(self, name: str) -> bool:
        """Whether what a job that is gone has written can be taken as all there is."""
        job = self.plan.jobs[name]
        attempt = read_attempt(job.folder)
        known = attempt is not None and attempt.number > self._started[name] and attempt.ended
        since = self._gone.setdefault(name, time.monotonic())
        waited = time.monotonic() - since > self.engine.seconds_to_see
        if not (job.result.exists() or known or waited):
            return False
        del self._gone[name]
        return True

    def _ended(self, name: str) -> None:
        """Judges a job that is gone: is it to be started again?"""
        job, before = self.plan.jobs[name], self._started.pop(name)
        attempt = read_attempt(job.folder)
        if job.result.exists() or self.stop():
            return
        if attempt is not None and attempt.number > before and why_failed(attempt) is not None:
            return
        fate = self.engine.fate(job)
        if fate is not None and fate.startswith("CANCELLED"):
            self._cancelled.add(name)
            self.view.say(f"{name}: cancelled in SLURM; the same command again goes on with it")
            return
        last, times = self._ends.get(name, (-1, 0))
        step = self.board.rows[name].step
        times = times + 1 if step <= last else 1
        self._ends[name] = (step, times)
        if fate == "OUT_OF_MEMORY":
            self._give_up(job, attempt, "out of memory")
        elif times >= _MOST_STARTS_WITHOUT_PROGRESS:
            self._give_up(job, attempt, f"ended {times} times without getting further")
        else:
            self.view.say(f"{name}: stopped{f' ({fate})' if fate else ''}, goes on")

    def _give_up(self, job: PlannedJob, attempt: Attempt | None, why: str) -> None:
        now = time.time()
        attempt = attempt or Attempt(1, self.engine.name, "", platform.node(), 0, 0, now)
        ended = attempt.ended or now
        write_attempt(job.folder, dataclasses.replace(attempt, ended=ended, failure=why))

    def _start_some(self) -> int:
        """Starts as many jobs as there is room for, in the order of the plan."""
        count = 0
        for name, row in self.board.rows.items():
            if row.state not in ("ready", "stopped") or name in self._cancelled:
                continue
            if name not in self._started and self.engine.free():
                count += self._start(row)
        return count

    def _start(self, row: Row) -> bool:
        """Starts a job; returns whether it was."""
        job, attempt = row.job, read_attempt(row.job.folder)
        told = changes(job)
        if told is not None:  # A final run, begun after another choice.
            self.board.fail(job.name, f"has begun with other settings ({told})")
            return False
        self.ledger.write_about(job)
        if attempt is not None and why_failed(attempt) is not None:
            # It is tried again: what it failed of is no longer the latest word.
            attempt = dataclasses.replace(attempt, failure=None, exit_code=EXIT_STOPPED)
            write_attempt(job.folder, attempt)
        self._started[job.name] = attempt.number if attempt else 0
        self.engine.start(job)
        self.board.retried(job.name)
        return True
