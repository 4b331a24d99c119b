"""Tables about the runs themselves: settings, selections, missing runs, hardware."""

import csv
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import pandas as pd

from vit_jax.evaluation.intervals import wilson_interval
from vit_jax.report.exit_codes import why_ended
from vit_jax.report.frame import differing_settings, text_column
from vit_jax.report.labels import format_value, natural_key
from vit_jax.report.run import Run
from vit_jax.report.runs import Runs
from vit_jax.report.tables import Cell, Table, table_of
from vit_jax.run.job_folder import edges_of_grid, last_log_lines
from vit_jax.run.metrics import split_of

log = logging.getLogger(__name__)

# Largest number of differing settings and of metrics on the HTML page; runs.csv has all.
_MAX_SETTINGS, _MAX_METRICS = 8, 6
_CONFUSION = "report/confusion-*.csv"
# Confusion matrices are shown of this many runs and classes at most.
_MAX_CONFUSED, _MAX_CLASSES = 4, 20
# Metrics that come after all others in runs.csv.
_LAST = ("step", "wall_time_s", "parameters", "train_examples", "examples_seen", "train_exaflops",
         "pretrain_examples", "pretrain_exaflops")  # fmt: skip


def runs_csv(found: Runs, frame: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per run: its labels, the settings that differ, and all its metrics."""
    settings = differing_settings(found.runs)
    labels = sorted({name for run in found.runs for name in run.labels})
    metrics = {name for run in found.runs for name in run.figures} - {*_LAST}
    rows = [
        {
            **{name: row[name] for name in ("name", "state", "stage")},
            **{f"label.{name}": run.labels.get(name) for name in labels},
            **{name: row[name] for name in ("model", "dataset")},
            "seed": run.seed,
            "init_from": run.init_from and found.shown_path(run.init_from),
            **{key: run.config.get(key) for key in settings},
            **{name: run.figures.get(name) for name in sorted(metrics, key=natural_key)},
            **{name: row.get(name) for name in _LAST},
            "device": run.device,
            "git_revision": run.revision,
            "folder": found.shown_path(run.path),
            "notes": "; ".join(
                filter(None, [*run.problems, run.unknown_pretraining, run.changed_code])
            ),
        }
        for run, row in zip(frame.index, frame.to_dict("records"), strict=True)
    ]
    return pd.DataFrame(rows, dtype=object)


def all_runs_table(frame: pd.DataFrame, csv: pd.DataFrame, scores: Iterable[Table]) -> Table:
    """Returns the table of all runs on the HTML page: runs.csv without most of its columns."""
    jobs = [run.job for run in frame.index]
    overridden = {key for job in jobs for key in job.get("overrides") or {}}
    settings = [k for k in differing_settings(frame.index) if not overridden or k in overridden]
    selected_by = [(job.get("selection") or {}).get("metric") for job in jobs]
    names = [str(name) for name in csv]
    accuracies = sorted(name for name in names if name.endswith("/accuracy_top1"))
    metrics = dict.fromkeys([*(table.metric for table in scores), *selected_by, *accuracies])
    shown = [
        *("name", "state", "stage"),
        *([name for name in names if name.startswith("label.")] or ["model", "dataset"]),
        "seed",
        *settings[:_MAX_SETTINGS],
        *[name for name in metrics if name in names][:_MAX_METRICS],
        *("step", "wall_time_s", "device", "git_revision", "notes"),
    ]
    used = csv[[*dict.fromkeys(shown)]]
    used = used.loc[:, used.map(lambda value: format_value(value) != "").any()]
    return table_of("All runs", used.rename(columns=lambda name: name.removeprefix("label.")))


def selections_table(found: Runs, frame: pd.DataFrame, scores: Iterable[Table]) -> Table:
    """Returns how the settings of final runs were selected, one row per selection."""
    reported = {split_of(table.metric) for table in scores}
    selections = frame.index.map(lambda run: repr(run.job.get("selection") or ""))
    groups = [group for _, group in frame.groupby(selections, sort=False)]
    selected = [group for group in groups if group.index[0].job.get("selection")]
    # Another sweep in the same report may have a selection of the same name.
    rows = [
        _selection(g, reported, _same_sweep(found, g.index[0]), _needs(found, g.index[0]))
        for g in selected
    ]
    return table_of("Selected settings", pd.DataFrame(rows))


def _selection(
    runs: pd.DataFrame, reported: Set[str | None], found: Iterable[Run], needs: Set[str]
) -> dict[str, str]:
    """Returns the row of a selection, given its final runs and the splits that are `reported`.

    If one of the runs `found` is a better candidate now, the row says so. `needs` are the jobs that
    the final runs wait for, its candidates among them; none: not known.
    """
    selection, labels = runs.index[0].job["selection"], runs.index[0].labels
    metric = str(selection.get("metric", ""))
    split = split_of(metric) or ""
    best, tried = selection.get("score"), selection.get("candidates") or []
    scores = {str(name): format_value(score) for name, score in tried}
    # All candidates share the folder search/NAME of the selection.
    folders = [name.rpartition("/")[0] for name in scores]
    folder = os.path.commonpath(folders) if folders and all(folders) else ""
    start = len(folder) + 1 if folder else 0
    chosen = str(selection.get("chosen", ""))
    better = _better_candidate(selection, f"{folder}/", found, needs)
    if better:
        log.warning(
            "the selection of %s is older than its candidates: %s; run the sweep again",
            folder.partition("/")[2],
            better,
        )
    equal = [name for name, score in tried if score is not None and score == best]
    edges = [] if len(equal) > 1 else edges_of_grid(chosen, list(scores))
    marks = [f"older than its candidates: {better}"] if better else []
    marks += [f"the first of {len(equal)} with this score"] if len(equal) > 1 else []
    marks += [f"edge of the grid: {', '.join(edges)}"] if edges else []
    shared = {n for n in labels if all(run.labels.get(n) == labels[n] for run in runs.index)}
    described = ", ".join(format_value(labels[n]) for n in labels if n in shared - {"seed"})
    return {
        "final runs": described or folder.partition("/")[2],
        "selection split": split + (" (also reported!)" if split in reported else ""),
        "metric": metric,
        "selected": chosen[start:] + (f" ({'; '.join(marks)})" if marks else ""),
        "score": format_value(best),
        "candidates": ", ".join(f"{name[start:]} {score}" for name, score in scores.items()),
        "seeds": ", ".join(map(format_value, sorted(runs["seed"], key=natural_key))),
    }


def _same_sweep(found: Runs, run: Run) -> list[Run]:
    """Returns the runs of a run's sweep, without those of jobs that were removed from it."""
    jobs, names = _jobs_folder(run), {*_job_names(_sweep_of(found, run))}
    same = [one for one in found.runs if str(one.path) == f"{jobs}{one.job.get('name', '')}"]
    return [one for one in same if not names or one.job.get("name") in names]


def _needs(found: Runs, run: Run) -> set[str]:
    """Returns the jobs that a run of a sweep waits for; none: not known."""
    jobs = [job for job in _sweep_of(found, run).get("jobs") or () if isinstance(job, dict)]
    needs = [job.get("needs") or () for job in jobs if job.get("name") == run.job.get("name")]
    return {str(name) for of_job in needs for name in of_job}


def _sweep_of(found: Runs, run: Run) -> Mapping[str, Any]:
    """Returns the sweep.json of a run; {} if there is none."""
    sweeps = {f"{folder}/jobs/": sweep for folder, sweep in found.sweeps.items()}
    return sweeps.get(_jobs_folder(run), {})


def _jobs_folder(run: Run) -> str:
    return str(run.path).removesuffix(str(run.job.get("name", "")))


def _job_names(sweep: Mapping[str, Any]) -> list[str]:
    """Returns the names of the jobs in a sweep.json."""
    return [
        str(job.get("name") if isinstance(job, dict) else job) for job in sweep.get("jobs") or ()
    ]


def _better_candidate(
    selection: Mapping[str, Any], folder: str, found: Iterable[Run], needs: Set[str]
) -> str:
    """Returns the best candidate and its score; "": it is the selected one.

    Candidates are among the jobs `needs`; if these are not known, directly below `folder`.
    """
    metric = str(selection.get("metric", ""))
    scores = {
        str(run.job["name"]): run.figures[metric]
        for run in found
        if run.finished
        and run.stage == "search"
        and (run.job.get("name") in needs or (not needs and _is_in(folder, run)))
        and metric in run.figures
    }
    if not scores or selection.get("mode") not in ("max", "min"):
        return ""
    best = (max if selection["mode"] == "max" else min)(scores, key=lambda name: scores[name])
    chosen = str(selection.get("chosen", ""))
    if best == chosen or scores[best] == scores.get(chosen):
        return ""
    return f"{best.removeprefix(folder)} has {format_value(scores[best])}"


def _is_in(folder: str, run: Run) -> bool:
    """Whether a job is directly below a folder, not of the selection a/b if that is a."""
    name = str(run.job.get("name", ""))
    return name.startswith(folder) and "/" not in name[len(folder) :]


def confusion_tables(runs: Sequence[Run]) -> list[Table]:
    """Returns the confusion matrix and the accuracy of each class of a few runs of few classes."""
    files = [(run, path) for run in runs for path in sorted(run.path.glob(_CONFUSION))]
    tables = []
    for run, path in files if len(runs) <= _MAX_CONFUSED else []:
        try:
            with path.open(encoding="utf-8", newline="") as file:
                (_, *predicted), *lines = csv.reader(file)
            counts = {true: [*map(int, cells)] for true, *cells in lines}
        except (OSError, ValueError, csv.Error) as error:
            log.warning("%s is left out: %s", path, error)
            continue
        if len(counts) > _MAX_CLASSES:
            continue
        rows = []
        for i, (true, cells) in enumerate(counts.items()):
            shown = [Cell(f"{n:,}" if n else "", n, "best" * (i == k)) for k, n in enumerate(cells)]
            rows.append([Cell(true), *shown, _share(cells[i], sum(cells))])
        split = path.stem.removeprefix("confusion-")
        title = f"Confusion matrix, {split}" + (f", {run.name}" if len(runs) > 1 else "")
        right = sum(cells[i] for i, cells in enumerate(counts.values()))
        total = sum(map(sum, counts.values()))
        notes = [
            f"{right:,} of {total:,} are right: {_share(right, total).text}.",
            "Rows: the true class. Columns: examples by predicted class. Right: the share of the"
            " class that is classified correctly, with Wilson's 95 % interval. With few images it"
            " differs from the intervals of tables, which come from redrawn images.",
        ]
        known = {"examples": total, "accuracy_top1": right / max(total, 1)}
        if any(
            not math.isclose(run.result.get(f"eval/{split}/{name}", value), value, rel_tol=1e-6)
            for name, value in known.items()
        ):
            notes.append("It is of a later evaluation than the result of the run.")
        if others := run.other_settings(f"eval/{split}/"):
            notes.append(
                f"It was evaluated with settings that are not the run's: {', '.join(others)}."
            )
        if (path.parent / f"mistakes-{split}.csv").is_file():
            notes.append(f"mistakes-{split}.csv in its report folder lists all wrong predictions.")
        tables.append(Table(title, ["true class", *predicted, "right"], rows, notes))
    return tables


def _share(right: int, total: int) -> Cell:
    """Returns an accuracy in percent with its interval; an empty cell without examples."""
    if not total:
        return Cell("")
    low, high = wilson_interval(right / total, total)
    return Cell(f"{right / total:.1%} [{100 * low:.1f}, {100 * high:.1f}]", right / total)


def models_table(frame: pd.DataFrame) -> Table:
    """Returns size, operations and speed of each model; a range where its runs differ."""
    rows = []
    finished = frame[[run.finished and run.model is not None for run in frame.index]]
    for model, of in sorted(finished.groupby(text_column(finished, "model")), key=_by_name):
        runs = [*of.index]
        seen = [(run.train_exaflops, run.examples_seen) for run in runs]
        rates = [_images_per_second(run) for run in runs]
        rows.append(
            {
                "model": model,
                "runs": len(runs),
                "parameters": _range(run.figures.get("parameters") for run in runs),
                "feature width": _range(_feature_width(run) for run in runs),
                "MFLOPs an image": _range(f * 1e12 / n for f, n in seen if f and n),
                "images/s": _range(rates),
                "device": ", ".join(sorted({run.device or "" for run in runs} - {""})),
            }
        )
    table = pd.DataFrame(rows)
    kept = [name for name in table if name in ("model", "runs") or (table[name] != "").any()]
    return table_of("Models", table[kept])


def _by_name(item: tuple[str, Any]) -> Any:
    return natural_key(item[0])


def _images_per_second(run: Run) -> float | None:
    """Returns the median over the run, of all devices together."""
    name = "train/images_per_second"
    logged = run.curve(name)
    return float(logged.median()) if len(logged) else run.figures.get(name)


def _feature_width(run: Run) -> float | None:
    names = [name for name in run.figures if name.split("/")[-1] == "feature_width"]
    return run.figures[names[0]] if names else None


def _range(values: Iterable[float | None]) -> str:
    """Returns the smallest and the largest value as text, with three digits; "" if there is none.

    >>> _range([None, 1200, 1200]), _range([3.14159, 4]), _range([])
    ('1,200', '3.14 to 4', '')
    """
    known = [float(v) for v in values if v is not None and not math.isnan(v)]
    ends = sorted({min(known), max(known)}) if known else []
    return " to ".join(dict.fromkeys(f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in ends))


def missing_table(found: Runs, frame: pd.DataFrame) -> Table:
    """Returns the runs without a result, and the jobs of sweeps that have no folder yet."""
    rows = []
    for run, row in zip(frame.index, frame.to_dict("records"), strict=True):
        if not run.finished:
            total, attempt = run.config.get("train_steps"), run.attempt
            progress = "" if row["step"] is None else f"{row['step']:,}"
            progress += f" of {total:,}" if progress and total else ""
            log = last_log_lines(run.path) if why_ended(attempt) else []
            errors = [line for line in log if line.startswith("error: ")]
            reasons = [
                *run.problems,
                why_ended(attempt),
                *(errors or ([run.failure] if run.failure else log))[-1:],
            ]
            why = Cell("; ".join(filter(None, reasons)), detail="\n".join(log))
            rows.append([row["name"], row["state"], progress, why])
    rows += [[name, "not started", "", ""] for name in _jobs_without_folder(found)]
    frame = pd.DataFrame(rows, columns=["run", "state", "step", "why"])
    return table_of("Runs without a result", frame)


def _jobs_without_folder(found: Runs) -> Iterator[str]:
    for folder, sweep in found.sweeps.items():
        for name in _job_names(sweep):
            path = folder / "jobs" / name
            if not path.exists() and any(root in (path, *path.parents) for root in found.roots):
                yield name


def hardware_table(frame: pd.DataFrame) -> Table:
    """Returns the kinds of devices, and the hours that runs took on each."""
    rows = [
        {
            "device": run.device or "unknown",
            "runs": 1,
            "hours": (run.wall_time_s or 0) / 3600,
            # Ten digits, and a suffix if files were changed.
            "git revision": re.sub(r"^([^-]{10})[^-]*", r"\1", run.revision or ""),
            "JAX": str(run.environment.get("packages", {}).get("jax", "")),
        }
        for run in frame.index[frame["state"] != "not started"]
    ]

    def hours(each: pd.Series) -> Cell:
        total = float(each.sum())
        return Cell(f"{total:.2f}" if total >= 0.01 or not total else f"{total:.1g}", total)

    def listed(texts: Iterable[str]) -> str:
        return ", ".join(sorted({*texts} - {""}))

    merge: dict[str, Any] = {"runs": "sum", "hours": hours, "git revision": listed, "JAX": listed}
    merged = pd.DataFrame(rows, columns=["device", *merge]).groupby("device").agg(merge)
    return table_of("Hardware", merged.reset_index())
