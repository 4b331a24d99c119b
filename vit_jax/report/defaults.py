"""The tables, plots and curves of a report for which nobody asked for others."""

import pandas as pd

from vit_jax.errors import first_few
from vit_jax.report.curves import main_score
from vit_jax.report.frame import (
    differing,
    differing_data,
    differing_settings,
    differing_starts,
    text_column,
)
from vit_jax.report.labels import title_of
from vit_jax.report.requests import CurvesRequest, PlotRequest, TableRequest
from vit_jax.report.scores import metric_regex, observe
from vit_jax.run.metrics import split_of

_FEW_SHOT = "fewshot/{dataset}/{shots}_shot/accuracy_top1"
_FROZEN_FEATURE_METRICS = {
    _FEW_SHOT: "dataset+shots",
    "linear_probe/{dataset}/accuracy_top1": "dataset",
    "knn/{dataset}/accuracy_top1": "dataset",
}
# Labels that do not distinguish the rows of a table.
_NOT_ROWS = ("dataset", "seed", "shots", "stage")
# If more settings than this differ, beside the model, rows are named after the runs.
_MAX_SETTINGS = 1
# Order of the learning curves by stage; other stages come last.
_STAGES = {"final": 0, "": 1, "search": 2}


def exclude_candidates(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns all runs except the candidates of selections."""
    return frame[frame["stage"] != "search"]


def row_column(frame: pd.DataFrame) -> str:
    """Returns the column that distinguishes models: labels that vary, else settings that differ."""
    all_labels = [run.labels for run in frame.index]
    labels = sorted({name for labels in all_labels for name in labels} - {*_NOT_ROWS})
    if labels:
        varying = [name for name in differing(all_labels) if name in labels]
        names = sorted(varying, key=lambda name: name != "model")
        return "+".join(names) or ("model" if "model" in labels else labels[0])
    changed = differing_settings(frame.index)
    settings = [k for k in changed if k != "model.name" and not k.startswith("data.name")]
    if len(settings) > _MAX_SETTINGS:
        return "name"
    rows = "+".join(["model"] * ("model.name" in changed or not settings) + settings)
    places = pd.DataFrame({"row": text_column(frame, rows), **frame[["dataset", "seed"]]})
    if places[frame["seed"].notna()].duplicated().any():
        return "name"
    cells = places.groupby(["row", "dataset"], dropna=False)
    others = (differing_starts(of.index) or differing_data(of.index) for _, of in cells)
    return "name" if any(others) else rows


def default_tables(frame: pd.DataFrame) -> list[TableRequest]:
    """Returns tables of the main score of final runs, and of all scores of frozen features."""
    frame, final, where = _final(frame)
    metrics, found = _metrics(final), []
    if score := main_score(metrics):
        split = score.rpartition("/")[0]
        own = [name for run in final.index for name in run.more_metrics]
        others = dict.fromkeys(["accuracy_per_class_mean", "roc_auc", *own])
        names = dict.fromkeys([score, *(f"{split}/{name}" for name in others)])
        rows = row_column(final)
        found = [TableRequest(metric=n, rows=rows, where=where) for n in names if n in metrics]
    for pattern, columns in _FROZEN_FEATURE_METRICS.items():
        if any(map(metric_regex(pattern).fullmatch, _metrics(frame))):
            found.append(TableRequest(metric=pattern, rows=row_column(frame), columns=columns))
    return found


def other_stages(request: TableRequest, frame: pd.DataFrame) -> list[str]:
    """Returns a sentence that names the finished runs of other stages than a default table's."""
    if "stage" not in request.where:
        return []
    others = exclude_candidates(frame)
    others = others[others["stage"] != request.where["stage"]]
    few = first_few([run.name for run in others.index if run.finished], 5)
    return [f"Not in the table, because they are not final runs of a sweep: {few}."] if few else []


def other_splits(request: TableRequest, frame: pd.DataFrame) -> list[str]:
    """Returns a sentence that names finished runs that measured a default table elsewhere only."""
    split, leaf = split_of(request.metric), request.metric.rpartition("/")[2]
    of_stage = exclude_candidates(frame)
    if "stage" in request.where:
        of_stage = of_stage[of_stage["stage"] == request.where["stage"]]
    names = [
        run.name
        for run in of_stage.index
        if run.finished
        and request.metric not in {*run.figures, *run.not_finite}
        and any(split_of(name) and name.rpartition("/")[2] == leaf for name in run.figures)
    ]
    few = first_few(names, 5) if split else ""
    return [f"Not in the table, because they were not evaluated on {split}: {few}."] if few else []


def default_plots(frame: pd.DataFrame) -> list[PlotRequest]:
    """Returns a plot of the main score of final runs, and one of few-shot scores against shots."""
    frame, final, where = _final(frame)
    score, rows, found = main_score(_metrics(final)), row_column(final), []
    if score and observe(final, score, {}, rows=rows)["@rows"].nunique() > 1:
        first, title = rows.partition("+")[0], title_of(score)
        found.append(
            PlotRequest(x=rows, y=score, series=first, panel="dataset", title=title, where=where)
        )
    matches = filter(None, map(metric_regex(_FEW_SHOT).fullmatch, _metrics(frame)))
    if len({match["shots"] for match in matches}) > 1:
        rows = row_column(frame)
        found.append(PlotRequest(x="shots", y=_FEW_SHOT, series=rows, panel="dataset", log_x=True))
    return found


def default_curves(frame: pd.DataFrame) -> list[CurvesRequest]:
    """Returns one request for each stage of a sweep."""
    stages = dict([*frame.groupby(text_column(frame, "stage"))])
    found = []
    for stage in sorted(stages, key=lambda stage: (_STAGES.get(stage, len(_STAGES)), stage)):
        title = f"Stage “{stage}”" if stage else "Other runs" if len(stages) > 1 else "Runs"
        series = row_column(stages[stage])
        found.append(CurvesRequest(series=series, where={"stage": stage}, title=title))
    return found


def _final(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, str]]:
    """Returns all runs but candidates; the final ones, or all if there are none; their filter."""
    frame = exclude_candidates(frame)
    is_final = frame["stage"] == "final"
    return (frame, frame[is_final], {"stage": "final"}) if is_final.any() else (frame, frame, {})


def _metrics(frame: pd.DataFrame) -> set[str]:
    return {name for run in frame.index if run.finished for name in run.figures}
