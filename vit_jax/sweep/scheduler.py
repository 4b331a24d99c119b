"""Runs a sweep: starts jobs that are ready, watches them, and restarts interrupted ones."""

import contextlib
import dataclasses
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from vit_jax.errors import EXIT_STOPPED, LockedError, SweepError
from vit_jax.run.job_folder import (
    Attempt,
    clear_failure,
    read_all,
    read_attempt,
    read_progress,
    write_attempt,
)
from vit_jax.storage.lock import locked
from vit_jax.sweep.executor import Executor
from vit_jax.sweep.plan import Plan, PlannedJob
from vit_jax.sweep.state import JobStatus, broken_data, read_state, write_record

EXIT_FAILED = 1
_MOST_STARTS_WITHOUT_PROGRESS = 4
_SECONDS_BETWEEN_STOPS = 2.0


@contextlib.contextmanager
def launcher_lock(folder: Path) -> Iterator[None]:
    """Holds the lock of a sweep's folder inside this context."""
    owner = folder / ".launcher-process"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / ".launcher"))
            owner.write_text(f"process {os.getpid()} on {platform.node()}\n", encoding="utf-8")
        except LockedError:
            other = "unknown process"
            if owner.exists():
                other = owner.read_text(encoding="utf-8").strip()
            raise SweepError(
                f"sweep folder {folder} is in use by another launcher ({other})",
                "one launcher per folder",
                "wait for it, stop it, or choose another --workdir",
            ) from None
        except OSError as error:
            raise SweepError(
                f"cannot write to sweep folder {folder}: {error.strerror}",
                "a writable folder",
                "choose another --workdir",
            ) from None
        yield


class Scheduler:
    """Runs the jobs of a sweep until all are finished or failed, or the user stops it.

    `say` shows a line to the user, and `show` the status of all jobs, after every update. `stop`
    returns whether the user wants to stop.
    """

    def __init__(
        self,
        plan: Plan,
        executor: Executor,
        say: Callable[[str], None],
        show: Callable[[Sequence[JobStatus]], None],
        stop: Callable[[], bool],
    ):
        self.plan, self.executor = plan, executor
        self.say, self.show, self.stop = say, show, stop
        self.jobs: dict[str, JobStatus] = {}
        self._running: set[str] = set()
        # Job -> the step at which it last ended, and how often in a row it ended at that step.
        self._ends: dict[str, tuple[int, int]] = {}
        self._cancelled: set[str] = set()
        self._broken: set[str] = set()  # Jobs that their data have ended.
        self._asked: set[str] = set()  # Jobs that were asked to stop because of that.

    def run(self, *, retry_failed: bool = False) -> int:
        """Returns the exit code: 0 all finished, 1 some failed, 75 stopped.

        With `retry_failed`, previously failed jobs run again, once.
        """
        if retry_failed:
            read_all(lambda job: clear_failure(job.folder), list(self.plan.jobs.values()))
        asked_at = float("-inf")
        while True:
            self._update()
            stopping = self.stop()
            if not stopping:
                self._start_ready()
            if not self._running:
                break
            if stopping and time.monotonic() - asked_at > _SECONDS_BETWEEN_STOPS:
                self.executor.stop([self.plan.jobs[name] for name in sorted(self._running)])
                asked_at = time.monotonic()
            time.sleep(self.executor.poll_s)
        unfinished = any(status.state != "finished" for status in self.jobs.values())
        if unfinished and (stopping or self._cancelled):
            return EXIT_STOPPED
        return EXIT_FAILED if unfinished else 0

    def _update(self) -> None:
        """Updates the status from the executor and the job folders."""
        finished = {name for name, status in self.jobs.items() if status.state == "finished"}
        unfinished = [job for name, job in self.plan.jobs.items() if name not in finished]
        running = self.executor.running(unfinished)
        ended = self._running - running.keys()
        for name in sorted(ended):
            self._check_end(self.plan.jobs[name])
        for name in running.keys() - self._running:
            self.say(f"{name}: started by an earlier launcher")
        self._running = set(running)
        known = {name: status for name, status in self.jobs.items() if name not in ended}
        self.jobs = read_state(self.plan, running, known, self.say)
        self._stop_with_broken_data()
        self.show(list(self.jobs.values()))

    def _stop_with_broken_data(self) -> None:
        """Stops jobs whose data section has ended another job; those that wait do not start."""
        files = {name: (status.result, status.attempt) for name, status in self.jobs.items()}
        broken = broken_data(self.plan, files)
        for name in set(broken.values()) - self._broken:
            error = self.jobs[name].attempt
            self.say(f"{name}: jobs with the same data are stopped: {error and error.data_error}")
        self._broken |= set(broken.values())
        jobs = [self.plan.jobs[name] for name in sorted(self._running - self._asked)]
        alike = [job for job in jobs if job.config is not None and job.config.data in broken]
        if alike:
            self._asked |= {job.name for job in alike}
            self.executor.stop(alike)

    def _start_ready(self) -> None:
        """Starts ready jobs in the order of the plan, until the executor is full."""
        for name, status in self.jobs.items():
            if self.executor.at_once is not None and len(self._running) >= self.executor.at_once:
                return
            if status.state in ("ready", "stopped") and name not in self._cancelled:
                write_record(self.plan, status.job)
                self.executor.submit(status.job)
                self._running.add(name)

    def _check_end(self, job: PlannedJob) -> None:
        """Decides whether a job that is no longer running is started again.

        It is, unless it was cancelled on the cluster, ran out of memory, or made no progress.
        """
        attempt = read_attempt(job.folder)
        if job.result.exists() or self.stop() or (attempt and attempt.why_failed):
            return
        state = self.executor.final_state(job) or ""
        if state.startswith("CANCELLED"):
            self._cancelled.add(job.name)
            self.say(f"{job.name}: cancelled on the cluster; run the same command to resume")
            return
        step, (last, times) = read_progress(job.folder)[0], self._ends.get(job.name, (-1, 0))
        times = times + 1 if step <= last else 1
        self._ends[job.name] = step, times
        if state == "OUT_OF_MEMORY":
            failure = "out of memory"
        elif times >= _MOST_STARTS_WITHOUT_PROGRESS:
            failure = f"ended {times} times without progress"
        else:
            self.say(f"{job.name}: stopped{state and f' ({state})'}, resumes")
            return
        now = time.time()
        attempt = attempt or Attempt(number=1, host=platform.node(), started=now)
        attempt = dataclasses.replace(attempt, ended=attempt.ended or now, failure=failure)
        write_attempt(job.folder, attempt)
