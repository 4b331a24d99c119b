"""What a report says of its runs beside scores: settings, choices, hardware, what is missing."""

import dataclasses
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from vit_jax.report.fields import Fields, differing_settings
from vit_jax.report.lineage import effort_fields, started_from
from vit_jax.report.runs import Found, Run, natural, shown_path
from vit_jax.report.words import show


@dataclasses.dataclass(frozen=True)
class Choice:
    """How the setting of some final runs was chosen.

    Attributes:
        labels: of these runs, where all have the same.
        metric: by which was chosen.
        split: on which; "": the metric does not say.
        mode: "max" or "min".
        chosen: name of the run that won, without what all names begin with.
        score: its figure.
        candidates: (name, figure) of all.
        runs: names of the final runs.
        seeds: their seeds.
        unfair: whether the same split is reported.
    """

    labels: dict[str, Any]
    metric: str
    split: str
    mode: str
    chosen: str
    score: float | None
    candidates: list[tuple[str, float | None]]
    runs: list[str]
    seeds: list[Any]
    unfair: bool


def choices(runs: Sequence[Run], reported_metrics: Sequence[str]) -> list[Choice]:
    """Returns the choices that final runs rest on, runs of the same choice together."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.job.get("selection"):
            groups[repr(run.job["selection"])].append(run)
    shown = {m.split("/")[1] for m in reported_metrics if m.startswith("eval/")}
    found = []
    for members in groups.values():
        made = members[0].job["selection"]
        metric = str(made.get("metric", ""))
        split = metric.split("/")[1] if metric.count("/") > 1 else ""
        candidates = [(str(name), score) for name, score in made.get("candidates") or []]
        # What all names begin with says nothing of the choice.
        folders = [name.rpartition("/")[0] for name, _ in candidates]
        common = len(os.path.commonpath(folders)) + 1 if all(folders) and folders else 0
        labels = {
            k: v for k, v in members[0].labels.items()
            if k != "seed" and all(m.labels.get(k) == v for m in members)
        }  # fmt: skip
        found.append(
            Choice(
                labels, metric, split, str(made.get("mode", "max")),
                str(made.get("chosen", ""))[common:], made.get("score"),
                [(name[common:], score) for name, score in candidates],
                [m.name for m in members], sorted((m.seed for m in members), key=natural),
                split in shown,
            )
        )  # fmt: skip
    return found


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What some runs ran on."""

    device: str
    runs: int
    hours: float
    revisions: list[str]
    jax: list[str]


def hardware(runs: Sequence[Run]) -> list[Hardware]:
    """Returns the kinds of machines, with the hours of the runs that ran on each."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.state != "not started":
            groups[run.device or "not said"].append(run)
    return [
        Hardware(
            device, len(members), sum(r.wall_time_s or 0 for r in members) / 3600,
            sorted({short_revision(r) for r in members} - {""}),
            sorted({str(r.environment.get("packages", {}).get("jax", "")) for r in members} - {""}),
        )
        for device, members in sorted(groups.items())
    ]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Missing:
    """A run without a result.

    Attributes:
        name: of the run.
        state: how far it is.
        progress: steps made, of how many.
        why: what is known of the reason.
        log: the last lines that it printed.
        path: its folder, or where it would be.
    """

    name: str
    state: str
    progress: str
    why: str
    log: list[str]
    path: str


def missing(found: Found) -> list[Missing]:
    """Returns the runs that have no result, and the jobs of sweeps that have no folder yet."""
    gone = []
    for run in found.runs:
        if run.finished:
            continue
        total = run.config.get("train_steps")
        progress = "" if run.step is None else f"{run.step:,}" + (f" of {total:,}" if total else "")
        diverged = sorted(run.path.glob("report/divergence-*.txt"))
        reasons = [*run.problems, *(f"see report/{p.name}" for p in diverged)]
        if run.attempt.get("failure"):
            reasons.append(str(run.attempt["failure"]))
        elif run.attempt.get("exit_code"):
            reasons.append(f"exit code {run.attempt['exit_code']}")
        log = run.log_end() if run.state in ("failed", "diverged") else []
        errors = [line for line in log if line.startswith("error: ")]
        reasons += errors[-1:] or log[-1:]
        why = "; ".join(reasons)
        gone.append(
            Missing(run.name, run.state, progress, why, log, shown_path(run.path, found.runs))
        )
    for folder, sweep in found.sweeps.items():
        known = {run.path.resolve() for run in found.runs}
        for name in _job_names(sweep.get("jobs")):
            path = folder / "jobs" / name
            asked = any(root in (path, *path.parents) for root in found.roots)
            if asked and path.resolve() not in known and not path.exists():
                gone.append(Missing(name, "not started", "", "", [], shown_path(path, found.runs)))
    return gone


def _job_names(jobs: Any) -> list[str]:
    """Returns the names in a sweep.json's list of names, of dicts with a name, or dict by name."""
    items = jobs if isinstance(jobs, (list, dict)) else []
    names = [item.get("name") if isinstance(item, dict) else item for item in items]
    return [name for name in names if isinstance(name, str)]


def run_rows(fields: Fields) -> list[dict[str, Any]]:
    """Returns a row for each run: who it is, what differs, what came out; for CSV."""
    runs = fields.runs
    labels = sorted({name for run in runs for name in run.labels})
    settings = differing_settings(runs)
    figures = sorted({name for run in runs for name in run.figures}, key=natural)
    taken = {"step", "wall_time_s", "parameters", "train_examples", "examples_seen",
             "train_exaflops"}  # fmt: skip
    rows = []
    for run in runs:
        effort = fields.efforts[run.path]
        rows.append(
            {
                "name": run.name,
                "state": run.state,
                "stage": run.stage,
                **{f"label.{name}": run.labels.get(name) for name in labels},
                "model": fields.of(run, "model"),
                "dataset": fields.of(run, "dataset"),
                "seed": run.seed,
                "init_from": shown_path(origin, runs) if (origin := started_from(run)) else None,
                **{key: run.config.get(key) for key in settings},
                **{name: run.figures.get(name) for name in figures if name not in taken},
                "step": run.step,
                "wall_time_s": run.wall_time_s,
                "parameters": run.figures.get("parameters"),
                **effort_fields(effort),
                "device": run.device,
                "git_revision": run.environment.get("git_revision"),
                "folder": shown_path(run.path, runs),
                "notes": "; ".join([*run.problems, *filter(None, [effort.note])]),
            }
        )
    return rows


def short_revision(run: Run) -> str:
    """Returns the first signs of a run's git revision, and whether there were changes."""
    revision = run.environment.get("git_revision") or ""
    first, _, dirty = revision.partition("-")
    return first[:10] + (f"-{dirty}" if dirty else "")


def words_of(labels: dict[str, Any]) -> str:
    """Returns labels in one line."""
    return ", ".join(f"{show(value)}" for value in labels.values())
