"""The tables, plots and curves that suit some runs, where nobody says which."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from vit_jax.report.curves import main_score
from vit_jax.report.fields import Fields, Observation, differing_settings, metric_regex
from vit_jax.report.requests import CurvesRequest, PlotRequest, TableRequest, plot_title
from vit_jax.report.runs import Run
from vit_jax.report.words import show, title_of

FEWSHOT = "fewshot/{dataset}/{shots}_shot/accuracy_top1"
_ON_FEATURES = (FEWSHOT, "linear_probe/{dataset}/accuracy_top1", "knn/{dataset}/accuracy_top1")
_EXTRA = ("accuracy_per_class_mean", "roc_auc")
# Labels that do not tell one row of a table from another.
_NOT_ROWS = ("dataset", "seed", "shots", "stage")
# More differing settings than this do not make a readable name of a row.
_MOST_SETTINGS = 3
# The order of the pictures of learning curves; other stages come last.
_STAGES = {"final": 0, "": 1, "search": 2}
# Runs beside the final ones, where both have the same figure.
_OTHERS = ", other runs"
# Data or compute that differ by less are meant to be equal, and make no axis.
_SPREAD = 1.5


def reported(runs: Sequence[Run]) -> list[Run]:
    """Returns the runs that are not there only to choose a setting."""
    return [run for run in runs if run.stage != "search"]


def row_field(runs: Sequence[Run], fields: Fields) -> str:
    """Returns the field that tells models apart: labels that vary, else settings that do."""
    labels = sorted({name for run in runs for name in run.labels} - set(_NOT_ROWS))
    varying = [n for n in labels if len({show(r.labels.get(n)) for r in runs}) > 1]
    if labels:
        names = sorted(varying, key=lambda n: n != "model")
        return "+".join(names) or ("model" if "model" in labels else labels[0])
    settings = [key for key in differing_settings(runs) if not key.startswith("data.name")]
    settings = [key for key in settings if key != "model.name"]
    if len(settings) > _MOST_SETTINGS:
        return "name"
    models = {show(fields.of(run, "model")) for run in runs}
    return "+".join([*(["model"] if len(models) > 1 or not settings else []), *settings])


def suggested_tables(runs: Sequence[Run], fields: Fields) -> list[TableRequest]:
    """Returns a table for each kind of score that finished runs have."""
    found: list[TableRequest] = []
    for stage, members in _by_stage(runs):
        where = () if stage is None else (("stage", stage),)
        rows = row_field(members, fields)
        metrics = _metrics(members)
        score = main_score(metrics)
        wanted = {} if score is None else {score: "dataset"}
        if score is not None:
            same_split = [f"{score.rsplit('/', 1)[0]}/{extra}" for extra in _EXTRA]
            wanted |= {name: "dataset" for name in same_split if name in metrics}
        for pattern in _ON_FEATURES:
            if _fitting(pattern, metrics):
                wanted[pattern] = "dataset+shots" if "{shots}" in pattern else "dataset"
        known = {request.metric for request in found}
        for name, columns in wanted.items():
            title = f"{title_of(name)}{_OTHERS if name in known else ''}"
            found.append(TableRequest(name, rows, columns, where, title))
    return found


def suggested_plots(runs: Sequence[Run], fields: Fields) -> list[PlotRequest]:
    """Returns the plots for which there are at least two places on the horizontal axis."""
    found: list[PlotRequest] = []
    for stage, members in _by_stage(runs):
        where = () if stage is None else (("stage", stage),)
        metrics = _metrics(members)
        score = main_score(metrics)
        made: list[PlotRequest] = []
        if score is not None:
            made += _score_plots(score, members, fields)
        shots = sorted({int(m["shots"]) for m in _fitting(FEWSHOT, metrics)})
        if len(shots) > 1:
            series = row_field(members, fields)
            made.append(PlotRequest("shots", FEWSHOT, series, "dataset", log_x=True))
        if shots:
            some = 5 if 5 in shots else shots[-1]
            made += _against_effort(FEWSHOT.replace("{shots}", str(some)), members, fields)
        known = {(request.x, request.y) for request in found}
        for request in made:
            title = request.title or plot_title(request)
            title += _OTHERS if (request.x, request.y) in known else ""
            found.append(dataclasses.replace(request, where=where, title=title))
    return found


def suggested_curves(runs: Sequence[Run], fields: Fields) -> list[CurvesRequest]:
    """Returns curves of final runs, of others, and of those of a search."""
    stages = {run.stage or "" for run in runs}
    found = []
    for stage in sorted(stages, key=lambda s: (_STAGES.get(s, len(_STAGES)), s)):
        series = row_field([run for run in runs if (run.stage or "") == stage], fields)
        title = f"Stage “{stage}”" if stage else "Other runs" if len(stages) > 1 else "Runs"
        found.append(CurvesRequest(series, "dataset", (("stage", stage),), title))
    return found


def _metrics(runs: Sequence[Run]) -> set[str]:
    return {name for run in runs if run.finished for name in run.figures}


def _score_plots(score: str, runs: Sequence[Run], fields: Fields) -> list[PlotRequest]:
    rows, observed = row_field(runs, fields), fields.observations(runs, score)
    found = []
    if len({show(fields.value(o, rows)) for o in observed}) > 1:
        first = rows.partition("+")[0]
        found.append(PlotRequest(rows, score, first, "dataset", title=title_of(score)))
    return found + _against_effort(score, runs, fields)


def _against_effort(pattern: str, runs: Sequence[Run], fields: Fields) -> list[PlotRequest]:
    observed = fields.observations(runs, pattern)
    models = {show(fields.value(o, "model")) for o in observed}
    families = {show(fields.value(o, "family")) for o in observed}
    rows = row_field(runs, fields).split("+")
    found = []
    for x in ("pretrain_examples", "pretrain_exaflops"):
        places = {fields.value(o, x) for o in observed} - {None, 0}
        if places and max(places) > _SPREAD * min(places):
            of_families = x == "pretrain_exaflops" and len(models) > len(families)
            names = ["family" if of_families else "model"]
            names += [name for name in rows if name != "model"]
            series = "+".join(_needed(names, x, observed, fields))
            found.append(PlotRequest(x, pattern, series, "dataset", log_x=True))
    return found


def _needed(names: list[str], x: str, observed: Sequence[Observation], fields: Fields) -> list[str]:
    """Returns the fields without those that x tells apart already, such as the share of the data.

    The first always stays.
    """
    for name in names[1:]:
        others = [n for n in names if n != name]
        places: dict[str, set[str]] = defaultdict(set)
        for o in observed:
            at = show([show(fields.value(o, n)) for n in [*others, "dataset", x]])
            places[at].add(show(fields.value(o, name)))
        if all(len(values) == 1 for values in places.values()):
            names = others
    return names


def _by_stage(runs: Sequence[Run]) -> list[tuple[str | None, list[Run]]]:
    """Returns final runs and others apart, where there are both; None stands for all."""
    kept = reported(runs)
    final = [run for run in kept if run.stage == "final"]
    others = [run for run in kept if run.stage != "final"]
    if not final or not others:
        return [(None, kept)] if kept else []
    return [("final", final), ("", others)]


def _fitting(pattern: str, names: set[str]) -> list[dict[str, str]]:
    compiled = metric_regex(pattern)
    return [m.groupdict() for name in names if (m := compiled.fullmatch(name))]
