"""What a report says about the runs themselves: settings, selections, missing runs, hardware."""

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas as pd

from vit_jax.report.curves import main_score
from vit_jax.report.frame import COLUMNS, column, differing_settings, run_frame, unknown_lineage
from vit_jax.report.labels import is_number, natural, number_text, show, title_of
from vit_jax.report.runs import Run, Runs
from vit_jax.report.tables import Cell, Table

# The HTML page shows no more settings and scores of each run than this; runs.csv has all.
_MAX_SETTINGS, _MAX_SCORES = 8, 6
# In runs.csv these come after all other metrics.
_LAST_COLUMNS = ("step", "wall_time_s", "parameters", "train_examples", "examples_seen",
                 "train_exaflops", "pretrain_examples", "pretrain_exaflops")  # fmt: skip


def runs_csv(found: Runs) -> pd.DataFrame:
    """Returns a row a run: its labels, the settings that differ, and all its metrics."""
    runs = found.runs
    labels = sorted({name for run in runs for name in run.labels})
    settings = differing_settings(runs)
    metrics = sorted({name for run in runs for name in run.figures}, key=natural)
    rows = []
    for run, row in zip(runs, run_frame(runs).to_dict("records"), strict=True):
        notes = [*run.problems, unknown_lineage(run)]
        computed = run.figures | {n: COLUMNS[n](run) for n in _LAST_COLUMNS if n in COLUMNS}
        rows.append(
            {
                **{name: row[name] for name in ("name", "state", "stage")},
                **{f"label.{name}": run.labels.get(name) for name in labels},
                **{name: row.get(name) for name in ("model", "dataset")},
                "seed": run.seed,
                "init_from": run.init_from and found.shown_path(run.init_from),
                **{key: run.config.get(key) for key in settings},
                **{name: run.figures.get(name) for name in metrics if name not in _LAST_COLUMNS},
                **{name: computed.get(name) for name in _LAST_COLUMNS},
                "device": run.device,
                "git_revision": run.environment.get("git_revision"),
                "folder": found.shown_path(run.path),
                "notes": "; ".join(filter(None, notes)),
            }
        )
    return pd.DataFrame(rows, dtype=object)


def all_runs_table(found: Runs, frame: pd.DataFrame, scores: Sequence[Table]) -> Table:
    """Returns the table of all runs on the HTML page; its notes say what is left out."""
    labels = sorted({name for run in found.runs for name in run.labels} - {"seed"})
    labels = labels or ["model", "dataset"]
    stages = ["stage"] if any(run.stage for run in found.runs) else []
    settings, metrics = _settings(found.runs, frame, labels), _metrics(found.runs, scores)
    shown, shown_metrics = settings[:_MAX_SETTINGS], metrics[:_MAX_SCORES]
    header = ["run", "state", *stages, *labels, "seed", *shown, *map(title_of, shown_metrics),
              "steps", "minutes", "device", "git revision"]  # fmt: skip
    rows = []
    for run, row in zip(frame.index, frame.to_dict("records"), strict=True):
        minutes = None if run.wall_time_s is None else run.wall_time_s / 60
        rows.append(
            [
                Cell(run.name, detail=found.shown_path(run.path)),
                Cell(run.state, kind="state"),
                *(_cell(run.stage) for _ in stages),
                *(_cell(row.get(name)) for name in labels),
                _cell(run.seed),
                *(_cell(run.config.get(key)) for key in shown),
                *(_metric_cell(run, name) for name in shown_metrics),
                _cell(run.step),
                Cell("") if minutes is None else Cell(f"{minutes:.1f}", minutes),
                _cell(run.device),
                Cell(run.short_revision),
            ]
        )
    notes = [
        f"{len(names) - most} more {what} are in runs.csv." for names, most, what in
        ((settings, _MAX_SETTINGS, "settings"), (metrics, _MAX_SCORES, "metrics"))
        if len(names) > most
    ]  # fmt: skip
    reasons = [reason for run in found.runs if (reason := unknown_lineage(run))]
    notes += [f"{reason} ({reasons.count(reason)} runs)." for reason in sorted(set(reasons))]
    return Table("All runs", header, rows, notes)


