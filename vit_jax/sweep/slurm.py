"""Jobs on a SLURM cluster, through submitit.

What becomes of a job is judged by its result.json and by squeue and scontrol. Accounting (sacct),
which many small clusters lack, is not needed.
"""

import ast
import hashlib
import inspect
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from vit_jax.errors import SweepError, nearest
from vit_jax.sweep.plan import PlannedJob
from vit_jax.sweep.records import read_attempt
from vit_jax.sweep.task import JobTask

log = logging.getLogger(__name__)

# submitit's names of options that it translates; all others are its SLURM executor's own.
_GENERIC = (
    "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node",
    "stderr_to_stdout",
)  # fmt: skip
# A job that reaches its time limit goes on from its checkpoint: hours, not days, wait shorter.
DEFAULTS: dict[str, Any] = {"timeout_min": 240, "stderr_to_stdout": True}
# What requeues a job is the time limit; this often is as good as always.
_MOST_TIMEOUTS = 1000
_COMMAND_TIMEOUT_S = 60
# squeue may know of a job only so long after it was submitted.
_SECONDS_TO_APPEAR = 30.0
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED",
            "SPECIAL_EXIT", "RESV_DEL_HOLD", "STAGE_OUT")  # fmt: skip
_RUNNING = ("RUNNING", "COMPLETING", "SIGNALING", "STOPPED", "RESIZING")


class SlurmEngine:
    """Submits jobs, all that may start at once, and knows which are in the queue.

    A job is found in the queue by its name, made of the folders of sweep and job, so that another
    launcher knows the jobs that an earlier one has submitted.

    Args:
        sweep_name: some unique word of the sweep, such as its absolute folder.
        options: of submitit, see `slurm_options`.
        at_once: most jobs in the queue; None: any number.

    Attributes:
        name: of the executor.
        poll_s: how often to look.
        seconds_to_see: how long what a job has written may take to be seen here.

    Raises:
        SweepError: no SLURM here, or an option that submitit does not know.
    """

    name = "slurm"
    poll_s = 3.0
    seconds_to_see = 20.0
    words = ""

    def __init__(self, sweep_name: str, options: Mapping[str, Any], at_once: int | None = None):
        missing = [c for c in ("sbatch", "srun", "squeue", "scontrol") if shutil.which(c) is None]
        if missing:
            raise SweepError(
                f"--executor=slurm and no {', '.join(missing)} on this machine",
                "a login node of a SLURM cluster",
                "start it there, or use --executor=local",
            )
        self._prefix = f"sweep-{_short_hash(sweep_name)}"
        self._options = {**DEFAULTS, **options}
        self._at_once = at_once
        self._submitted: dict[str, tuple[str, float]] = {}
        self._queue: dict[str, tuple[str, str]] = {}
        self._ids: dict[str, str] = {}
        self._told = False
        self._look(first=True)

    def adopt(self, job: PlannedJob) -> None:
        """Takes over a job that is in the queue already; nothing is to be done."""

    def is_elsewhere(self, job: PlannedJob) -> bool:
        """Whether the job is in the queue without having been submitted by this engine."""
        return job.name not in self._submitted and self._job_name(job) in self._queue

    def running(self, jobs: list[PlannedJob]) -> dict[str, str]:
        """Returns, of some jobs, those in the queue: name -> "running" or "queued"."""
        self._look()
        found = {}
        now = time.monotonic()
        for job in jobs:
            if self._job_name(job) in self._queue:
                number, state = self._queue[self._job_name(job)]
                self._ids[job.name] = number
                self._submitted[job.name] = (number, float("-inf"))
                found[job.name] = "running" if state in _RUNNING else "queued"
            elif job.name in self._submitted:
                if now - self._submitted[job.name][1] < _SECONDS_TO_APPEAR:
                    found[job.name] = "queued"
                else:
                    del self._submitted[job.name]
        return found

    def free(self) -> int:
        """Returns how many more jobs may be submitted."""
        return 10**6 if self._at_once is None else max(0, self._at_once - len(self._submitted))

    def start(self, job: PlannedJob) -> None:
        """Submits a job.

        Raises:
            SweepError: SLURM does not take it.
        """
        executor = submitit.AutoExecutor(
            job.folder / ".sweep" / "submitit", cluster="slurm",
            slurm_max_num_timeout=_MOST_TIMEOUTS,
        )  # fmt: skip
        self._set_options(executor, self._job_name(job))
        task = JobTask(job.folder, job.command(), environment={}, executor=self.name)
        try:
            submitted = executor.submit(task)
        except (FailedJobError, FailedSubmissionError, subprocess.SubprocessError) as error:
            told = _last_line(str(error))
            raise SweepError(
                f"SLURM does not take job {job.name!r}: {told}", "options that the cluster allows",
                "correct --slurm.KEY=VALUE or SLURM in the sweep file",
            ) from None  # fmt: skip
        self._submitted[job.name] = (submitted.job_id, time.monotonic())
        self._ids[job.name] = submitted.job_id

    def stop(self, jobs: list[PlannedJob]) -> None:
        """Asks the jobs to save and end, and takes waiting ones back; to be called again."""
        ids: dict[str, list[str]] = {"queued": [], "running": []}
        for name, state in self.running(jobs).items():
            ids[state].append(self._ids[name])
        if ids["queued"]:
            _call("scancel", *ids["queued"])
        if ids["running"]:  # Not the batch script, which waits for srun.
            _call("scancel", "--signal=TERM", *ids["running"])

    def fate(self, job: PlannedJob) -> str | None:
        """Returns the final state of a job that has left the queue; None: not known any more."""
        attempt = read_attempt(job.folder)
        number = self._ids.get(job.name) or (attempt.id if attempt else None)
        if number is None:
            return None
        told = _call("scontrol", "-o", "show", "job", number)
        found = re.search(r"\bJobState=(\S+)", told or "")
        return found[1] if found else None

    def _set_options(self, executor: submitit.AutoExecutor, name: str) -> None:
        given = {k if k in _GENERIC else f"slurm_{k}": v for k, v in self._options.items()}
        try:
            executor.update_parameters(name=name, **given)
        except (AssertionError, NameError, TypeError, ValueError) as error:
            raise SweepError(
                f"SLURM options {self._options}: {_last_line(str(error))}",
                "options as submitit takes them", "correct --slurm.KEY=VALUE",
            ) from None  # fmt: skip

    def _job_name(self, job: PlannedJob) -> str:
        return f"{self._prefix}-{_short_hash(job.name)}-{job.name.replace('/', '.')[-40:]}"

    def _look(self, *, first: bool = False) -> None:
        """Reads the queue; while SLURM does not answer, what it said before counts."""
        told = _call("squeue", "-h", "-t", "all", "-o", "%i %T %j", "-u", str(os.getuid()))
        if told is None:
            if first:
                raise SweepError(
                    "SLURM does not answer (squeue)", "a controller that runs",
                    "try squeue, or use --executor=local",
                )  # fmt: skip
            if not self._told:
                log.warning("SLURM does not answer; waiting")
            self._told = True
            return
        self._told = False
        self._queue = {}
        for line in told.splitlines():
            number, state, name = (*line.split(maxsplit=2), "", "")[:3]
            if name.startswith(self._prefix) and state in (*_WAITING, *_RUNNING):
                self._queue[name] = (number, state)


