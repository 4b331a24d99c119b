"""The status of every job of a sweep, read from its folder."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.errors import SweepError, first_few
from vit_jax.sweep.job_folder import (
    Attempt,
    changed_settings,
    read_attempt,
    read_optional_json,
    read_progress,
    write_sweep_json,
)
from vit_jax.sweep.plan import Plan, PlannedJob
from vit_jax.sweep.selection import select_best

# In order of priority for a short table. "stopped": will be resumed; "waiting": needs other jobs
# to finish first; "blocked": a job that it needs has failed.
STATES = ("failed", "running", "queued", "ready", "stopped", "waiting", "blocked", "finished")


@dataclasses.dataclass
class JobStatus:
    """Status of one job.

    Attributes:
        job: as planned.
        state: one of STATES.
        note: why it is in this state.
        step: last logged step.
        total: number of steps; None: not known.
        scores: accuracies so far; all final metrics of a finished job.
        attempt: the latest start.
        result: content of result.json; None: not finished.
    """

    job: PlannedJob
    state: str = "waiting"
    note: str = ""
    step: int = 0
    total: int | None = None
    scores: dict[str, Any] = dataclasses.field(default_factory=dict)
    attempt: Attempt | None = None
    result: dict[str, Any] | None = None

    @property
    def seconds(self) -> float | None:
        """How long the job took, or has been running."""
        if self.result is not None and "wall_time_s" in self.result:
            return float(self.result["wall_time_s"])
        if self.attempt is None:
            return None
        return (self.attempt.ended or time.time()) - self.attempt.started


class SweepStatus:
    """Status of all jobs of a sweep. Makes each selection as soon as its candidates are finished.

    Args:
        plan: the jobs.
        say: shows a line to the user.

    Attributes:
        jobs: name -> status.

    Raises:
        SweepError: the folder belongs to another sweep, or a job in it ran with other settings.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]):
        self.plan, self.say = plan, say
        self.jobs = {name: JobStatus(job) for name, job in plan.jobs.items()}
        # Failures that attempt.json does not record.
        self._failures: dict[str, str] = {}
        _check_same_sweep(plan)
        for job in plan.jobs.values():
            _check_unchanged(job)
        self.update({})

    def update(self, running: Mapping[str, str]) -> None:
        """Reads the folders of all jobs that are not finished.

        Args:
            running: name -> "running" or "queued".
        """
        for name, status in self.jobs.items():
            if status.state != "finished" or name in self._failures:
                self.jobs[name] = self._read(self.plan.jobs[name], running.get(name))
        for status in self.jobs.values():
            if status.state in ("ready", "stopped"):
                self._check_needs(status)
        decided = [name for name in self.plan.selections if self._decide(name)]
        if decided:
            self.update(running)

    def write_record(self, job: PlannedJob) -> None:
        """Writes job.json unless it has this content already."""
        record = job.record(self.plan.sweep.spec)
        if read_optional_json(job.folder / "job.json") != record:
            write_sweep_json(job.folder / "job.json", record)

    def write_sweep(self, **details: Any) -> None:
        """Writes sweep.json, and job.json of finished jobs, because their labels may have changed.

        Args:
            **details: more entries of sweep.json.
        """
        jobs = [
            {"name": name, "stage": job.job.stage, "needs": list(job.needs)}
            for name, job in self.plan.jobs.items()
        ]
        sweep = self.plan.sweep
        content = {"sweep": sweep.spec, **details, "report": sweep.report, "jobs": jobs}
        write_sweep_json(self.plan.folder / "sweep.json", content)
        for status in self.jobs.values():
            if status.state == "finished":
                self.write_record(status.job)

    def _read(self, job: PlannedJob, executor_state: str | None) -> JobStatus:
        status = JobStatus(job, attempt=read_attempt(job.folder))
        status.step, status.total, status.scores = read_progress(job.folder)
        if job.config is not None and job.config.train_steps is not None:
            status.total = job.config.train_steps
        status.result = read_optional_json(job.result)
        failure = self._failures.get(job.name)
        if failure is not None:
            status.state, status.note = "failed", failure
        elif status.result is not None:
            status.state, status.scores = "finished", status.result
            status.step = int(status.result.get("step", status.step))
            status.total = status.step or status.total
        elif executor_state is not None:
            status.state = executor_state
        elif status.attempt is None:
            status.state = "ready"
        else:
            failure = status.attempt.why_failed
            status.state, status.note = ("failed", failure) if failure else ("stopped", "")
        return status

    def _check_needs(self, status: JobStatus) -> None:
        """Marks a job as waiting or blocked if the jobs that it needs are not finished."""
        job, needs = status.job, [self.jobs[name] for name in status.job.needs]
        unmet = [other for other in needs if other.state != "finished"]
        if job.job.selection is not None and job.is_final_run:
            selection = self.plan.selections[job.job.selection]
            skip = selection.on_failed == "skip"
            unmet = [
                other
                for other in unmet
                if other.job.name not in selection.candidate_jobs
                or (job.awaits_selection and not (skip and _is_lost(other)))
            ]
        lost = [repr(other.job.name) for other in unmet if _is_lost(other)]
        if lost:
            status.state, status.note = "blocked", f"needs failed {first_few(lost, 2)}"
        elif unmet:
            names = first_few([other.job.name for other in unmet], 1)
            status.state, status.note = "waiting", f"needs {names}"
        elif job.awaits_selection:
            status.state, status.note = "waiting", "needs the selection"

    def _decide(self, name: str) -> bool:
        """Makes a selection if all its candidates are ready; returns whether it made one."""
        selection = self.plan.selections[name]
        candidates = [self.jobs[candidate] for candidate in selection.candidate_jobs]
        skip = selection.on_failed == "skip"
        finals = [self.plan.jobs[final] for final in selection.final_names]
        if not any(
            job.awaits_selection and job.name not in self._failures for job in finals
        ) or not all(c.result is not None or (skip and _is_lost(c)) for c in candidates):
            return False
        try:
            choice = select_best(selection, [(c.job.name, c.result) for c in candidates])
        except SweepError as error:
            self._failures |= dict.fromkeys(selection.final_names, str(error))
            self.say(str(error))
            return True
        self.plan.apply_choice(name, choice)
        score = f"{choice['metric']} {choice['score']:.4f}"
        self.say(f"{name}: selected {choice['chosen']} of {len(candidates)} by {score}")
        for final in selection.final_names:
            self.jobs[final].job = self.plan.jobs[final]
            changes = changed_settings(self.plan.jobs[final])
            if changes is not None:  # It was started when another candidate was selected.
                self._failures[final] = f"was started with other settings ({changes})"
        return True


def _is_lost(status: JobStatus) -> bool:
    return status.state in ("failed", "blocked")


def _check_same_sweep(plan: Plan) -> None:
    """Checks that the folder does not belong to another sweep, one that has no job of this one.

    Jobs may be added to a sweep file or removed from it between two launches.
    """
    known = read_optional_json(plan.folder / "sweep.json") or {}
    names = {job["name"] for job in known.get("jobs", ())}
    if names and known.get("sweep") != plan.sweep.spec and names.isdisjoint(plan.jobs):
        raise SweepError(
            f"sweep folder {plan.folder} belongs to {known.get('sweep')}, which shares no job with"
            f" {plan.sweep.spec}",
            "one folder per sweep",
            "choose another --workdir, or remove this one",
        )


def _check_unchanged(job: PlannedJob) -> None:
    changes = None if job.awaits_selection else changed_settings(job)
    if changes is not None:
        state = "is finished" if job.result.exists() else "was started"
        raise SweepError(
            f"job {job.name!r} {state} with other settings than the sweep file has now ({changes})",
            "the settings that it was started with",
            f"undo the change, rename the job, or remove {job.folder} to run it again",
        )
