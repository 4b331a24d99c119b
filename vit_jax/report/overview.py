"""Tables about the runs themselves: settings, selections, missing runs, hardware."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from vit_jax.report.frame import differing_settings, unknown_pretraining
from vit_jax.report.labels import format_value, natural_key
from vit_jax.report.runs import Run, Runs
from vit_jax.report.tables import Cell, Table, table_of

# Largest number of differing settings and of metrics on the HTML page; runs.csv has all.
_MAX_SETTINGS, _MAX_METRICS = 8, 6
# Metrics that come after all others in runs.csv.
_LAST = ("step", "wall_time_s", "parameters", "train_examples", "examples_seen", "train_exaflops",
         "pretrain_examples", "pretrain_exaflops")  # fmt: skip


def runs_csv(found: Runs, frame: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per run: its labels, the settings that differ, and all its metrics."""
    runs = found.runs
    settings = differing_settings(runs)
    labels = sorted({name for run in runs for name in run.labels})
    metrics = sorted({name for run in runs for name in run.figures} - {*_LAST}, key=natural_key)
    rows = []
    for run, row in zip(frame.index, frame.to_dict("records"), strict=True):
        rows.append(
            {
                "name": run.name,
                "state": run.state,
                "stage": run.stage,
                **{f"label.{name}": run.labels.get(name) for name in labels},
                **{name: row[name] for name in ("model", "dataset")},
                "seed": run.seed,
                "init_from": run.init_from and found.shown_path(run.init_from),
                **{key: run.config.get(key) for key in settings},
                **{name: run.figures.get(name) for name in metrics},
                **{name: row.get(name) for name in _LAST},
                "device": run.device,
                "git_revision": run.revision,
                "folder": found.shown_path(run.path),
                "notes": "; ".join(filter(None, [*run.problems, unknown_pretraining(run)])),
            }
        )
    return pd.DataFrame(rows, dtype=object)


def all_runs_table(runs: Iterable[Run], csv: pd.DataFrame, scores: Iterable[Table]) -> Table | None:
    """Returns the table of all runs on the HTML page: runs.csv without most of its columns."""
    overridden = {key for run in runs for key in run.job.get("overrides") or {}}
    settings = [k for k in differing_settings(runs) if not overridden or k in overridden]
    selected_by = [(run.job.get("selection") or {}).get("metric") for run in runs]
    names = [str(name) for name in csv]
    accuracies = sorted(name for name in names if name.endswith("/accuracy_top1"))
    metrics = dict.fromkeys([*(table.metric for table in scores), *selected_by, *accuracies])
    shown = [
        "name",
        "state",
        "stage",
        *([name for name in names if name.startswith("label.")] or ["model", "dataset"]),
        "seed",
        *settings[:_MAX_SETTINGS],
        *[name for name in metrics if name in names][:_MAX_METRICS],
        "step",
        "wall_time_s",
        "device",
        "git_revision",
        "notes",
    ]
    frame = csv[[*dict.fromkeys(shown)]]
    frame = frame.loc[:, frame.map(lambda value: format_value(value) != "").any()]
    return table_of("All runs", frame.rename(columns=lambda name: name.removeprefix("label.")))


def selections_table(runs: Iterable[Run], scores: Iterable[Table]) -> Table | None:
    """Returns how the settings of final runs were selected, one row per selection."""
    reported = {table.metric.split("/")[1] for table in scores if table.metric.startswith("eval/")}
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.job.get("selection"):
            groups[repr(run.job["selection"])].append(run)
    rows = [_selection(members, reported) for members in groups.values()]
    return table_of("Selected settings", pd.DataFrame(rows))


def _selection(runs: Sequence[Run], reported: set[str]) -> dict[str, str]:
    selection, labels = runs[0].job["selection"], runs[0].labels
    metric = str(selection.get("metric", ""))
    split = metric.split("/")[1] if metric.count("/") > 1 else ""
    scores = {str(name): format_value(score) for name, score in selection.get("candidates") or []}
    # The folder that all candidates share says nothing about the selection.
    folders = [name.rpartition("/")[0] for name in scores]
    start = len(os.path.commonpath(folders)) + 1 if folders and all(folders) else 0
    shared = {n for n in labels if all(run.labels.get(n) == labels[n] for run in runs)} - {"seed"}
    return {
        "final runs": ", ".join(format_value(labels[name]) for name in labels if name in shared),
        "selection split": split + (" (also reported!)" if split in reported else ""),
        "metric": metric,
        "selected": str(selection.get("chosen", ""))[start:],
        "score": format_value(selection.get("score")),
        "candidates": ", ".join(f"{name[start:]} {score}" for name, score in scores.items()),
        "seeds": ", ".join(map(format_value, sorted((run.seed for run in runs), key=natural_key))),
    }


def missing_table(found: Runs) -> Table | None:
    """Returns the runs without a result, and the jobs of sweeps that have no folder yet."""
    rows = [_missing(run) for run in found.runs if not run.finished]
    rows += [
        {"run": name, "state": "not started", "step": "", "why": ""}
        for name in _jobs_without_folder(found)
    ]
    return table_of("Runs without a result", pd.DataFrame(rows))


def _missing(run: Run) -> dict[str, Any]:
    total, exit_code = run.config.get("train_steps"), run.attempt.get("exit_code")
    log = run.log_tail() if run.state in ("failed", "diverged") else []
    reasons = [
        *run.problems,
        *(f"see report/{path.name}" for path in run.divergence_reports),
        run.attempt.get("failure") or (f"exit code {exit_code}" if exit_code else ""),
        *([line for line in log if line.startswith("error: ")] or log)[-1:],
    ]
    progress = "" if run.step is None else f"{run.step:,}" + (f" of {total:,}" if total else "")
    why = Cell("; ".join(filter(None, reasons)), detail="\n".join(log))
    return {"run": run.name, "state": run.state, "step": progress, "why": why}


def _jobs_without_folder(found: Runs) -> Iterator[str]:
    for folder, sweep in found.sweeps.items():
        for job in sweep.get("jobs") or []:
            name = str(job.get("name") if isinstance(job, dict) else job)
            path = folder / "jobs" / name
            if not path.exists() and any(root in (path, *path.parents) for root in found.roots):
                yield name


def hardware_table(runs: Iterable[Run]) -> Table | None:
    """Returns the kinds of devices, and the hours that runs took on each."""
    rows = [
        {
            "device": run.device or "unknown",
            "runs": 1,
            "hours": (run.wall_time_s or 0) / 3600,
            "git revision": _short_revision(run),
            "JAX": str(run.environment.get("packages", {}).get("jax", "")),
        }
        for run in runs
        if run.state != "not started"
    ]
    columns = {"runs": "sum", "hours": "sum", "git revision": _listed, "JAX": _listed}
    frame = pd.DataFrame(rows, columns=["device", *columns]).groupby("device").agg(columns)
    frame["hours"] = [Cell(f"{hours:.2f}", hours) for hours in frame["hours"]]
    return table_of("Hardware", frame.reset_index())


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(sorted({*texts} - {""}))


def _short_revision(run: Run) -> str:
    """Returns the first ten digits of the git revision, and a suffix if files were changed."""
    first, dash, changes = (run.revision or "").partition("-")
    return first[:10] + dash + changes
