"""Plots of a score against data, shots, compute or any other column, like Figures 3 to 5."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pandas as pd

from vit_jax.errors import ConfigError, first_few, nearest
from vit_jax.report import frame as frames
from vit_jax.report import vtab
from vit_jax.report.frame import column, text_column
from vit_jax.report.labels import (
    format_value,
    is_fraction,
    is_number,
    legend_title,
    natural_key,
    short_number,
    title_of,
)
from vit_jax.report.requests import PlotRequest
from vit_jax.report.runs import Run
from vit_jax.report.style import Palette, add_legend, new_figure, plot_style
from vit_jax.report.tables import Summary, mean_over_datasets, summarize_group

# Panels per row. Four panels also fit in one row.
_MAX_COLUMNS = 3
# With more panels than this, only their means are drawn.
_MAX_PANELS = 9

# (panel, series, x) -> observations.
Groups = dict[tuple[Any, ...], pd.DataFrame]
# Series -> x -> mean and standard deviation.
Series = dict[str, dict[Any, Summary]]


@dataclasses.dataclass(frozen=True)
class PlotData:
    """The points of a plot.

    Attributes:
        request: what to plot.
        panels: heading -> series -> x -> mean and standard deviation.
        notes: sentences below the plot.
    """

    request: PlotRequest
    panels: dict[str, Series]
    notes: list[str]

    @property
    def numeric(self) -> bool:
        """Whether every x is a number; otherwise each x gets a row."""
        return all(is_number(x) for series in self.panels.values() for x in _xs(series))


def plot_data(request: PlotRequest, frame: pd.DataFrame) -> PlotData:
    """Groups the observations of a plot into points.

    Args:
        request: what to plot.
        frame: of the runs to report.

    Raises:
        ConfigError: no run has a column or metric of that name.
    """
    frames.check_metric(frame, request.y, "y")
    observed = frames.observations(frame, request.y)
    frames.check_columns(observed, x=request.x, series=request.series, panel=request.panel)
    observed = frames.select(observed, request.where)
    xs, series = column(observed, request.x), text_column(observed, request.series)
    known = [
        x is not None and bool(name) and (not request.log_x or (is_number(x) and x > 0))
        for x, name in zip(xs, series, strict=True)
    ]
    unplaced = [run for run, is_known in zip(observed.index, known, strict=True) if not is_known]
    observed, xs, series = observed.loc[known], xs.loc[known], series.loc[known]
    panels = text_column(observed, request.panel) if request.panel else series.map(lambda _: "")
    xs = xs.map(lambda x: x if is_number(x) else format_value(x)).astype(object)
    groups = frames.group_by(observed, [panels, series, xs])
    notes = _notes(request, groups, unplaced)
    if request.through is not None:
        _add_through(request, groups)
        notes.append(f"The lines of all series go through {request.through}.")
    drawn, names = _summaries(request, groups), {panel for panel, _, _ in groups}
    if names and not names & set(drawn):
        notes.append(f"The {len(names)} {_plural(request.panel)} have no panels of their own.")
    return PlotData(request, drawn, notes)


def _add_through(request: PlotRequest, groups: Groups) -> None:
    """Adds the points of the series `request.through` to all other series of their panel.

    Raises:
        ConfigError: there is no such series.
    """
    names = {series for _, series, _ in groups}
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


def _summaries(request: PlotRequest, groups: Groups) -> dict[str, Series]:
    """Returns the points of every panel; with several panels, one with their mean comes first."""
    keys = sorted(groups, key=lambda key: [natural_key(part) for part in key])
    panels: dict[str, Series] = {key[0]: {} for key in keys}
    for panel, series, x in keys:
        summary = summarize_group(groups[panel, series, x])
        if summary.within is not None:
            summary = summary._replace(std=summary.within)
        panels[panel].setdefault(series, {})[x] = summary
    if len(panels) < 2:
        return panels
    means: dict[str, Series] = {}
    sets = vtab.group_tasks(panels) or {
        f"Mean of {len(panels)} {_plural(request.panel)}": [*panels]
    }
    places = sorted(
        {key[1:] for key in groups}, key=lambda key: [natural_key(part) for part in key]
    )
    for (heading, members), (series, x) in itertools.product(sets.items(), places):
        found = [groups[name, series, x] for name in members if (name, series, x) in groups]
        if len(found) == len(members):
            means.setdefault(heading, {}).setdefault(series, {})[x] = mean_over_datasets(found)
    return means if len(panels) > _MAX_PANELS and means else means | panels


def _notes(request: PlotRequest, groups: Groups, unplaced: list[Run]) -> list[str]:
    counts = sorted({len(group) for group in groups.values()})
    if not counts:
        notes = ["No finished run has both x and y."]
    elif counts == [1]:
        notes = ["One run a point, so no dispersion."]
        if any(summarize_group(group).within is not None for group in groups.values()):
            notes = ["One run a point; bars: standard deviation (n - 1) over its own draws."]
    else:
        n = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        notes = [f"Means of n = {n} runs; bars: standard deviation (n - 1); faint: each run."]
    num_seeds = {len({run.seed for run in group.index}) for group in groups.values()}
    if len({panel for panel, _, _ in groups}) > 1 and len(num_seeds) > 1:
        notes.append("A mean over panels with different seeds has no bar.")
    differing = [name for name in frames.differing_within(groups.values()) if name != request.x]
    if differing:
        notes.append(f"Runs of one point differ in more than the seed: {', '.join(differing)}.")
    if unplaced:
        reasons = sorted({frames.unknown_pretraining(run) for run in unplaced} - {""})
        why = f" ({'; '.join(reasons)})" if reasons and request.x.startswith("pretrain") else ""
        names = sorted({run.name for run in unplaced}, key=natural_key)
        notes.append(f"Not shown, because {request.x} is not known{why}: {first_few(names, 5)}.")
    return notes


def draw(data: PlotData, palette: Palette) -> Any:
    """Returns a matplotlib figure of a plot."""
    request, panels = data.request, data.panels
    for series in panels.values():
        palette.add(request.series, series)
    columns = min(_MAX_COLUMNS + (len(panels) == _MAX_COLUMNS + 1), len(panels))
    members = [_members(series) for series in panels.values()]
    if data.numeric:
        size = {"width": 3.6, "height": 3.1} if columns > 1 else {"width": 6.2, "height": 3.7}
    else:
        size = {"width": 6.2 / columns**0.4, "height": 1.0 + 0.34 * max(map(len, members))}
    score = title_of(request.y) + (", %" if is_fraction(request.y) else "")
    x_title, y_title = (title_of(request.x), score) if data.numeric else (score, "")
    handles: dict[str, Any] = {}
    with plot_style():
        figure, axes = new_figure(-(-len(panels) // columns), columns, **size)
        for i, (name, series) in enumerate(panels.items()):
            panel, first, last = axes.flat[i], i % columns == 0, i >= len(panels) - columns
            _draw_panel(panel, series, data, palette, handles)
            if not first and not data.numeric and all(other == members[0] for other in members):
                panel.set_yticklabels([])
            panel.set_title(name)
            panel.set_xlabel(x_title if last else "")
            panel.set_ylabel(y_title if first else "")
        for panel in axes.flat[len(panels) :]:
            panel.remove()
        if data.numeric or request.series != request.x:
            names = sorted(handles, key=natural_key)
            title = legend_title(request.series)
            add_legend(figure, [handles[name] for name in names], names, title)
    return figure


def _draw_panel(
    panel: Any, series: Series, data: PlotData, palette: Palette, handles: dict[str, Any]
) -> None:
    """Draws one line per series; if x is text, one row per x with the score on the x-axis."""
    request, members = data.request, _members(series)
    scale = 100 if is_fraction(request.y) else 1
    # Series that share a row are drawn below each other.
    shared = max(Counter(_xs(series)).values(), default=0) > 1
    if request.log_x:
        panel.set_xscale("log")
    for i, (name, points) in enumerate(series.items()):
        style = palette.style(request.series, name) | {"label": name, "markeredgecolor": "none"}
        means = [scale * points[x].mean for x in points]
        bars = [scale * (points[x].std or 0) for x in points]
        shift = (i - (len(series) - 1) / 2) * 0.6 / len(series) if shared else 0.0
        rows = [members.index(format_value(x)) + shift for x in points]
        for row, (x, summary) in zip(rows, points.items(), strict=True):
            values, n = [scale * value for value in summary.values], len(summary.values)
            places = ([x] * n, values) if data.numeric else (values, [row] * n)
            if n > 1:
                panel.plot(
                    *places,
                    linestyle="none",
                    marker="o",
                    markersize=3.6,
                    color=style["color"],
                    alpha=0.4,
                    markeredgewidth=0,
                    zorder=2,
                )
        if data.numeric:
            zorder = 4 if name == request.through else 3
            handles[name] = panel.errorbar(
                [*points], means, yerr=bars, elinewidth=1.1, capsize=0, zorder=zorder, **style
            )
        else:
            style["linestyle"] = "none"
            handles[name] = panel.errorbar(
                means, rows, xerr=bars, elinewidth=1.3, capsize=0, zorder=3, **style
            )
    if data.numeric:
        _set_ticks(panel, sorted({*_xs(series)}), log_x=request.log_x)
        panel.margins(x=0.08, y=0.12)
    else:
        panel.set_yticks(range(len(members)), members)
        panel.set_ylim(len(members) - 0.5, -0.5)
        panel.grid(visible=False, axis="y")
        panel.margins(x=0.1)


def _set_ticks(panel: Any, xs: list[float], *, log_x: bool) -> None:
    """Puts ticks at the points if there is room, and labels them with short numbers."""
    from matplotlib import ticker

    panel.xaxis.set_major_formatter(ticker.FuncFormatter(short_number))
    panel.xaxis.set_minor_formatter(ticker.NullFormatter())
    if not log_x or not xs:
        return
    gaps = [b / a for a, b in itertools.pairwise(xs)]
    if not gaps or min(gaps) > (xs[-1] / xs[0]) ** 0.09:
        panel.xaxis.set_major_locator(ticker.FixedLocator(xs))
        panel.xaxis.set_minor_locator(ticker.NullLocator())
    elif xs[-1] < 100 * xs[0]:  # Powers of ten would be one or two ticks.
        panel.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))


def _xs(series: Series) -> Iterable[Any]:
    return (x for points in series.values() for x in points)


def _members(series: Series) -> list[str]:
    return sorted({format_value(x) for x in _xs(series)}, key=natural_key)


def _plural(name: str | None) -> str:
    return "panels" if name is None or "+" in name else f"{name.split('.')[-1]}s"
