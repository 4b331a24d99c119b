"""Tables about the runs themselves: settings, selections, missing runs, hardware."""

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas as pd

from vit_jax.report.frame import COLUMNS, differing_settings, run_frame, unknown_pretraining
from vit_jax.report.labels import format_value, is_number, natural_key
from vit_jax.report.runs import Run, Runs
from vit_jax.report.tables import Cell, Table

# Largest number of differing settings and of metrics on the HTML page; runs.csv has all.
_MAX_SETTINGS, _MAX_METRICS = 8, 6
# Metrics that come after all others in runs.csv.
_LAST = ("step", "wall_time_s", "parameters", "train_examples", "examples_seen", "train_exaflops",
         "pretrain_examples", "pretrain_exaflops")  # fmt: skip


def runs_csv(found: Runs) -> pd.DataFrame:
    """Returns one row per run: its labels, the settings that differ, and all its metrics."""
    runs = found.runs
    names = sorted({name for run in runs for name in run.labels})
    settings = differing_settings(runs)
    metrics = sorted({name for run in runs for name in run.figures} - {*_LAST}, key=natural_key)
    rows = []
    for run, row in zip(runs, run_frame(runs).to_dict("records"), strict=True):
        computed = {name: COLUMNS[name](run) for name in _LAST if name in COLUMNS}
        rows.append(
            {
                "name": run.name,
                "state": run.state,
                "stage": run.stage,
                **{f"label.{name}": run.labels.get(name) for name in names},
                **{name: row.get(name) for name in ("model", "dataset")},
                "seed": run.seed,
                "init_from": run.init_from and found.shown_path(run.init_from),
                **{key: run.config.get(key) for key in settings},
                **{name: run.figures.get(name) for name in metrics},
                **{name: {**run.figures, **computed}.get(name) for name in _LAST},
                "device": run.device,
                "git_revision": run.revision,
                "folder": found.shown_path(run.path),
                "notes": "; ".join(filter(None, [*run.problems, unknown_pretraining(run)])),
            }
        )
    return pd.DataFrame(rows, dtype=object)


def all_runs_table(found: Runs, scores: Sequence[Table]) -> Table:
    """Returns the table of all runs on the HTML page: runs.csv without most of its columns."""
    frame, runs = runs_csv(found), found.runs
    overridden = {key for run in runs for key in run.job.get("overrides") or {}}
    settings = [k for k in differing_settings(runs) if not overridden or k in overridden]
    selected_by = [(run.job.get("selection") or {}).get("metric") for run in runs]
    columns = [str(name) for name in frame]
    others = sorted(name for name in columns if name.endswith("/accuracy_top1"))
    metrics = [*dict.fromkeys([*(table.metric for table in scores), *selected_by, *others])]
    names = [name for name in columns if name.startswith("label.")] or ["model", "dataset"]
    shown = [
        "name",
        "state",
        "stage",
        *names,
        "seed",
        *settings[:_MAX_SETTINGS],
        *[n for n in metrics if n in frame][:_MAX_METRICS],
        "step",
        "wall_time_s",
        "device",
        "git_revision",
        "notes",
    ]
    shown = [n for n in dict.fromkeys(shown) if any(format_value(value) for value in frame[n])]
    rows = [
        [_cell(name, value) for name, value in zip(shown, row, strict=True)]
        for row in frame[shown].itertuples(index=False)
    ]
    return Table("All runs", [name.removeprefix("label.") for name in shown], rows)