def slurm_options(defaults: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """Returns the options of the cluster.

    Args:
        defaults: those of the sweep file.
        texts: KEY=VALUE of the command line, which win.

    Raises:
        SweepError: not KEY=VALUE, or a key that submitit does not know.

    >>> slurm_options({"partition": "a", "nodes": 1}, ["nodes=2", "gpus_per_node=8"])
    {'partition': 'a', 'nodes': 2, 'gpus_per_node': 8}
    """
    options = dict(defaults)
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise SweepError(f"'--slurm.{text}'", "--slurm.KEY=VALUE", "add '=VALUE'")
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key] = value
    known = _known_options()
    for key in options:
        if key not in known:
            raise SweepError(
                f"unknown SLURM option {key!r}", f"one of {', '.join(sorted(known))}",
                f"did you mean {nearest(key, known)!r}? Others go into additional_parameters",
            )  # fmt: skip
    return options


def _known_options() -> set[str]:
    from submitit.slurm.slurm import _make_sbatch_string

    own = {"command", "folder", "job_name", "map_count", "array_parallelism", "num_gpus", "time"}
    return {*_GENERIC, *inspect.signature(_make_sbatch_string).parameters} - own - {
        "mem", "ntasks_per_node"
    }  # fmt: skip


def _call(*command: str) -> str | None:
    """Returns what a command of SLURM prints; None where it fails or does not answer."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
