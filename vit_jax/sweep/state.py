"""The state of a sweep: its folder, with sweep.json and a folder for each job.

A job's folder holds job.json (its settings), the files of its run, and the record of its latest
start; see `vit_jax.run.job_folder`.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vit_jax.config.data import DataConfig
from vit_jax.config.run import Config
from vit_jax.errors import RunFolderError, SweepError, UserError, first_few
from vit_jax.run.environment import (
    append_environment,
    check_code,
    code_environment,
    read_environments,
)
from vit_jax.run.find import SUPERSEDED
from vit_jax.run.job_folder import (
    Attempt,
    edges_of_grid,
    is_running,
    read_all,
    read_attempt,
    read_optional_json,
)
from vit_jax.run.result import read_result
from vit_jax.schema import differences
from vit_jax.storage.files import move_tree, write_json
from vit_jax.sweep.plan import Plan, PlannedJob
from vit_jax.sweep.selection import Selection, select_best

log = logging.getLogger(__name__)

# In order of priority for a short table. "stopped": will be resumed; "waiting": needs other jobs
# to finish first; "blocked": a job that it needs has failed, or one with the same data section
# because of its data.
STATES = ("failed", "running", "queued", "ready", "stopped", "waiting", "blocked", "finished")
_LOST = ("failed", "blocked")
# A job whose folder has one of these has been started.
_RUN_FILES = ("result.json", "metrics.jsonl", "checkpoints")


@dataclasses.dataclass(frozen=True)
class JobStatus:
    """Status of one job."""

    job: PlannedJob
    state: str  # one of STATES
    note: str = ""  # why it has failed or waits
    result: dict[str, Any] | None = None  # content of result.json; None: not finished
    attempt: Attempt | None = None  # its latest start; None: it was never started, or is running

    @property
    def name(self) -> str:
        return self.job.name


def open_sweep(plan: Plan, say: Callable[[str], None], **details: Any) -> dict[str, JobStatus]:
    """Checks that the folder holds this sweep, reads its state and writes sweep.json.

    Jobs may be added to a sweep file or removed from it between two launches. Finished jobs get a
    new job.json, because their labels may have changed. If jobs are left, code and packages must be
    those of the launch before, or `plan.new_code`. `details` are further content of sweep.json.
    """
    path, spec = plan.folder / "sweep.json", plan.sweep.spec
    before = read_optional_json(path) or {}
    names = {job["name"] for job in before.get("jobs", ())}
    if names and before.get("sweep") != spec and names.isdisjoint(plan.jobs):
        raise SweepError(
            f"sweep folder {plan.folder} belongs to {before.get('sweep')}, which shares no job with"
            f" {spec}",
            "one folder per sweep",
            "choose another --workdir, or remove this one",
        )
    started = [job for job in plan.jobs.values() if not job.awaited_selection]
    for job, changes in zip(started, read_all(changed_settings, started), strict=True):
        if changes is not None:
            state = "is finished" if job.result.exists() else "was started"
            raise SweepError(
                f"job {job.name!r} {state} with other settings than the sweep file has now"
                f" ({changes})",
                "the settings that it was started with",
                f"undo the change, rename the job, or remove {job.folder} to run it again",
            )
    found = read_state(plan, {}, {}, say)
    finished = [job for name, job in plan.jobs.items() if found[name].result is not None]
    if len(finished) < len(plan.jobs):
        what = f"sweep folder {plan.folder}"
        now, begun = code_environment(), names or read_environments(plan.folder)
        changes = check_code(what, plan.folder, now, new_code=plan.new_code) if begun else []
        append_environment(plan.folder, now, step=len(finished), changes=changes)
    jobs = [
        {"name": name, "stage": job.job.stage, "needs": list(job.needs)}
        for name, job in plan.jobs.items()
    ]
    write_json(path, {"sweep": spec, **details, "report": plan.sweep.report, "jobs": jobs})
    known = [job for job in finished if not job.awaited_selection]
    read_all(lambda job: write_record(plan, job), known)
    return found


def write_record(plan: Plan, job: PlannedJob) -> None:
    """Writes job.json unless it has this content already."""
    record = job.record(plan.sweep.spec)
    if read_optional_json(job.folder / "job.json") != record:
        write_json(job.folder / "job.json", record)


def changed_settings(job: PlannedJob) -> str | None:
    """Returns how a job's settings differ from those it was started with.

    None: they are the same, or the job has not started.
    """
    if not _was_started(job):
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


def read_state(
    plan: Plan,
    running: Mapping[str, str],
    known: Mapping[str, JobStatus],
    say: Callable[[str], None],
) -> dict[str, JobStatus]:
    """Returns name -> status of all jobs, and makes each selection whose candidates have ended.

    A selection sets the settings of its final runs in the plan. Final runs with the settings of an
    earlier selection are moved out of the way. `running` maps names to "running" or "queued".
    `known` is what the last call returned, without jobs that have ended since: the
    files of a job are read again only if it was running then. `say` shows a line to the user.
    """
    known = {name: job for name, job in known.items() if job.state not in ("running", "queued")}
    unread = [job for name, job in plan.jobs.items() if not (name in running or name in known)]
    files = dict(zip([job.name for job in unread], read_all(_read_files, unread), strict=True))
    files |= {name: (job.result, job.attempt) for name, job in known.items()}
    broken = broken_data(plan, files)
    found: dict[str, JobStatus] = {}
    for name in plan.jobs:  # Each comes after the jobs that it needs.
        selection = plan.jobs[name].awaited_selection
        if selection is not None:
            files |= dict.fromkeys(_select(plan, selection, found, say), (None, None))
        job, state = plan.jobs[name], running.get(name)
        if job.problem is not None:
            found[name] = JobStatus(job, "failed", job.problem)
        elif state is not None:  # Even with a result, it keeps its devices until it ends.
            found[name] = JobStatus(job, state)
        else:
            status = _status(job, *files[name], found)
            other = broken.get(job.config.data) if job.config is not None else None
            if other is not None and status.state in ("ready", "stopped"):
                status = JobStatus(job, "blocked", f"has the data that ended {other!r}")
            found[name] = dataclasses.replace(status, attempt=files[name][1])
    return found


def broken_data(
    plan: Plan, files: Mapping[str, tuple[dict[str, Any] | None, Attempt | None]]
) -> dict[DataConfig, str]:
    """Returns the data sections that have ended a job with an error, and the job's name."""
    broken: dict[DataConfig, str] = {}
    for name, (result, attempt) in files.items():
        config = plan.jobs[name].config
        if config is None or result is not None or attempt is None:
            continue
        if attempt.why_failed is not None and attempt.data_error is not None:
            broken[config.data] = name
    return broken


