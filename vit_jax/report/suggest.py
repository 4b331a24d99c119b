"""Chooses tables, plots and curves that fit the runs, if the user requested none."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pandas as pd

from vit_jax.report.curves import main_score
from vit_jax.report.frame import column, differing, differing_settings, text_column
from vit_jax.report.labels import is_number, lower_first, title_of
from vit_jax.report.requests import CurvesRequest, PlotRequest, TableRequest
from vit_jax.report.scores import metric_regex, observe

R = TypeVar("R", TableRequest, PlotRequest)

_FEW_SHOT = "fewshot/{dataset}/{shots}_shot/accuracy_top1"
_FROZEN_FEATURE_METRICS = {
    _FEW_SHOT: "dataset+shots",
    "linear_probe/{dataset}/accuracy_top1": "dataset",
    "knn/{dataset}/accuracy_top1": "dataset",
}
# Labels that do not distinguish the rows of a table.
_NOT_ROWS = ("dataset", "seed", "shots", "stage")
# If more settings than this differ, rows are named after the runs.
_MAX_SETTINGS = 3
# Order of the learning curves by stage; other stages come last.
_STAGES = {"final": 0, "": 1, "search": 2}
# Data or compute becomes an axis if it differs by more than this factor.
_MIN_RATIO = 1.5


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
    return "+".join(["model"] * ("model.name" in changed or not settings) + settings)


def suggest_tables(frame: pd.DataFrame) -> list[TableRequest]:
    """Returns a table for each kind of score that finished runs have."""
    return _by_stage(frame, _tables)


def suggest_plots(frame: pd.DataFrame) -> list[PlotRequest]:
    """Returns the plots whose x-axis would have at least two different values."""
    return _by_stage(frame, _plots)


def suggest_curves(frame: pd.DataFrame) -> list[CurvesRequest]:
    """Returns one request for each stage of a sweep."""
    stages = dict([*frame.groupby(text_column(frame, "stage"))])
    found = []
    for stage in sorted(stages, key=lambda stage: (_STAGES.get(stage, len(_STAGES)), stage)):
        title = f"Stage “{stage}”" if stage else "Other runs" if len(stages) > 1 else "Runs"
        series = row_column(stages[stage])
        found.append(CurvesRequest(series=series, where={"stage": stage}, title=title))
    return found


def _by_stage(frame: pd.DataFrame, suggest: Callable[[pd.DataFrame], Iterable[R]]) -> list[R]:
    """Returns the suggestions for final runs, and then for other runs, with distinct titles."""
    frame = exclude_candidates(frame)
    is_final = frame["stage"] == "final"
    if is_final.nunique() < 2:
        return [] if frame.empty else [*suggest(frame)]
    final = [r.replace(where={"stage": "final"}) for r in suggest(frame[is_final])]
    others = [r.replace(where={"stage": ""}) for r in suggest(frame[~is_final])]
    taken = {r.heading for r in final}
    return final + [
        r.replace(title=f"{r.heading}, other runs") if r.heading in taken else r for r in others
    ]


def _tables(frame: pd.DataFrame) -> Iterator[TableRequest]:
    rows, metrics = row_column(frame), _metrics(frame)
    if score := main_score(metrics):
        split = score.rpartition("/")[0]
        for name in (score, f"{split}/accuracy_per_class_mean", f"{split}/roc_auc"):
            if name in metrics:
                yield TableRequest(metric=name, rows=rows)
        yield from _pivot(frame, score, rows)
    for pattern, columns in _FROZEN_FEATURE_METRICS.items():
        if any(map(metric_regex(pattern).fullmatch, metrics)):
            yield TableRequest(metric=pattern, rows=rows, columns=columns)


def _pivot(frame: pd.DataFrame, score: str, rows: str) -> Iterator[TableRequest]:
    """Yields a table of one factor by the other, if runs differ in two factors."""
    first, _, second = rows.partition("+")
    if not second or "+" in second:
        return
    several = text_column(frame, "dataset").nunique() > 1
    columns = f"dataset+{second}" if several else second
    title = f"{title_of(score)}: {lower_first(title_of(first))} × {lower_first(title_of(second))}"
    yield TableRequest(metric=score, rows=first, columns=columns, title=title)


def _plots(frame: pd.DataFrame) -> Iterator[PlotRequest]:
    rows, metrics = row_column(frame), _metrics(frame)
    if score := main_score(metrics):
        if observe(frame, score, {}, rows=rows)["@rows"].nunique() > 1:
            first = rows.partition("+")[0]
            yield PlotRequest(x=rows, y=score, series=first, panel="dataset", title=title_of(score))
        yield from _against_pretraining(score, frame, rows)
    matches = filter(None, map(metric_regex(_FEW_SHOT).fullmatch, metrics))
    shots = sorted({int(match["shots"]) for match in matches})
    if len(shots) > 1:
        yield PlotRequest(x="shots", y=_FEW_SHOT, series=rows, panel="dataset", log_x=True)
    if shots:
        shown = 5 if 5 in shots else shots[-1]
        yield from _against_pretraining(_FEW_SHOT.replace("{shots}", str(shown)), frame, rows)


def _against_pretraining(pattern: str, frame: pd.DataFrame, rows: str) -> Iterator[PlotRequest]:
    """Yields plots of a score against pre-training data and compute, where these vary."""
    observed = observe(frame, pattern, {})
    for x in ("pretrain_examples", "pretrain_exaflops"):
        places = [value for value in column(observed, x) if is_number(value) and value > 0]
        if places and max(places) > _MIN_RATIO * min(places):
            models, families = (text_column(observed, n).nunique() for n in ("model", "family"))
            by_family = x == "pretrain_exaflops" and models > families
            names = ["family" if by_family else "model"]
            names += [name for name in rows.split("+") if name != "model"]
            series = "+".join(_needed(names, x, observed))
            yield PlotRequest(x=x, y=pattern, series=series, panel="dataset", log_x=True)


def _needed(names: list[str], x: str, observed: pd.DataFrame) -> list[str]:
    """Returns the first column, and the others that x does not determine."""
    for name in names[1:]:
        others = [n for n in names if n != name]
        place = [text_column(observed, n) for n in [*others, "dataset", x]]
        if (text_column(observed, name).groupby(place).nunique() == 1).all():
            names = others
    return names


def _metrics(frame: pd.DataFrame) -> set[str]:
    return {name for run in frame.index if run.finished for name in run.figures}
