"""Jobs on this machine, a few at a time, through submitit."""

import contextlib
import os
import platform
import signal
from collections.abc import Iterator

import submitit

from vit_jax.sweep.devices import shares
from vit_jax.sweep.plan import PlannedJob
from vit_jax.sweep.records import is_locked, job_lock, read_attempt
from vit_jax.sweep.task import JobTask

# submitit wants a time limit: a year.
_TIMEOUT_MIN = 365 * 24 * 60


class LocalEngine:
    """Starts jobs here and knows which run, also those that an earlier launcher left running.

    Jobs outlive a launcher that is killed. What the terminal sends (Ctrl-C, hanging up) does not
    reach them.

    Args:
        at_once: how many.

    Attributes:
        name: of the executor.
        poll_s: how often to look.
        seconds_to_see: how long what a job has written may take to be seen here.
    """

    name = "local"
    poll_s = 0.25
    seconds_to_see = 1.0

    def __init__(self, at_once: int):
        self._shares = shares(at_once)
        self._own: dict[str, tuple[submitit.Job, int]] = {}
        self._adopted: dict[str, int] = {}

    @property
    def words(self) -> str:
        """What a job gets of this machine, for people; "" where it is all."""
        return "; ".join(share.words for share in self._shares if share.words)

    def adopt(self, job: PlannedJob) -> None:
        """Takes over a job that runs already."""
        attempt = read_attempt(job.folder)
        self._adopted[job.name] = attempt.slot if attempt else 0

    def is_elsewhere(self, job: PlannedJob) -> bool:
        """Whether the job runs without having been started by this engine."""
        return job.name not in self._own and is_locked(job_lock(job.folder))

    def running(self, jobs: list[PlannedJob]) -> dict[str, str]:
        """Returns, of some jobs, those that run: name -> "running"."""
        found = {}
        for job in jobs:
            own = self._own.get(job.name)
            if own is not None and own[0].done():
                del self._own[job.name]
                own = None
            if own is None and job.name in self._adopted and not is_locked(job_lock(job.folder)):
                del self._adopted[job.name]
            if own is not None or job.name in self._adopted:
                found[job.name] = "running"
        return found

    def free(self) -> int:
        """Returns how many more jobs may be started."""
        return max(0, len(self._shares) - len(self._own) - len(self._adopted))

    def start(self, job: PlannedJob) -> None:
        """Starts a job on a share that is free."""
        taken = {slot for _, slot in self._own.values()} | set(self._adopted.values())
        slot = next((s for s in range(len(self._shares)) if s not in taken), 0)
        share = self._shares[slot]
        executor = submitit.LocalExecutor(job.folder / ".sweep" / "submitit")
        executor.update_parameters(timeout_min=_TIMEOUT_MIN, signal_delay_s=0)
        task = JobTask(
            job.folder, job.command(), environment=share.environment, executor=self.name,
            slot=slot, cores=share.cores,
        )  # fmt: skip
        with _unreached_by_the_terminal():
            self._own[job.name] = (executor.submit(task), slot)

    def stop(self, jobs: list[PlannedJob]) -> None:
        """Asks the jobs to save and end; to be called again until they have."""
        for job in jobs:
            if job.name in self._own:
                pid = int(self._own[job.name][0].job_id)
            else:
                attempt = read_attempt(job.folder)
                if attempt is None or attempt.ended or attempt.host != platform.node():
                    continue
                pid = attempt.pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def fate(self, job: PlannedJob) -> str | None:
        """Returns what the machine says of a job that is gone: nothing."""
        del job
        return None


@contextlib.contextmanager
def _unreached_by_the_terminal() -> Iterator[None]:
    """Processes started meanwhile do not see Ctrl-C or hanging up."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