def selections_table(runs: Sequence[Run], scores: Sequence[Table]) -> Table | None:
    """Returns how the settings of final runs were selected, one row a selection."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.job.get("selection"):
            groups[repr(run.job["selection"])].append(run)
    reported = {table.metric.split("/")[1] for table in scores if table.metric.startswith("eval/")}
    rows = []
    for members in groups.values():
        selection = members[0].job["selection"]
        metric = str(selection.get("metric", ""))
        split = metric.split("/")[1] if metric.count("/") > 1 else ""
        candidates = [(str(name), score) for name, score in selection.get("candidates") or []]
        # The folder that all candidates share says nothing about the selection.
        folders = [name.rpartition("/")[0] for name, _ in candidates]
        start = len(os.path.commonpath(folders)) + 1 if folders and all(folders) else 0
        labels = [
            show(value) for name, value in members[0].labels.items()
            if name != "seed" and all(run.labels.get(name) == value for run in members)
        ]  # fmt: skip
        seeds = sorted((run.seed for run in members), key=natural)
        texts = [
            ", ".join(labels),
            split + (" (also reported!)" if split in reported else ""),
            metric,
            str(selection.get("chosen", ""))[start:],
            show(selection.get("score")),
            ", ".join(f"{name[start:]} {show(score)}" for name, score in candidates),
            ", ".join(map(show, seeds)),
        ]
        rows.append([Cell(text) for text in texts])
    header = ["final runs", "selection split", "metric", "selected", "score", "candidates", "seeds"]
    return Table("Selected settings", header, rows) if rows else None


def missing_table(found: Runs) -> Table | None:
    """Returns the runs without a result, and the jobs of sweeps that have no folder yet."""
    rows = []
    for run in found.runs:
        if run.finished:
            continue
        total = run.config.get("train_steps")
        progress = "" if run.step is None else f"{run.step:,}" + (f" of {total:,}" if total else "")
        reasons = [*run.problems, *(f"see report/{path.name}" for path in run.divergence_reports)]
        if run.attempt.get("failure"):
            reasons.append(str(run.attempt["failure"]))
        elif run.attempt.get("exit_code"):
            reasons.append(f"exit code {run.attempt['exit_code']}")
        tail = run.log_tail() if run.state in ("failed", "diverged") else []
        errors = [line for line in tail if line.startswith("error: ")]
        reasons += errors[-1:] or tail[-1:]
        log = Cell("; ".join(reasons), detail="\n".join(tail))
        path = found.shown_path(run.path)
        rows.append([Cell(run.name, detail=path), Cell(run.state, kind="state"), Cell(progress), log])
    known = {run.path.resolve() for run in found.runs}
    for folder, sweep in found.sweeps.items():
        for name in _job_names(sweep.get("jobs")):
            path = folder / "jobs" / name
            searched = any(root in (path, *path.parents) for root in found.roots)
            if searched and path.resolve() not in known and not path.exists():
                first = Cell(name, detail=found.shown_path(path))
                rows.append([first, Cell("not started", kind="state"), Cell(""), Cell("")])
    return Table("Runs without a result", ["run", "state", "step", "why"], rows) if rows else None


def hardware_table(runs: Sequence[Run]) -> Table:
    """Returns the kinds of devices, and the hours of the runs on each."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.state != "not started":
            groups[run.device or "unknown"].append(run)
    rows = []
    for device, members in sorted(groups.items()):
        hours = sum(run.wall_time_s or 0 for run in members) / 3600
        versions = (str(r.environment.get("packages", {}).get("jax", "")) for r in members)
        rows.append(
            [
                Cell(device), Cell(str(len(members)), len(members)), Cell(f"{hours:.2f}", hours),
                Cell(", ".join(sorted({run.short_revision for run in members} - {""}))),
                Cell(", ".join(sorted({*versions} - {""}))),
            ]
        )  # fmt: skip
    return Table("Hardware", ["device", "runs", "hours", "git revision", "JAX"], rows)


def _settings(runs: Sequence[Run], frame: pd.DataFrame, labels: Sequence[str]) -> list[str]:
    """Returns the settings that differ and repeat no label; if sweeps set some, only those."""
    overridden = {key for run in runs for key in run.job.get("overrides") or {}}
    configured = frame.loc[[bool(run.config) for run in frame.index]]
    shown = [column(configured, name).map(show).tolist() for name in labels]
    return [
        key for key in differing_settings(runs)
        if (not overridden or key in overridden)
        and [show(run.config.get(key)) for run in configured.index] not in shown
    ]  # fmt: skip


def _metrics(runs: Sequence[Run], scores: Sequence[Table]) -> list[str]:
    """Returns the metrics that tables show or settings were selected by, then other scores."""
    names = {name for run in runs for name in run.figures}
    selected_by = [(run.job.get("selection") or {}).get("metric") for run in runs]
    first = [*(table.metric for table in scores), *selected_by, main_score(names)]
    others = sorted(name for name in names if name.endswith(("accuracy_top1", "/roc_auc")))
    return list(dict.fromkeys([*(name for name in first if name in names), *others]))


def _cell(value: Any) -> Cell:
    if isinstance(value, int) and is_number(value) and abs(value) >= 10_000:
        return Cell(f"{value:,}", value)
    return Cell(show(value), value if is_number(value) else show(value))


def _metric_cell(run: Run, name: str) -> Cell:
    value = run.figures.get(name)
    if value is None:
        return Cell("")
    return Cell(number_text(value, name), value, kind="" if run.finished else "latest")


def _job_names(jobs: Any) -> list[str]:
    """Returns the job names of a sweep.json: a list of names or of dicts, or a dict by name."""
    items = jobs if isinstance(jobs, (list, dict)) else []
    names = [item.get("name") if isinstance(item, dict) else item for item in items]
    return [name for name in names if isinstance(name, str)]
