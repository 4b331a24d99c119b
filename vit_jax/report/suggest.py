"""Suggests the tables, plots and curves that fit some runs, if the user asked for none."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

import pandas as pd

from vit_jax.report.curves import main_score
from vit_jax.report.frame import column, differing_settings, metric_regex, observations
from vit_jax.report.labels import is_number, show, title_of
from vit_jax.report.requests import CurvesRequest, PlotRequest, TableRequest
from vit_jax.report.runs import Run

_FEW_SHOT = "fewshot/{dataset}/{shots}_shot/accuracy_top1"
_ON_FEATURES = (_FEW_SHOT, "linear_probe/{dataset}/accuracy_top1", "knn/{dataset}/accuracy_top1")
_MORE_SCORES = ("accuracy_per_class_mean", "roc_auc")
# Labels that do not tell one row of a table from another.
_NOT_ROWS = ("dataset", "seed", "shots", "stage")
# If more settings than this differ, rows have the names of runs.
_MAX_SETTINGS = 3
# The order of the pictures of learning curves; other stages come last.
_STAGES = {"final": 0, "": 1, "search": 2}
_OTHERS = ", other runs"
# The amounts of data or compute on an axis differ by at least this factor.
_MIN_RATIO = 1.5


def reported(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the runs that were not only made to select a setting."""
    return frame.loc[[run.stage != "search" for run in frame.index]]


def row_column(runs: Sequence[Run]) -> str:
    """Returns the column that tells models apart: labels that vary, else settings that differ."""
    labels = sorted({name for run in runs for name in run.labels} - set(_NOT_ROWS))
    if labels:
        varying = [n for n in labels if len({show(run.labels.get(n)) for run in runs}) > 1]
        names = sorted(varying, key=lambda name: name != "model")
        return "+".join(names) or ("model" if "model" in labels else labels[0])
    settings = differing_settings(runs)
    models = "model.name" in settings
    settings = [key for key in settings if key != "model.name" and not key.startswith("data.name")]
    if len(settings) > _MAX_SETTINGS:
        return "name"
    return "+".join([*(["model"] if models or not settings else []), *settings])


def suggest_tables(frame: pd.DataFrame) -> list[TableRequest]:
    """Returns a table for each kind of score that finished runs have."""
    found: list[TableRequest] = []
    for where, members in _by_stage(frame):
        rows, metrics = row_column(list(members.index)), _metrics(members)
        score = main_score(metrics)
        wanted = {} if score is None else {score: "dataset"}
        if score is not None:
            same_split = (f"{score.rsplit('/', 1)[0]}/{name}" for name in _MORE_SCORES)
            wanted |= {name: "dataset" for name in same_split if name in metrics}
        for pattern in _ON_FEATURES:
            if any(map(metric_regex(pattern).fullmatch, metrics)):
                wanted[pattern] = "dataset+shots" if "{shots}" in pattern else "dataset"
        known = {request.metric for request in found}
        for name, columns in wanted.items():
            title = title_of(name) + (_OTHERS if name in known else "")
            found.append(TableRequest(name, rows, columns, where, title))
    return found


def suggest_plots(frame: pd.DataFrame) -> list[PlotRequest]:
    """Returns the plots whose horizontal axis would have at least two different values."""
    found: list[PlotRequest] = []
    for where, members in _by_stage(frame):
        rows, metrics = row_column(list(members.index)), _metrics(members)
        score, made = main_score(metrics), []
        if score is not None:
            if column(observations(members, score), rows).map(show).nunique() > 1:
                first, title = rows.partition("+")[0], title_of(score)
                made.append(PlotRequest(rows, score, first, "dataset", title=title))
            made += _against_pretraining(score, members, rows)
        matches = filter(None, map(metric_regex(_FEW_SHOT).fullmatch, metrics))
        shots = sorted({int(match["shots"]) for match in matches})
        if len(shots) > 1:
            made.append(PlotRequest("shots", _FEW_SHOT, rows, "dataset", log_x=True))
        if shots:
            shown = _FEW_SHOT.replace("{shots}", str(5 if 5 in shots else shots[-1]))
            made += _against_pretraining(shown, members, rows)
        known = {(request.x, request.y) for request in found}
        for request in made:
            title = request.heading + (_OTHERS if (request.x, request.y) in known else "")
            found.append(dataclasses.replace(request, where=where, title=title))
    return found


def suggest_curves(frame: pd.DataFrame) -> list[CurvesRequest]:
    """Returns one request for each stage of a sweep."""
    stages = {run.stage or "" for run in frame.index}
    found = []
    for stage in sorted(stages, key=lambda stage: (_STAGES.get(stage, len(_STAGES)), stage)):
        series = row_column([run for run in frame.index if (run.stage or "") == stage])
        title = f"Stage “{stage}”" if stage else "Other runs" if len(stages) > 1 else "Runs"
        found.append(CurvesRequest(series, "dataset", (("stage", stage),), title))
    return found


def _metrics(frame: pd.DataFrame) -> set[str]:
    return {name for run in frame.index if run.finished for name in run.figures}


def _by_stage(frame: pd.DataFrame) -> list[tuple[tuple[tuple[str, str], ...], pd.DataFrame]]:
    """Returns final runs apart from others, if there are both, with the filter for each."""
    frame = reported(frame)
    final = column(frame, "stage") == "final"
    if frame.empty or not final.any() or final.all():
        return [] if frame.empty else [((), frame)]
    return [((("stage", "final"),), frame[final]), ((("stage", ""),), frame[~final])]


def _against_pretraining(pattern: str, frame: pd.DataFrame, rows: str) -> list[PlotRequest]:
    """Returns plots of a score against pre-training data and compute, where these vary."""
    observed, found = observations(frame, pattern), []
    models, families = (column(observed, n).map(show).nunique() for n in ("model", "family"))
    for x in ("pretrain_examples", "pretrain_exaflops"):
        places = [value for value in column(observed, x) if is_number(value) and value > 0]
        if places and max(places) > _MIN_RATIO * min(places):
            of_families = x == "pretrain_exaflops" and models > families
            names = ["family" if of_families else "model"]
            names += [name for name in rows.split("+") if name != "model"]
            series = "+".join(_needed(names, x, observed))
            found.append(PlotRequest(x, pattern, series, "dataset", log_x=True))
    return found


def _needed(names: list[str], x: str, observed: pd.DataFrame) -> list[str]:
    """Returns the columns without those that x determines, such as the fraction of the data.

    The first always stays.
    """
    for name in names[1:]:
        others = [n for n in names if n != name]
        values: dict[tuple[str, ...], set[str]] = defaultdict(set)
        columns = [column(observed, n).map(show) for n in [*others, "dataset", x, name]]
        for *place, value in zip(*columns, strict=True):
            values[tuple(place)].add(value)
        if all(len(found) == 1 for found in values.values()):
            names = others
    return names
