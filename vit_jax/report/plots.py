"""Plots of a score against data, shots, compute or any other column, like Figures 3 to 5."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from vit_jax.errors import ConfigError, first_few, nearest
from vit_jax.evaluation.metric_kinds import kind_of
from vit_jax.report import vtab
from vit_jax.report.chart import Drawing, Panel, Trace
from vit_jax.report.frame import column, in_natural_order
from vit_jax.report.intervals import (
    APART,
    describe_means,
    describe_seeds,
    tested_apart,
    with_intervals,
)
from vit_jax.report.labels import (
    flops_unit,
    format_value,
    is_number,
    natural_key,
    title_of,
)
from vit_jax.report.requests import PlotRequest
from vit_jax.report.run import Run
from vit_jax.report.scores import (
    VALUE,
    WITHIN,
    differing_within,
    doubts,
    find_chances,
    left_out,
    means_over,
    observe,
    summarize,
)
from vit_jax.report.style import CHANCE, Palette

# The axes of a plot: together they say which point an observation belongs to.
_KEYS = ["@panel", "@series", "@x"]
_CHANCE = "chance"
# Panels per row. Four panels also fit in one row.
_MAX_COLUMNS = 3
# With more panels than this, only their means are drawn.
_MAX_PANELS = 9


def plot_points(request: PlotRequest, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Groups the observations of a plot into points.

    Returns:
        One row per point, with the columns panel, series, x, mean, values, the ends of its bar,
        low and high, chance (the accuracy of guessing; NaN: not known) and runs (one per value);
        and the sentences to put below the plot.
    """
    axes = {"x": request.x, "series": request.series, "panel": request.panel}
    observed = observe(frame, request.y, request.where, option="y", pool=request.pool, **axes)
    xs = column(observed, request.x)  # As numbers where possible.
    observed["@x"] = xs.where(xs.map(is_number).astype(bool), observed["@x"])
    known = observed["@x"].map(lambda x: _has_place(x, log_x=request.log_x)).astype(bool)
    known &= observed["@series"] != ""
    if request.log_y and observed["@x"].map(is_number).all():
        known &= observed[VALUE] > 0
    observed, unplaced = observed[known], observed[~known].index
    notes = _notes(request, observed, unplaced)
    if request.through is not None:
        observed = _add_through(request, observed)
        notes.append(f"The lines of all series go through {request.through}.")
    observed = in_natural_order(observed, _KEYS)
    names, means, sets = [*observed["@panel"].unique()], observed[:0], dict[str, list[str]]()
    if len(names) > 1:
        sets = vtab.group_tasks(names)
        means = means_over(sets, observed, _KEYS)
        lacking = sorted({*observed["@series"]} - {*means["@series"]}, key=natural_key)
        if sets and lacking:
            where = f"{_plural(request.panel)} lack them"
            notes.append(f"Not in the mean, because some {where}: {first_few(lacking, 5)}.")
    points = summarize(pd.concat([means, observed]), _KEYS)
    points = with_intervals(points, observed, sets, _KEYS, request.y)
    if len(names) > _MAX_PANELS and len(means):
        points = points[[at[0] in sets for at in points.index]]
        notes.append(f"The {len(names)} {_plural(request.panel)} have no panels of their own.")
    notes = [_describe(points, observed), *describe_seeds(points, request.pool), *notes]
    members = (
        pd.concat([means, observed])[_KEYS].reset_index(names="@run").groupby(_KEYS, sort=False)
    )
    points["runs"] = members["@run"].agg(tuple)
    chances = observed.assign(**{_CHANCE: find_chances(observed)}).groupby(_KEYS)[_CHANCE]
    points = points.join(chances.max())
    points = points.reset_index(names=["panel", "series", "x"])
    for end, sign in (("low", -1), ("high", 1)):  # The deviation inside a run, if nothing else.
        points[end] = points[end].fillna(points["mean"] + sign * points["within"])
    return points, notes