def _read_files(job: PlannedJob) -> tuple[dict[str, Any] | None, Attempt | None]:
    try:
        result = read_result(job.folder)
    except RunFolderError as error:
        log.warning("%s: the job counts as unfinished; %s", error.got, error.fix)
        result = None
    return result, read_attempt(job.folder)


def _status(
    job: PlannedJob,
    result: dict[str, Any] | None,
    attempt: Attempt | None,
    found: Mapping[str, JobStatus],
) -> JobStatus:
    """Returns the status of a job that does not run, given that of the jobs that it needs."""
    if result is not None:
        return JobStatus(job, "finished", result=result)
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
) -> list[str]:
    """Makes a selection if all its candidates have ended; returns the names of superseded jobs.

    It waits for superseded jobs that are still running.
    """
    candidates = [found[name] for name in selection.candidate_jobs]
    ended = ("finished", "failed") if selection.on_failed == "skip" else ("finished",)
    for candidate in candidates:
        lost = any(found[need].state in _LOST for need in candidate.job.needs)
        skipped = lost and selection.on_failed == "skip"
        # A candidate that only waits for its data to be mended may still run.
        if candidate.state not in ended and not skipped:
            return []
    try:
        choice = select_best(selection, [(c.name, c.result) for c in candidates])
    except SweepError as error:
        say(str(error))
        for name in selection.final_names:
            plan.jobs[name] = dataclasses.replace(plan.jobs[name], problem=str(error))
        return []
    # Also of seeds that the selection had before.
    folders = (plan.folder / "jobs" / "final" / selection.name).glob("seed*")
    before = {int(f.name[4:]) for f in folders if f.name[4:].isdecimal()} - {*selection.seeds}
    jobs = plan.jobs_of_choice(selection, choice, (*selection.seeds, *sorted(before)))
    superseded = _superseded({**plan.jobs, **jobs}, jobs)
    if any(_may_be_running(plan.folder / "jobs" / name) for name in superseded):
        return []
    score = f"{choice['metric']} {choice['score']:.4f}"
    equal = sum(found == choice["score"] for _, found in choice["candidates"])
    tie = f", the first of {equal} with this score" if equal > 1 else ""
    say(f"{selection.name}: selected {choice['chosen']} of {len(candidates)} by {score}{tie}")
    names = [] if tie else [candidate.name for candidate in candidates]
    for edge in edges_of_grid(choice["chosen"], names):
        say(f"{selection.name}: {edge} values that were tried; try one beyond it")
    plan.jobs.update({name: jobs[name] for name in selection.final_names})
    for name in selection.final_names:  # Reports read the candidates there.
        if name not in superseded and _was_started(jobs[name]):
            write_record(plan, jobs[name])
    for name, why in superseded.items():
        target = _unused(plan.folder / SUPERSEDED / name)
        again = " and run again" if name in plan.jobs else ""
        say(f"{name}: {why}; it is kept as {target.relative_to(plan.folder)}{again}")
        move_tree(plan.folder / "jobs" / name, target, last="job.json")
    return [*superseded]


def _superseded(jobs: Mapping[str, PlannedJob], finals: Mapping[str, PlannedJob]) -> dict[str, str]:
    """Returns which final runs have other settings than now, and which jobs used them, and why.

    Each of the `jobs` comes after those that it needs.
    """
    found: dict[str, str] = {}
    for name, job in jobs.items():
        changes = changed_settings(job) if name in finals else None
        used = [need for need in job.needs if need in found]
        if changes is not None:
            before = (read_optional_json(job.folder / "job.json") or {}).get("selection") or {}
            same = job.choice is not None and before.get("chosen") == job.choice["chosen"]
            what = "was started with other settings" if same else "was of an earlier selection"
            found[name] = f"{what} ({changes})"
        elif used and _was_started(job):
            found[name] = f"used {used[0]}"
    return found


def _may_be_running(folder: Path) -> bool:
    attempt = read_attempt(folder)
    return is_running(folder) or (attempt is not None and attempt.may_be_running)


def _was_started(job: PlannedJob) -> bool:
    return any((job.folder / name).exists() for name in _RUN_FILES)


def _unused(path: Path) -> Path:
    """Returns the path, or the first of path-2, path-3, ... that does not exist."""
    names = (path.name, *(f"{path.name}-{n}" for n in range(2, 10_000)))
    return next(one for one in map(path.with_name, names) if not one.exists())
