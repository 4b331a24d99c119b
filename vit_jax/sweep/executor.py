"""The interface of executors, which run the jobs of a sweep.

To add an executor, write a subclass of `Executor` with `submit`, `running` and `stop` in a file of
its own, and add a line to EXECUTORS.
"""

import abc
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from vit_jax.storage.paths import is_bucket
from vit_jax.sweep.plan import PlannedJob

# Value of --executor -> class, imported when needed because submitit imports slowly.
EXECUTORS = {
    "local": "vit_jax.sweep.local:LocalExecutor",
    "slurm": "vit_jax.sweep.slurm:SlurmExecutor",
}

# Seconds between two looks at jobs in a bucket, where each look costs requests.
_BUCKET_POLL_S = 5.0

JobState = Literal["queued", "running"]


class Executor(abc.ABC):
    """Starts jobs and reports which of them run.

    `at_once` is the largest number of jobs at the same time; as an argument, None is the executor's
    default, and as an attribute, any number. The options are of the cluster, from the command line
    and the sweep file. `poll_s` is the time between two calls of `running`. `description` tells the
    user which devices each job gets.
    """

    poll_s = 1.0
    description = ""

    def __init__(self, folder: Path, at_once: int | None, options: Mapping[str, Any]):
        self.folder, self.at_once, self.options = folder, at_once, dict(options)
        if is_bucket(folder):
            self.poll_s = max(self.poll_s, _BUCKET_POLL_S)

    @abc.abstractmethod
    def submit(self, job: PlannedJob) -> None:
        """Starts or queues a job: a `JobProcess`, or `job.command()` run in another way."""

    @abc.abstractmethod
    def running(self, jobs: Sequence[PlannedJob]) -> dict[str, JobState]:
        """Returns name -> state of the jobs that are queued or running.

        This includes jobs that an earlier launcher submitted. A job that has ended may be left out
        only once its files can be read on this machine.
        """

    @abc.abstractmethod
    def stop(self, jobs: Sequence[PlannedJob]) -> None:
        """Asks jobs to save and end. It is called until `running` no longer returns them."""

    def final_state(self, job: PlannedJob) -> str | None:
        """Returns the cluster's final state of a job, such as "CANCELLED"; None: unknown."""
        del job
        return None


def build_executor(
    name: str, folder: Path, at_once: int | None, options: Mapping[str, Any]
) -> Executor:
    """Builds one of EXECUTORS; for the arguments see `Executor`."""
    return pkgutil.resolve_name(EXECUTORS[name])(folder, at_once, options)
