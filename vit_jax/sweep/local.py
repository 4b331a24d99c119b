"""Executor for this machine: a few jobs at a time, through submitit."""

import contextlib
import os
import platform
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit

from vit_jax.run.job_folder import is_running, read_all, read_attempt, submitit_folder
from vit_jax.sweep.devices import divide_devices
from vit_jax.sweep.executor import Executor, JobState
from vit_jax.sweep.job_process import JobProcess
from vit_jax.sweep.plan import PlannedJob

# submitit requires a time limit; this is a year.
_TIMEOUT_MIN = 365 * 24 * 60


class LocalExecutor(Executor):
    """Runs jobs as processes of this machine; each gets a share of its devices.

    Jobs keep running if the launcher is killed. Ctrl-C and closing the terminal reach only the
    launcher.
    """

    poll_s = 0.25

    def __init__(self, folder: Path, at_once: int | None, options: Mapping[str, Any]):
        super().__init__(folder, at_once or 1, options)
        self._shares = divide_devices(at_once or 1)
        self._submitted: dict[str, submitit.Job] = {}
        self._slots: dict[str, int] = {}
        self._earlier: set[str] | None = None  # Jobs that an earlier launcher has started.
        self.description = "; ".join(s.description for s in self._shares if s.description)

    def submit(self, job: PlannedJob) -> None:
        slot = min(set(range(len(self._shares))) - set(self._slots.values()), default=0)
        executor = submitit.LocalExecutor(submitit_folder(job.folder))
        executor.update_parameters(timeout_min=_TIMEOUT_MIN, signal_delay_s=0)
        # The new process inherits blocked signals: Ctrl-C and SIGHUP do not end it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        try:
            self._submitted[job.name] = executor.submit(
                JobProcess(job.folder, job.command(), slot, self._shares[slot])
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._slots[job.name] = slot

    def running(self, jobs: Sequence[PlannedJob]) -> dict[str, JobState]:
        found: dict[str, JobState] = {}
        if self._earlier is None:
            alive = read_all(lambda job: is_running(job.folder), jobs)
            self._earlier = {
                job.name for job, is_alive in zip(jobs, alive, strict=True) if is_alive
            }
        for job in jobs:
            own = self._submitted.get(job.name)
            if own is None and job.name not in self._earlier:
                continue
            if (own is not None and not own.done()) or is_running(job.folder):
                found[job.name] = "running"
                attempt = read_attempt(job.folder)
                self._slots.setdefault(job.name, attempt.slot if attempt else 0)
        self._slots = {name: slot for name, slot in self._slots.items() if name in found}
        return found

    def stop(self, jobs: Sequence[PlannedJob]) -> None:
        """Sends SIGTERM to all jobs, including those whose run has not started yet."""
        for job in jobs:
            own, attempt = self._submitted.get(job.name), read_attempt(job.folder)
            if own is not None:
                process = int(own.job_id)
            elif attempt is not None and attempt.ended is None and attempt.host == platform.node():
                process = attempt.pid
            else:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
