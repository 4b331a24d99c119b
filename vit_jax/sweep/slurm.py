"""Executor for a SLURM cluster, through submitit.

The state of a job is read from its files and squeue. Accounting (sacct) is not needed,
because many small clusters lack it.
"""

import hashlib
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from vit_jax.errors import SweepError
from vit_jax.run.job_folder import local_folder, read_attempt, submitit_folder
from vit_jax.sweep.executor import Executor, JobState
from vit_jax.sweep.job_process import JobProcess
from vit_jax.sweep.plan import PlannedJob

log = logging.getLogger(__name__)

# Options that submitit translates for SLURM; all others get the prefix "slurm_".
_SHARED_OPTIONS = (
    "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node",
    "stderr_to_stdout",
)  # fmt: skip
# Four hours: jobs resume after the time limit, and short jobs wait less in the queue.
DEFAULTS: dict[str, Any] = {"timeout_min": 240, "stderr_to_stdout": True}
# How often submitit requeues a job that reaches its time limit.
_MAX_TIMEOUTS = 1000
_COMMAND_TIMEOUT_S = 60
_APPEAR_TIMEOUT_S = 30.0  # after sbatch, until squeue lists the job
_VISIBLE_TIMEOUT_S = 20.0  # until files written by a compute node are visible here
_QUEUED = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED",
           "SPECIAL_EXIT", "RESV_DEL_HOLD", "STAGE_OUT")  # fmt: skip
_RUNNING = ("RUNNING", "COMPLETING", "SIGNALING", "STOPPED", "RESIZING")


class SlurmExecutor(Executor):
    """Submits all jobs that are ready; --at_once limits their number in the queue.

    A job's name in the queue is derived from the folders of the sweep and the job, so another
    launcher recognises jobs that were submitted earlier.
    """

    poll_s = 3.0

    def __init__(self, folder: Path, at_once: int | None, options: Mapping[str, Any]):
        super().__init__(folder, at_once, {**DEFAULTS, **options})
        missing = [c for c in ("sbatch", "srun", "squeue", "scontrol") if shutil.which(c) is None]
        if missing:
            raise SweepError(
                f"--executor=slurm, but {', '.join(missing)} not found on this machine",
                "a login node of a SLURM cluster",
                "start it there, or use --executor=local",
            )
        self._prefix = f"sweep-{_short_hash(str(folder))}"
        self._ids: dict[str, str] = {}  # job -> SLURM id
        # Job -> until when it counts as queued if squeue does not list it.
        self._until: dict[str, float] = {}
        self._queue: dict[str, tuple[str, str]] = {}  # name in the queue -> SLURM id, state
        self._answering = True
        self._read_queue()
        if not self._answering:
            raise SweepError(
                "SLURM does not answer (squeue)",
                "a running controller",
                "try squeue, or use --executor=local",
            )
        self._build_executor(local_folder(folder) / ".sweep")  # Checks the options.

    def submit(self, job: PlannedJob) -> None:
        executor = self._build_executor(submitit_folder(job.folder))
        executor.update_parameters(name=self._queue_name(job))
        try:
            submitted = executor.submit(JobProcess(job.folder, job.command()))
        except (FailedJobError, FailedSubmissionError, subprocess.SubprocessError) as error:
            raise SweepError(
                f"SLURM refuses job {job.name!r}: {str(error).strip().splitlines()[-1]}",
                "options that the cluster allows",
                "correct --slurm.KEY=VALUE or SLURM in the sweep file",
            ) from None
        self._ids[job.name] = submitted.job_id
        self._until[job.name] = time.monotonic() + _APPEAR_TIMEOUT_S

    def running(self, jobs: Sequence[PlannedJob]) -> dict[str, JobState]:
        """Returns jobs in the queue, or that left it so recently that files may be outdated."""
        self._read_queue()
        found: dict[str, JobState] = {}
        now = time.monotonic()
        for job in jobs:
            number, state = self._queue.get(self._queue_name(job), ("", ""))
            if state in (*_QUEUED, *_RUNNING):
                self._ids[job.name], self._until[job.name] = number, now + _VISIBLE_TIMEOUT_S
            elif now > self._until.get(job.name, 0) or self._has_ended(job):
                continue
            found[job.name] = "running" if state in _RUNNING else "queued"
        return found

    def stop(self, jobs: Sequence[PlannedJob]) -> None:
        """Cancels queued jobs; asks running ones to save and end."""
        states = self.running(jobs)
        queued = [self._ids[name] for name, state in states.items() if state == "queued"]
        running = [self._ids[name] for name, state in states.items() if state == "running"]
        if queued:
            _call("scancel", *queued)
        if running:
            # This signals the job steps, not the batch script, which waits for srun.
            _call("scancel", "--signal=TERM", *running)

    def final_state(self, job: PlannedJob) -> str | None:
        """Returns SLURM's state of a job that has ended; None: SLURM has forgotten it."""
        return self._queue.get(self._queue_name(job), (None, None))[1]

    def _has_ended(self, job: PlannedJob) -> bool:
        """Whether the files of a job that has left the queue say how it ended."""
        attempt = read_attempt(job.folder)
        own = attempt is not None and attempt.id == self._ids.get(job.name)
        return job.result.exists() or bool(own and attempt and attempt.ended)

    def _build_executor(self, folder: Path) -> submitit.AutoExecutor:
        given = {k if k in _SHARED_OPTIONS else f"slurm_{k}": v for k, v in self.options.items()}
        try:
            executor = submitit.AutoExecutor(
                folder, cluster="slurm", slurm_max_num_timeout=_MAX_TIMEOUTS
            )
            executor.update_parameters(**given)
        except (AssertionError, NameError, TypeError, ValueError) as error:
            raise SweepError(
                f"SLURM options {self.options}: {str(error).splitlines()[0]}",
                "options as submitit names them",
                "correct --slurm.KEY=VALUE; all others go into additional_parameters",
            ) from None
        return executor

    def _queue_name(self, job: PlannedJob) -> str:
        return f"{self._prefix}-{_short_hash(job.name)}-{job.name.replace('/', '.')[-40:]}"

    def _read_queue(self) -> None:
        """Reads squeue, which lists ended jobs for some minutes; keeps the last answer if it fails.

        Of several jobs with the same name, the latest counts.
        """
        shown = _call(
            "squeue", "-h", "-t", "all", "-S", "i", "-o", "%i %T %j", "-u", str(os.getuid())
        )
        if shown is None and self._answering:
            log.warning("SLURM does not answer; waiting")
        self._answering = shown is not None
        if shown is not None:
            rows = [(*line.split(maxsplit=2), "", "")[:3] for line in shown.splitlines()]
            self._queue = {name: (number, state) for number, state, name in rows}


def _call(*command: str) -> str | None:
    """Returns what a SLURM command prints; None if it fails or does not answer."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_COMMAND_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