def _has_place(x: Any, *, log_x: bool) -> bool:
    return is_number(x) and x > 0 if log_x else x != ""


def _add_through(request: PlotRequest, observed: pd.DataFrame) -> pd.DataFrame:
    """Adds the observations of the series `request.through` to all other series of their panel."""
    shared = observed[observed["@series"] == request.through]
    names = {*observed["@series"]}
    if names and shared.empty:
        raise ConfigError(
            f"through={request.through}: no {request.series} has this name",
            f"one of {first_few(sorted(names, key=natural_key), 8)}",
            f"did you mean {nearest(str(request.through), names)!r}?",
        )
    others = observed.loc[observed["@series"] != request.through, ["@panel", "@series"]]
    shared = shared.drop(columns="@series").reset_index(names="@run")
    added = shared.merge(others.drop_duplicates(), on="@panel").set_index("@run")
    return pd.concat([observed, added])


def _notes(request: PlotRequest, observed: pd.DataFrame, unplaced: Iterable[Run]) -> list[str]:
    notes = []
    differing = [name for name in differing_within(observed, _KEYS) if name != request.x]
    if differing:
        notes.append(f"Runs of one point differ in more than the seed: {', '.join(differing)}.")
    if kind_of(request.y).images and tested_apart(observed, _KEYS):
        notes.append(APART)
    notes += doubts(observed)
    pairs = {(run.train_exaflops, run.examples_seen) for run in observed.index}
    costs = [flops * 1e12 / seen for flops, seen in pairs if flops and seen]
    if costs and max(costs) > 2 * min(costs):
        ends = f"{min(costs):.3g} to {max(costs):.3g} MFLOPs for a training image"
        notes.append(f"The models differ in cost by more than twice: {ends}.")
    reasons = sorted({run.unknown_pretraining for run in unplaced} - {""})
    why = f" ({'; '.join(reasons)})" if reasons and request.x.startswith("pretrain") else ""
    positive = ", or not above 0" * (request.log_x or request.log_y)
    return notes + left_out("plot", unplaced, [request.x, request.series], why + positive)


def _describe(points: pd.DataFrame, observed: pd.DataFrame) -> str:
    if points.empty:
        return "No finished run has both x and y."
    text = describe_means(points)
    if observed[WITHIN].notna().any() and points["low"].isna().any():
        text += "; bars without an interval: standard deviation over the draws inside a run"
    return f"{text}; faint: each run." if (points["n"] > 1).any() else f"{text}."


def draw_plot(request: PlotRequest, frame: pd.DataFrame, palette: Palette) -> list[Drawing]:
    """Draws a plot, or nothing if no run has both x and y."""
    points, notes = plot_points(request, frame)
    if points.empty:
        return []
    palette.add(request.series, points["series"])
    x_title = title_of(_own_name(request.x, points))
    if request.x.endswith("exaflops") and all(map(is_number, points["x"])):
        factor, unit = flops_unit(max(points["x"]))
        points = points.assign(x=[x * factor for x in points["x"]])
        x_title = x_title.replace("exaFLOPs", unit)
    panels = _panels(request, points, palette, x_title)
    columns = min(_MAX_COLUMNS + (len(panels) == _MAX_COLUMNS + 1), len(panels))
    rows = panels[0].rows
    size = (3.6, 3.1) if columns > 1 else (6.2, 3.7)
    if rows:
        in_a_row = points.groupby(["panel", "x"]).size().max()
        size = 6.2 / columns**0.4, 1 + (0.24 + 0.1 * in_a_row) * len(rows)
    legend = None if rows and request.series == request.x else request.series
    return [Drawing(_heading(request, points), notes, panels, columns, size, legend)]


def _own_name(x: str, points: pd.DataFrame) -> str:
    """Returns the column for a run's own training if no run was initialised from another one."""
    runs = [run for runs in points["runs"] for run in runs if isinstance(run, Run)]
    scratch = runs and all(run.init_from is None for run in runs)
    return x.replace("pretrain_", "train_") if scratch else x


