"""The state of every job of a sweep, read from its folder."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.errors import SweepError, first_few
from vit_jax.sweep.job_folder import read_attempt, read_optional_json
from vit_jax.sweep.plan import Plan, PlannedJob
from vit_jax.sweep.records import changed_settings, check_folder, write_sweep
from vit_jax.sweep.selection import select_best
from vit_jax.sweep.sweep_file import Selection

# In order of priority for a short table. "stopped": will be resumed; "waiting": needs other jobs
# to finish first; "blocked": a job that it needs has failed.
STATES = ("failed", "running", "queued", "ready", "stopped", "waiting", "blocked", "finished")
_LOST = ("failed", "blocked")


@dataclasses.dataclass(frozen=True)
class JobStatus:
    """Status of one job.

    Attributes:
        job: as planned.
        state: one of STATES.
        note: why it has failed or waits.
        result: content of result.json; None: not finished.
    """

    job: PlannedJob
    state: str
    note: str = ""
    result: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.job.name


def open_sweep(plan: Plan, say: Callable[[str], None], **details: Any) -> dict[str, JobStatus]:
    """Checks the folder of a sweep, reads its status and writes sweep.json with `details`.

    Raises:
        SweepError: the folder holds another sweep, or jobs with other settings.
    """
    check_folder(plan)
    found = read_status(plan, {}, {}, say)
    write_sweep(plan, **details)
    return found


def read_status(
    plan: Plan,
    running: Mapping[str, str],
    known: Mapping[str, JobStatus],
    say: Callable[[str], None],
) -> dict[str, JobStatus]:
    """Returns name -> status of all jobs, and makes each selection whose candidates have ended.

    Args:
        plan: the jobs; a selection sets the settings of its final runs.
        running: name -> "running" or "queued".
        known: what the last call returned; finished jobs are not read again.
        say: shows a line to the user.
    """
    found: dict[str, JobStatus] = {}
    for name in plan.jobs:  # Each comes after the jobs that it needs.
        selection = plan.jobs[name].awaited_selection
        if selection is not None:
            _select(plan, selection, found, say)
        job, before = plan.jobs[name], known.get(name)
        if before is not None and before.state == "finished" and before.job is job:
            found[name] = before
        else:
            found[name] = _read(job, running.get(name), found)
    return found


def _read(job: PlannedJob, executor_state: str | None, found: Mapping[str, JobStatus]) -> JobStatus:
    """Returns the status of a job, given that of the jobs that it needs."""
    if job.problem is not None:
        return JobStatus(job, "failed", job.problem)
    if executor_state is not None:  # Even with a result, it keeps its devices until it ends.
        return JobStatus(job, executor_state)
    result = read_optional_json(job.result)
    if result is not None:
        return JobStatus(job, "finished", result=result)
    attempt = read_attempt(job.folder)
    if attempt is not None and attempt.why_failed is not None:
        return JobStatus(job, "failed", attempt.why_failed)
    unmet = [need for need in job.needs if found[need].state != "finished"]
    if job.final_of is not None and job.final_of.on_failed == "skip":
        candidates = job.final_of.candidate_jobs
        unmet = [need for need in unmet if need not in candidates or found[need].state not in _LOST]
    lost = [repr(need) for need in unmet if found[need].state in _LOST]
    if lost:
        return JobStatus(job, "blocked", f"needs failed {first_few(lost, 2)}")
    if unmet:
        return JobStatus(job, "waiting", f"needs {first_few(unmet, 1)}")
    return JobStatus(job, "ready" if attempt is None else "stopped")


def _select(
    plan: Plan, selection: Selection, found: Mapping[str, JobStatus], say: Callable[[str], None]
) -> None:
    """Makes a selection if all its candidates have ended."""
    candidates = [found[name] for name in selection.candidate_jobs]
    ended = ("finished", *_LOST) if selection.on_failed == "skip" else ("finished",)
    if any(candidate.state not in ended for candidate in candidates):
        return
    try:
        choice = select_best(selection, [(c.name, c.result) for c in candidates])
    except SweepError as error:
        say(str(error))
        for name in selection.final_names:
            plan.jobs[name] = dataclasses.replace(plan.jobs[name], problem=str(error))
        return
    score = f"{choice['metric']} {choice['score']:.4f}"
    say(f"{selection.name}: selected {choice['chosen']} of {len(candidates)} by {score}")
    plan.apply_choice(selection, choice)
    for name in selection.final_names:
        changes = changed_settings(plan.jobs[name])
        if changes is not None:  # It was started when another candidate was selected.
            problem = f"was started with other settings ({changes})"
            plan.jobs[name] = dataclasses.replace(plan.jobs[name], problem=problem)
