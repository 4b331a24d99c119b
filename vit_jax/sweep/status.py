"""The status of every job of a sweep, read from its folder."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.config.run import Config
from vit_jax.errors import SweepError, UserError, first_few
from vit_jax.files import write_json
from vit_jax.schema import differences
from vit_jax.sweep.job_folder import read_attempt, read_optional_json
from vit_jax.sweep.plan import Plan, PlannedJob
from vit_jax.sweep.selection import select_best
from vit_jax.sweep.sweep_file import Selection

# In order of priority for a short table. "stopped": will be resumed; "waiting": needs other jobs
# to finish first; "blocked": a job that it needs has failed.
STATES = ("failed", "running", "queued", "ready", "stopped", "waiting", "blocked", "finished")
_LOST = ("failed", "blocked")
_RUN_FILES = ("result.json", "metrics.jsonl", "checkpoints")


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
        self.jobs: dict[str, JobStatus] = {}
        # Why final runs cannot be run.
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
        for name in self.plan.jobs:  # Each comes after the jobs that it needs.
            selection = self.plan.jobs[name].awaited_selection
            if selection is not None and name not in self._failures:
                self._select(selection)
            job, known = self.plan.jobs[name], self.jobs.get(name)
            if known is None or known.state != "finished" or known.job is not job:
                self.jobs[name] = self._read(job, running.get(name))

    def write_record(self, job: PlannedJob) -> None:
        """Writes job.json unless it has this content already."""
        record = job.record(self.plan.sweep.spec)
        if read_optional_json(job.folder / "job.json") != record:
            write_json(job.folder / "job.json", record)

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
        write_json(self.plan.folder / "sweep.json", content)
        for status in self.jobs.values():
            if status.state == "finished":
                self.write_record(status.job)

    def _read(self, job: PlannedJob, executor_state: str | None) -> JobStatus:
        if job.name in self._failures:
            return JobStatus(job, "failed", self._failures[job.name])
        if executor_state is not None:  # Even with a result, it keeps its devices until it ends.
            return JobStatus(job, executor_state)
        result = read_optional_json(job.result)
        if result is not None:
            return JobStatus(job, "finished", result=result)
        attempt = read_attempt(job.folder)
        if attempt is not None and attempt.why_failed is not None:
            return JobStatus(job, "failed", attempt.why_failed)
        unmet = [need for need in job.needs if self.jobs[need].state != "finished"]
        if job.final_of is not None and job.final_of.on_failed == "skip":
            candidates = job.final_of.candidate_jobs
            unmet = [n for n in unmet if n not in candidates or self.jobs[n].state not in _LOST]
        lost = [repr(need) for need in unmet if self.jobs[need].state in _LOST]
        if lost:
            return JobStatus(job, "blocked", f"needs failed {first_few(lost, 2)}")
        if unmet:
            return JobStatus(job, "waiting", f"needs {first_few(unmet, 1)}")
        return JobStatus(job, "ready" if attempt is None else "stopped")

    def _select(self, selection: Selection) -> None:
        """Makes a selection if all its candidates have ended."""
        candidates = [self.jobs[name] for name in selection.candidate_jobs]
        ended = ("finished", *_LOST) if selection.on_failed == "skip" else ("finished",)
        if any(candidate.state not in ended for candidate in candidates):
            return
        try:
            choice = select_best(selection, [(c.name, c.result) for c in candidates])
        except SweepError as error:
            self._failures |= dict.fromkeys(selection.final_names, str(error))
            self.say(str(error))
            return
        self.plan.apply_choice(selection, choice)
        score = f"{choice['metric']} {choice['score']:.4f}"
        self.say(f"{selection.name}: selected {choice['chosen']} of {len(candidates)} by {score}")
        for name in selection.final_names:
            changes = changed_settings(self.plan.jobs[name])
            if changes is not None:  # It was started when another candidate was selected.
                self._failures[name] = f"was started with other settings ({changes})"


def changed_settings(job: PlannedJob) -> str | None:
    """Returns how a job's settings differ from those it was started with.

    None: they are the same, or the job has not started. Folders of earlier versions record only the
    overrides, not the settings of the config file.
    """
    if not any((job.folder / name).exists() for name in _RUN_FILES):
        return None
    before, now = read_optional_json(job.folder / "job.json") or {}, job.record("")
    if job.config is not None and before.get("settings"):
        try:
            rows = differences(Config.from_mapping(before["settings"]), job.config)
        except UserError:  # Another version of the program has written them.
            rows = []
    else:
        keys = [key for key in ("command", "config", "overrides", "arguments") if key in before]
        rows = [(key, before[key], now[key]) for key in keys if before[key] != now[key]]
    return first_few([f"{key}: {a!r} before, {b!r} now" for key, a, b in rows], 3, "; ") or None


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
    changes = None if job.awaited_selection else changed_settings(job)
    if changes is not None:
        state = "is finished" if job.result.exists() else "was started"
        raise SweepError(
            f"job {job.name!r} {state} with other settings than the sweep file has now ({changes})",
            "the settings that it was started with",
            f"undo the change, rename the job, or remove {job.folder} to run it again",
        )