def _heading(request: PlotRequest, points: pd.DataFrame) -> str:
    if _own_name(request.x, points) != request.x:
        return request.heading.replace("pre-training", "training")
    return request.heading


def _chance(points: pd.DataFrame) -> float | None:
    """Returns the accuracy of guessing in a panel; None: not known, or not the same everywhere."""
    known = {*points[_CHANCE].dropna()}
    return known.pop() if len(known) == 1 else None


def _score_title(request: PlotRequest) -> str:
    return title_of(request.y) + (", %" if kind_of(request.y).is_fraction else "")


def _panels(
    request: PlotRequest, points: pd.DataFrame, palette: Palette, x_title: str
) -> list[Panel]:
    """Returns for each series its means, and the runs behind them."""
    scale = 100 if kind_of(request.y).is_fraction else 1
    # A single x gives a row: an axis would only show how far series are drawn apart.
    numeric, panels = all(map(is_number, points["x"])) and points["x"].nunique() > 1, []
    rows = [] if numeric else _members(points)
    for name, of_panel in points.groupby("panel", sort=False):
        traces = []
        series = [*of_panel.groupby("series", sort=False)]
        for i, (member, line) in enumerate(series):
            style = palette.style(request.series, str(member))
            xs = [x if numeric else rows.index(format_value(x)) for x in line["x"]]
            log_x = numeric and request.log_x
            at = _beside(xs, i, len(series), of_panel, numeric=numeric, log_x=log_x)
            if not numeric:
                xs = at
            means, low, high = (scale * line[name] for name in ("mean", "low", "high"))
            counts = [*line["n"]]
            own = [
                runs[0] if len(runs) == 1 and isinstance(runs[0], Run) else None
                for runs in line["runs"]
            ]
            traces.append(Trace(str(member), style, "means", xs, means, low, high, counts, own, at))
            behind = [
                (x, scale * value, run if isinstance(run, Run) else None, place)
                for x, place, values, runs in zip(xs, at, line["values"], line["runs"], strict=True)
                for value, run in zip(values, runs, strict=True)
                if len(values) > 1
            ]
            if behind:
                own_xs, ys, of, places = zip(*behind, strict=True)
                traces.append(Trace(str(member), style, "runs", own_xs, ys, runs=of, at=places))
        # A shared point is drawn over the lines that go through it.
        traces.sort(key=lambda trace: trace.series == request.through)
        if (chance := _chance(of_panel)) is not None:
            ends = [min(of_panel["x"]), max(of_panel["x"])] if numeric else [-0.5, len(rows) - 0.5]
            traces.append(Trace("chance", CHANCE, "chance", ends, [scale * chance] * 2))
        panels.append(Panel(str(name), x_title if numeric else _score_title(request),
                            _score_title(request) if numeric else "", traces,
                            log_x=numeric and request.log_x, log_y=numeric and request.log_y,
                            rows=rows))  # fmt: skip
    return panels


def _beside(
    places: Sequence[float],
    i: int,
    count: int,
    points: pd.DataFrame,
    *,
    numeric: bool,
    log_x: bool,
) -> Sequence[float]:
    """Returns where series `i` of `count` is drawn, so that series that share an x are apart.

    `places` are numbers on the x-axis, or rows unless x is `numeric`.
    """
    if not points["x"].duplicated().any():
        return places
    middle = i - (count - 1) / 2
    if not numeric:
        return [row + middle * 0.6 / count for row in places]
    low, high = min(points["x"]), max(points["x"])
    share = 0.012 * middle
    if log_x:
        return [x * ((high / low) if high > low else 2) ** share for x in places]
    return [x + share * ((high - low) or 1) for x in places]


def _members(points: pd.DataFrame) -> list[str]:
    return sorted({format_value(x) for x in points["x"]}, key=natural_key)


def _plural(name: str | None) -> str:
    return "panels" if name is None or "+" in name else f"{name.split('.')[-1]}s"
