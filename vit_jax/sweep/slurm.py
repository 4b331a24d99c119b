"""Executor for a SLURM cluster, through submitit.

The state of a job is read from its files, squeue and scontrol. Accounting (sacct) is not needed,
because many small clusters lack it.
"""

import hashlib
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from vit_jax.errors import SweepError
from vit_jax.sweep.devices import Share
from vit_jax.sweep.executor import Executor, JobState
from vit_jax.sweep.job_folder import read_attempt
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

    Raises:
        SweepError: this machine has no SLURM, or submitit does not know an option.
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
        self._seen: dict[str, float] = {}  # job -> when it was last known to be in the queue
        self._queue: dict[str, tuple[str, str]] = {}  # name in the queue -> SLURM id, state
        self._answering = True
        if not self._read_queue():
            raise SweepError(
                "SLURM does not answer (squeue)",
                "a running controller",
                "try squeue, or use --executor=local",
            )
        self._check_options()

    def submit(self, job: PlannedJob) -> None:
        """Submits a job.

        Raises:
            SweepError: SLURM refuses it.
        """
        process = JobProcess(job.folder, job.command(), "slurm", 0, Share({}))
        try:
            executor = self._build_executor(job.folder / ".sweep" / "submitit")
            executor.update_parameters(name=self._queue_name(job))
            submitted = executor.submit(process)
        except (FailedJobError, FailedSubmissionError, subprocess.SubprocessError) as error:
            raise SweepError(
                f"SLURM refuses job {job.name!r}: {str(error).strip().splitlines()[-1]}",
                "options that the cluster allows",
                "correct --slurm.KEY=VALUE or SLURM in the sweep file",
            ) from None
        self._ids[job.name] = submitted.job_id
        # squeue may not list it yet.
        self._seen[job.name] = time.monotonic() + _APPEAR_TIMEOUT_S - _VISIBLE_TIMEOUT_S

    def running(self, jobs: Sequence[PlannedJob]) -> dict[str, JobState]:
        """Returns jobs in the queue, or that left it so recently that files may be outdated."""
        self._read_queue()
        found: dict[str, JobState] = {}
        now = time.monotonic()
        for job in jobs:
            if self._queue_name(job) in self._queue:
                self._ids[job.name], state = self._queue[self._queue_name(job)]
                self._seen[job.name] = now
                found[job.name] = "running" if state in _RUNNING else "queued"
            elif now - self._seen.get(job.name, float("-inf")) < _VISIBLE_TIMEOUT_S:
                attempt = read_attempt(job.folder)
                own = attempt is not None and attempt.id == self._ids.get(job.name)
                if not job.result.exists() and not (own and attempt and attempt.ended):
                    found[job.name] = "queued" if not own else "running"
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
        """Returns SLURM's state of a job that has left the queue; None: SLURM has forgotten it."""
        attempt = read_attempt(job.folder)
        number = self._ids.get(job.name) or (attempt.id if attempt else None)
        shown = _call("scontrol", "-o", "show", "job", number) if number else None
        found = re.search(r"\bJobState=(\S+)", shown or "")
        return found[1] if found else None

    def _build_executor(self, folder: Path) -> submitit.AutoExecutor:
        executor = submitit.AutoExecutor(
            folder, cluster="slurm", slurm_max_num_timeout=_MAX_TIMEOUTS
        )
        given = {k if k in _SHARED_OPTIONS else f"slurm_{k}": v for k, v in self.options.items()}
        executor.update_parameters(**given)
        return executor

    def _check_options(self) -> None:
        try:
            self._build_executor(self.folder / ".sweep")
        except (AssertionError, NameError, TypeError, ValueError) as error:
            raise SweepError(
                f"SLURM options {self.options}: {str(error).splitlines()[0]}",
                "options as submitit names them",
                "correct --slurm.KEY=VALUE; all others go into additional_parameters",
            ) from None

    def _queue_name(self, job: PlannedJob) -> str:
        return f"{self._prefix}-{_short_hash(job.name)}-{job.name.replace('/', '.')[-40:]}"

    def _read_queue(self) -> bool:
        """Reads squeue; if SLURM does not answer, the last answer is kept."""
        shown = _call("squeue", "-h", "-t", "all", "-o", "%i %T %j", "-u", str(os.getuid()))
        if shown is None:
            if self._answering:
                log.warning("SLURM does not answer; waiting")
            self._answering = False
            return False
        self._answering = True
        rows = [(*line.split(maxsplit=2), "", "")[:3] for line in shown.splitlines()]
        self._queue = {
            name: (number, state)
            for number, state, name in rows
            if name.startswith(self._prefix) and state in (*_QUEUED, *_RUNNING)
        }
        return True


def _call(*command: str) -> str | None:
    """Returns what a SLURM command prints; None if it fails or does not answer."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
