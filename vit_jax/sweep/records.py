"""sweep.json and job.json: what a sweep runs, and checks that it runs the same as before."""

from typing import Any

from vit_jax.config.run import Config
from vit_jax.errors import SweepError, UserError, first_few
from vit_jax.schema import differences
from vit_jax.storage.files import write_json
from vit_jax.sweep.job_folder import read_optional_json
from vit_jax.sweep.plan import Plan, PlannedJob

_RUN_FILES = ("result.json", "metrics.jsonl", "checkpoints")


def write_sweep(plan: Plan, **details: Any) -> None:
    """Writes sweep.json with `details`, and job.json of finished jobs: labels may have changed."""
    jobs = [
        {"name": name, "stage": job.job.stage, "needs": list(job.needs)}
        for name, job in plan.jobs.items()
    ]
    content = {"sweep": plan.sweep.spec, **details, "report": plan.sweep.report, "jobs": jobs}
    write_json(plan.folder / "sweep.json", content)
    for job in plan.jobs.values():
        if job.result.exists() and not job.awaited_selection:
            write_record(plan, job)


def write_record(plan: Plan, job: PlannedJob) -> None:
    """Writes job.json unless it has this content already."""
    record = job.record(plan.sweep.spec)
    if read_optional_json(job.folder / "job.json") != record:
        write_json(job.folder / "job.json", record)


def check_folder(plan: Plan) -> None:
    """Checks that the folder of a sweep holds the same sweep, and its jobs the same settings.

    Jobs may be added to a sweep file or removed from it between two launches.

    Raises:
        SweepError: the folder belongs to a sweep that has no job of this one, or a job in it was
            started with other settings.
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
    for job in plan.jobs.values():
        changes = None if job.awaited_selection else changed_settings(job)
        if changes is not None:
            state = "is finished" if job.result.exists() else "was started"
            raise SweepError(
                f"job {job.name!r} {state} with other settings than the sweep file has now"
                f" ({changes})",
                "the settings that it was started with",
                f"undo the change, rename the job, or remove {job.folder} to run it again",
            )


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