def selections_table(runs: Sequence[Run], scores: Sequence[Table]) -> Table | None:
    """Returns how the settings of final runs were selected, one row per selection."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.job.get("selection"):
            groups[repr(run.job["selection"])].append(run)
    reported = {table.metric.split("/")[1] for table in scores if table.metric.startswith("eval/")}
    rows = []
    for members in groups.values():
        selection, first = members[0].job["selection"], members[0].labels
        metric = str(selection.get("metric", ""))
        split = metric.split("/")[1] if metric.count("/") > 1 else ""
        candidates = [
            (str(name), format_value(score)) for name, score in selection.get("candidates") or []
        ]
        # The folder that all candidates share says nothing about the selection.
        folders = [name.rpartition("/")[0] for name, _ in candidates]
        start = len(os.path.commonpath(folders)) + 1 if folders and all(folders) else 0
        shared = {n for n in first if all(run.labels.get(n) == first[n] for run in members)}
        texts = [
            ", ".join(format_value(value) for n, value in first.items() if n in shared - {"seed"}),
            split + (" (also reported!)" if split in reported else ""),
            metric,
            str(selection.get("chosen", ""))[start:],
            format_value(selection.get("score")),
            ", ".join(f"{name[start:]} {score}" for name, score in candidates),
            ", ".join(map(format_value, sorted((run.seed for run in members), key=natural_key))),
        ]
        rows.append([*map(Cell, texts)])
    header = ["final runs", "selection split", "metric", "selected", "score", "candidates", "seeds"]
    return Table("Selected settings", header, rows) if rows else None


def missing_table(found: Runs) -> Table | None:
    """Returns the runs without a result, and the jobs of sweeps that have no folder yet."""
    rows = []
    for run in found.runs:
        if not run.finished:
            total = run.config.get("train_steps")
            progress = "" if run.step is None else f"{run.step:,}"
            progress += f" of {total:,}" if progress and total else ""
            exit_code = run.attempt.get("exit_code")
            log = run.log_tail() if run.state in ("failed", "diverged") else []
            reasons = [
                *run.problems,
                *(f"see report/{path.name}" for path in run.divergence_reports),
                run.attempt.get("failure") or (f"exit code {exit_code}" if exit_code else ""),
                *([line for line in log if line.startswith("error: ")] or log)[-1:],
            ]
            why = Cell("; ".join(filter(None, reasons)), detail="\n".join(log))
            rows.append([Cell(run.name), Cell(run.state, kind="state"), Cell(progress), why])
    for folder, sweep in found.sweeps.items():
        jobs = sweep.get("jobs") or []
        for name in (job.get("name") if isinstance(job, dict) else job for job in jobs):
            path = folder / "jobs" / str(name)
            searched = any(root in (path, *path.parents) for root in found.roots)
            if searched and not path.exists():
                state = Cell("not started", kind="state")
                rows.append([Cell(str(name)), state, Cell(""), Cell("")])
    return Table("Runs without a result", ["run", "state", "step", "why"], rows) if rows else None


def hardware_table(runs: Sequence[Run]) -> Table:
    """Returns the kinds of devices, and the hours that runs took on each."""
    started = [run for run in runs if run.state != "not started"]
    rows = []
    for device in sorted({run.device or "unknown" for run in started}):
        members = [run for run in started if (run.device or "unknown") == device]
        hours = sum(run.wall_time_s or 0 for run in members) / 3600
        versions = {str(run.environment.get("packages", {}).get("jax", "")) for run in members}
        revisions = {short_revision(run) for run in members}
        texts = [", ".join(sorted(names - {""})) for names in (revisions, versions)]
        rows.append(
            [
                Cell(device),
                Cell(str(len(members)), len(members)),
                Cell(f"{hours:.2f}", hours),
                *map(Cell, texts),
            ]
        )
    return Table("Hardware", ["device", "runs", "hours", "git revision", "JAX"], rows)


def short_revision(run: Run) -> str:
    """Returns the first ten digits of the git revision, and a suffix if files were changed."""
    first, dash, changes = (run.revision or "").partition("-")
    return first[:10] + dash + changes


def _cell(name: str, value: Any) -> Cell:
    number = value if is_number(value) else None
    large = isinstance(number, int) and abs(number) >= 10_000
    return Cell(
        f"{value:,}" if large else format_value(value), number, "state" if name == "state" else ""
    )
