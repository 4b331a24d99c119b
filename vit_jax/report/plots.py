"""Plots of a score against data, shots, compute or any other column, like Figures 3 to 5."""

import itertools
from collections.abc import Sequence
from typing import Any

import pandas as pd

from vit_jax.errors import ConfigError, first_few, nearest
from vit_jax.report import vtab
from vit_jax.report.frame import (
    check_columns,
    column,
    differing_within,
    observations,
    select,
    text_column,
    unknown_pretraining,
)
from vit_jax.report.labels import (
    format_value,
    is_fraction,
    is_number,
    natural_key,
    short_number,
    title_of,
)
from vit_jax.report.requests import PlotRequest
from vit_jax.report.runs import Run
from vit_jax.report.scores import Groups, Key, Summary, group_by, means_over, summarize_groups
from vit_jax.report.style import Drawing, Palette, add_legend, new_figure, plot_style

# Panels per row. Four panels also fit in one row.
_MAX_COLUMNS = 3
# With more panels than this, only their means are drawn.
_MAX_PANELS = 9


def plot_points(request: PlotRequest, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Groups the observations of a plot into points.

    Args:
        request: what to plot.
        frame: of the runs to report.

    Returns:
        One row per point, with the columns panel, series, x, mean, std and values; and the
        sentences to put below the plot.

    Raises:
        ConfigError: no run has a column or metric of that name.
    """
    observed = observations(frame, request.y, "y")
    check_columns(observed, x=request.x, series=request.series, panel=request.panel)
    observed = select(observed, request.where)
    xs, series = column(observed, request.x), text_column(observed, request.series)
    known = xs.notna() & (series != "")
    if request.log_x:
        known &= xs.map(lambda x: is_number(x) and x > 0).astype(bool)
    unplaced = [*observed.index[~known]]
    observed, xs, series = observed[known], xs[known], series[known]
    panels = text_column(observed, request.panel) if request.panel else series.map(lambda _: "")
    xs = xs.map(lambda x: x if is_number(x) else format_value(x)).astype(object)
    groups = group_by(observed, panels, series, xs)
    notes = _notes(request, groups, unplaced)
    if request.through is not None:
        _add_through(request, groups)
        notes.append(f"The lines of all series go through {request.through}.")
    points, names = _points(request, groups), {panel for panel, _, _ in groups}
    if names and not names & {panel for panel, _, _ in points}:
        notes.append(f"The {len(names)} {_plural(request.panel)} have no panels of their own.")
    rows = [
        [panel, series, x, summary.mean, summary.std or summary.within, summary.values]
        for (panel, series, x), summary in points.items()
    ]
    header = ["panel", "series", "x", "mean", "std", "values"]
    return pd.DataFrame(rows, columns=header, dtype=object), notes


def _add_through(request: PlotRequest, groups: dict[Key, pd.DataFrame]) -> None:
    """Adds the points of the series `request.through` to all other series of their panel.

    Raises:
        ConfigError: there is no such series.
    """
    names = {str(series) for _, series, _ in groups}
    if groups and request.through not in names:
        raise ConfigError(
            f"through={request.through}: no {request.series} has this name",
            f"one of {first_few(sorted(names, key=natural_key), 8)}",
            f"did you mean {nearest(str(request.through), names)!r}?",
        )
    for (panel, name, x), group in list(groups.items()):
        if name == request.through:
            for other in {series for p, series, _ in groups if p == panel} - {name}:
                there = groups.get((panel, other, x))
                groups[panel, other, x] = group if there is None else pd.concat([there, group])


def _points(request: PlotRequest, groups: Groups) -> dict[Key, Summary]:
    """Returns the points of every panel; with several panels, one with their mean comes first."""
    groups = {key: groups[key] for key in sorted(groups, key=lambda key: [*map(natural_key, key)])}
    panels = [*dict.fromkeys(str(panel) for panel, _, _ in groups)]
    points = summarize_groups(groups)
    if len(panels) < 2:
        return points
    sets = vtab.group_tasks(panels)
    sets = sets or {f"Mean of {len(panels)} {_plural(request.panel)}": panels}
    means = means_over(sets, groups)
    return means if len(panels) > _MAX_PANELS and means else means | points


def _notes(request: PlotRequest, groups: Groups, unplaced: Sequence[Run]) -> list[str]:
    counts = sorted({len(group) for group in groups.values()})
    if not counts:
        notes = ["No finished run has both x and y."]
    elif counts == [1]:
        notes = ["One run a point, so no dispersion."]
        if any(summary.within is not None for summary in summarize_groups(groups).values()):
            notes = ["One run a point; bars: standard deviation (n - 1) over its own draws."]
    else:
        n = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        notes = [f"Means of n = {n} runs; bars: standard deviation (n - 1); faint: each run."]
    num_seeds = {group["seed"].nunique() for group in groups.values()}
    if len({panel for panel, _, _ in groups}) > 1 and len(num_seeds) > 1:
        notes.append("A mean over panels with different seeds has no bar.")
    differing = [name for name in differing_within(groups.values()) if name != request.x]
    if differing:
        notes.append(f"Runs of one point differ in more than the seed: {', '.join(differing)}.")
    if unplaced:
        reasons = sorted({unknown_pretraining(run) for run in unplaced} - {""})
        why = f" ({'; '.join(reasons)})" if reasons and request.x.startswith("pretrain") else ""
        names = sorted({run.name for run in unplaced}, key=natural_key)
        notes.append(f"Not shown, because {request.x} is not known{why}: {first_few(names, 5)}.")
    return notes


def draw_plot(request: PlotRequest, frame: pd.DataFrame, palette: Palette) -> list[Drawing]:
    """Draws a plot, or nothing if no run has both x and y.

    Args:
        request: what to plot.
        frame: of the runs to report.
        palette: colours of the report.

    Raises:
        ConfigError: no run has a column or metric of that name.
    """
    points, notes = plot_points(request, frame)
    if points.empty:
        return []
    return [(request.heading, _draw_panels(request, points, palette), notes)]


def _draw_panels(request: PlotRequest, points: pd.DataFrame, palette: Palette) -> Any:
    palette.add(request.series, points["series"])
    panels = [*points.groupby("panel", sort=False)]
    numeric = all(map(is_number, points["x"]))
    columns = min(_MAX_COLUMNS + (len(panels) == _MAX_COLUMNS + 1), len(panels))
    members = [_members(of_panel) for _, of_panel in panels]
    score = title_of(request.y) + (", %" if is_fraction(request.y) else "")
    if numeric:
        size = {"width": 3.6, "height": 3.1} if columns > 1 else {"width": 6.2, "height": 3.7}
        x_title, y_title = title_of(request.x), score
    else:
        size = {"width": 6.2 / columns**0.4, "height": 1.0 + 0.34 * max(map(len, members))}
        x_title, y_title = score, ""
    handles: dict[str, Any] = {}
    with plot_style():
        figure, axes = new_figure(-(-len(panels) // columns), columns, **size)
        for i, (name, of_panel) in enumerate(panels):
            panel, first, last = axes.flat[i], i % columns == 0, i >= len(panels) - columns
            handles |= _draw_panel(panel, request, of_panel, palette, numeric=numeric)
            if not first and not numeric and all(other == members[0] for other in members):
                panel.set_yticklabels([])
            panel.set_title(name)
            panel.set_xlabel(x_title if last else "")
            panel.set_ylabel(y_title if first else "")
        for panel in axes.flat[len(panels) :]:
            panel.remove()
        if numeric or request.series != request.x:
            names = sorted(handles, key=natural_key)
            add_legend(figure, {name: handles[name] for name in names}, request.series)
    return figure


def _draw_panel(
    panel: Any, request: PlotRequest, points: pd.DataFrame, palette: Palette, *, numeric: bool
) -> dict[str, Any]:
    """Draws one line per series; if x is text, one row per x with the score on the x-axis.

    Returns:
        Series -> its line, for the legend.
    """
    scale = 100 if is_fraction(request.y) else 1
    handles, rows, series = {}, _members(points), [*points.groupby("series", sort=False)]
    # Series that share a row are drawn below each other.
    step = 0.6 / len(series) if points["x"].duplicated().any() else 0.0
    for i, (name, line) in enumerate(series):
        style = palette.style(request.series, name) | {"markeredgecolor": "none", "capsize": 0}
        shift = (i - (len(series) - 1) / 2) * step
        places = [x if numeric else rows.index(format_value(x)) + shift for x in line["x"]]
        means = [scale * mean for mean in line["mean"]]
        bars = [scale * (std or 0) for std in line["std"]]
        for place, values in zip(places, line["values"], strict=True):
            if len(values) > 1:
                faint = [place] * len(values), [scale * value for value in values]
                panel.plot(
                    *(faint if numeric else reversed(faint)),
                    linestyle="none",
                    marker="o",
                    markersize=3.6,
                    color=style["color"],
                    alpha=0.4,
                    markeredgewidth=0,
                    zorder=2,
                )
        if numeric:
            style |= {"yerr": bars, "elinewidth": 1.1, "zorder": 3 + (name == request.through)}
            handles[name] = panel.errorbar(places, means, **style)
        else:
            style |= {"xerr": bars, "elinewidth": 1.3, "zorder": 3, "linestyle": "none"}
            handles[name] = panel.errorbar(means, places, **style)
    if numeric:
        _set_ticks(panel, sorted({*points["x"]}), log_x=request.log_x)
        panel.margins(x=0.08, y=0.12)
    else:
        panel.set_yticks(range(len(rows)), rows)
        panel.set_ylim(len(rows) - 0.5, -0.5)
        panel.grid(visible=False, axis="y")
        panel.margins(x=0.1)
    return handles


def _set_ticks(panel: Any, xs: Sequence[float], *, log_x: bool) -> None:
    """Puts ticks at the points if there is room, and labels them with short numbers."""
    from matplotlib import ticker

    panel.set_xscale("log" if log_x else "linear")
    panel.xaxis.set_major_formatter(short_number)
    panel.xaxis.set_minor_formatter(ticker.NullFormatter())
    if not log_x:
        return
    gaps = [b / a for a, b in itertools.pairwise(xs)]
    if not gaps or min(gaps) > (xs[-1] / xs[0]) ** 0.09:
        panel.set_xticks(xs)
        panel.set_xticks([], minor=True)
    elif xs[-1] < 100 * xs[0]:  # Powers of ten would be one or two ticks.
        panel.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))


def _members(points: pd.DataFrame) -> list[str]:
    return sorted({format_value(x) for x in points["x"]}, key=natural_key)


def _plural(name: str | None) -> str:
    return "panels" if name is None or "+" in name else f"{name.split('.')[-1]}s"
