"""Score against data, shots, compute or any other field, with dispersion, after Figures 3 to 5."""

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.errors import ConfigError, first_few, nearest
from vit_jax.report import vtab
from vit_jax.report.dispersion import Summary, mean_over, summarize, within_run
from vit_jax.report.fields import Fields, Observation, metric_regex, mixed_settings, select
from vit_jax.report.requests import PlotRequest, plot_title
from vit_jax.report.runs import Run, natural
from vit_jax.report.style import Palette, add_legend, house_style, new_figure, short_number
from vit_jax.report.words import is_share, legend_title, show, title_of

# More panels than this stand in several rows.
_MOST_COLUMNS = 3
# Of more datasets than this only the means are drawn.
_MOST_PANELS = 9


@dataclasses.dataclass(frozen=True)
class PlotData:
    """What a plot shows.

    Attributes:
        request: what was asked for.
        title: heading.
        panels: heading -> series -> x -> mean and dispersion. x is a number, or a text if any is.
        notes: sentences on what is shown and what is left out.
    """

    request: PlotRequest
    title: str
    panels: dict[str, dict[str, dict[Any, Summary]]]
    notes: list[str]

    @property
    def numeric(self) -> bool:
        """Whether x is a number everywhere."""
        return all(
            isinstance(x, (int, float))
            for series in self.panels.values() for points in series.values() for x in points
        )  # fmt: skip

    def points(self) -> int:
        """Returns the number of means."""
        return sum(len(p) for series in self.panels.values() for p in series.values())


def plot_data(request: PlotRequest, runs: Sequence[Run], fields: Fields) -> PlotData:
    """Gathers what a plot shows.

    Args:
        request: what is asked for.
        runs: those that are to be reported.
        fields: of all runs.

    Raises:
        ConfigError: a field or metric that no run has.
    """
    bound = set(metric_regex(request.y).groupindex)
    fields.check_metric(request.y, "y")
    for what in ("x", "series", "panel"):
        name = getattr(request, what)
        if name is not None:
            fields.check(name, what, bound)
    chosen = select(fields, fields.observations(runs, request.y), request.where)
    groups: dict[tuple[str, str, Any], list[Observation]] = defaultdict(list)
    without: list[Run] = []
    for observation in chosen:
        x = fields.value(observation, request.x)
        series = show(fields.value(observation, request.series))
        panel = show(fields.value(observation, request.panel)) if request.panel else ""
        if x is None or not series or (request.log_x and (not _is_number(x) or x <= 0)):
            without.append(observation.run)
        else:
            groups[panel, series, x if _is_number(x) else show(x)].append(observation)
    notes = _notes(request, groups, without, fields)
    if request.through is not None:
        notes.append(_lead_through(request, groups))
    panels = _panels(groups, request)
    title = request.title or plot_title(request)
    names = {panel for panel, _, _ in groups}
    if names and not names & set(panels):
        notes.append(f"Panels of the {len(names)} {_plural(request.panel)} are left out.")
    return PlotData(request, title, panels, notes)


def draw(data: PlotData, palette: Palette) -> Any:
    """Draws a plot.

    Returns:
        A matplotlib figure.
    """
    for series in data.panels.values():
        palette.add(data.request.series, series)
    most = _MOST_COLUMNS + (len(data.panels) == _MOST_COLUMNS + 1)
    columns = min(most, len(data.panels)) or 1
    rows = -(-len(data.panels) // columns) or 1
    with house_style():
        if data.numeric:
            size = {"width": 3.6, "height": 3.1} if columns > 1 else {"width": 6.2, "height": 3.7}
        else:
            longest = max((len(_members(s)) for s in data.panels.values()), default=1)
            size = {"width": 6.2 / columns**0.4, "height": 1.0 + 0.34 * longest}
        figure, axes = new_figure(rows, columns, **size)
        handles: dict[str, Any] = {}
        for i, (name, series) in enumerate(data.panels.items()):
            panel = axes[i // columns][i % columns]
            panel.set_title(name)
            draw_one = _draw_lines if data.numeric else _draw_rows
            draw_one(panel, series, data, palette, handles)
            if i % columns and not data.numeric and _same_members(data.panels):
                panel.set_yticklabels([])
            _label(panel, data, first=i % columns == 0, last=i >= len(data.panels) - columns)
        for i in range(len(data.panels), rows * columns):
            axes[i // columns][i % columns].remove()
        if data.numeric or data.request.series != data.request.x:
            names = sorted(handles, key=natural)
            title = legend_title(data.request.series)
            add_legend(figure, [handles[n] for n in names], names, title)
    return figure


def _panels(
    groups: Mapping[tuple[str, str, Any], Sequence[Observation]], request: PlotRequest
) -> dict[str, dict[str, dict[Any, Summary]]]:
    """Returns the means; with several panels those over all, or over VTAB's groups, come first."""
    names = sorted({panel for panel, _, _ in groups}, key=natural)
    found: dict[str, dict[str, dict[Any, Summary]]] = {name: {} for name in names}
    for panel, series, x in sorted(groups, key=lambda key: [natural(part) for part in key]):
        group = groups[panel, series, x]
        figures = summarize([o.value for o in group])
        if (draws := within_run(group)) is not None:
            figures = dataclasses.replace(figures, std=draws)
        found[panel].setdefault(series, {})[x] = figures
    if len(names) < 2:
        return found
    averages: dict[str, dict[str, dict[Any, Summary]]] = {}
    sets = vtab.grouped(names) or {f"Mean of {len(names)} {_plural(request.panel)}": names}
    for heading, members in sets.items():
        for series, x in sorted({key[1:] for key in groups}, key=lambda k: [*map(natural, k)]):
            there = [groups.get((name, series, x), []) for name in members]
            if all(there):
                averages.setdefault(heading, {}).setdefault(series, {})[x] = mean_over(there)
    return averages if len(names) > _MOST_PANELS and averages else averages | found


def _lead_through(
    request: PlotRequest, groups: dict[tuple[str, str, Any], list[Observation]]
) -> str:
    """Puts the points of `request.through` on every other line of their panel, and says so.

    Raises:
        ConfigError: no series has this name.
    """
    names = {series for _, series, _ in groups}
    if groups and request.through not in names:
        raise ConfigError(
            f"through={request.through}: no member of {request.series} has this name",
            f"one of {first_few(sorted(names, key=natural), 8)}",
            f"did you mean {nearest(str(request.through), names)!r}?",
        )
    for (panel, name, x), group in list(groups.items()):
        if name == request.through:
            for other in {s for p, s, _ in groups if p == panel} - {name}:
                groups[panel, other, x] += group
    return f"The lines of all series go through {request.through}."


def _plural(field: str | None) -> str:
    return "panels" if field is None or "+" in field else f"{field.split('.')[-1]}s"


def _draw_lines(
    panel: Any, series: dict[str, dict[Any, Summary]], data: PlotData, palette: Palette,
    handles: dict[str, Any],
) -> None:  # fmt: skip
    scale = 100 if is_share(data.request.y) else 1
    if data.request.log_x:
        panel.set_xscale("log")
    for name, points in series.items():
        style = palette.style(data.request.series, name)
        xs = sorted(points)
        for x in xs:
            _draw_seeds(panel, [x] * points[x].n, [scale * v for v in points[x].values], style)
        handles[name] = panel.errorbar(
            xs, [scale * points[x].mean for x in xs],
            yerr=[scale * (points[x].std or 0) for x in xs],
            elinewidth=1.1, capsize=0, label=name, markeredgecolor="none",
            zorder=4 if name == data.request.through else 3, **style,
        )  # fmt: skip
    _ticks(panel, {x for points in series.values() for x in points}, data.request.log_x)
    panel.margins(x=0.08, y=0.12)


def _draw_rows(
    panel: Any, series: dict[str, dict[Any, Summary]], data: PlotData, palette: Palette,
    handles: dict[str, Any],
) -> None:  # fmt: skip
    """Draws a row for each text on the x axis, which here stands upright."""
    scale = 100 if is_share(data.request.y) else 1
    members = _members(series)
    # Rows that several series share are divided among them.
    shared = Counter(x for points in series.values() for x in points)
    many = len(series) if shared and max(shared.values()) > 1 else 1
    for i, (name, points) in enumerate(series.items()):
        style = palette.style(data.request.series, name)
        shift = (i - (many - 1) / 2) * 0.6 / many if many > 1 else 0.0
        rows = [members.index(show(x)) + shift for x in points]
        for row, summary in zip(rows, points.values(), strict=True):
            _draw_seeds(panel, [scale * v for v in summary.values], [row] * summary.n, style)
        handles[name] = panel.errorbar(
            [scale * s.mean for s in points.values()], rows,
            xerr=[scale * (s.std or 0) for s in points.values()],
            elinewidth=1.3, capsize=0, label=name, markeredgecolor="none", zorder=3,
            **{**style, "linestyle": "none"},
        )  # fmt: skip
    panel.set_yticks(range(len(members)), members)
    panel.set_ylim(len(members) - 0.5, -0.5)
    panel.grid(visible=False, axis="y")
    panel.margins(x=0.1)


def _draw_seeds(panel: Any, xs: list[Any], ys: list[Any], style: dict[str, Any]) -> None:
    if len(xs) > 1:
        panel.plot(
            xs, ys, linestyle="none", marker="o", markersize=3.6, color=style["color"],
            alpha=0.4, markeredgewidth=0, zorder=2,
        )  # fmt: skip


def _label(panel: Any, data: PlotData, *, first: bool, last: bool) -> None:
    unit = ", %" if is_share(data.request.y) else ""
    score, x = f"{title_of(data.request.y)}{unit}", title_of(data.request.x)
    if not data.numeric:
        panel.set_xlabel(score if last else "")
        return
    panel.set_xlabel(x if last else "")
    panel.set_ylabel(score if first else "")


def _ticks(panel: Any, xs: set[float], log_x: bool) -> None:
    """Puts the ticks where the points are, if there is room; else writes short numbers."""
    from matplotlib.ticker import (
        FixedLocator,
        FuncFormatter,
        LogLocator,
        NullFormatter,
        NullLocator,
    )

    panel.xaxis.set_major_formatter(FuncFormatter(short_number))
    panel.xaxis.set_minor_formatter(NullFormatter())
    places = sorted(xs)
    if log_x and len(places) > 1:
        gaps = [b / a for a, b in itertools.pairwise(places)]
        if min(gaps) > (places[-1] / places[0]) ** 0.09:
            panel.xaxis.set_major_locator(FixedLocator(places))
            panel.xaxis.set_minor_locator(NullLocator())
        elif places[-1] < 100 * places[0]:  # Powers of ten would be one or two ticks.
            panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    elif log_x and places:
        panel.xaxis.set_major_locator(FixedLocator(places))
        panel.xaxis.set_minor_locator(NullLocator())


def _members(series: dict[str, dict[Any, Summary]]) -> list[str]:
    return sorted({show(x) for points in series.values() for x in points}, key=natural)


def _same_members(panels: dict[str, dict[str, dict[Any, Summary]]]) -> bool:
    return len({tuple(_members(series)) for series in panels.values()}) == 1


def _notes(
    request: PlotRequest,
    groups: Mapping[tuple[str, str, Any], Sequence[Observation]],
    without: Sequence[Run],
    fields: Fields,
) -> list[str]:
    counts = sorted({len(group) for group in groups.values()})
    if not counts:
        notes = ["No finished run has both x and y."]
    elif counts == [1]:
        notes = ["One run a point, so no dispersion."]
        if any(within_run(group) is not None for group in groups.values()):
            notes = ["One run a point; bars: standard deviation (n - 1) over its own draws."]
    else:
        n = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        notes = [f"Means of n = {n} runs; bars: standard deviation (n - 1); faint: each run."]
    counts_of = {len({o.run.seed for o in group}) for group in groups.values()}
    if len({panel for panel, _, _ in groups}) > 1 and len(counts_of) > 1:
        notes.append("A mean over panels whose seeds are not the same has no bar.")
    mixed = mixed_settings(list(groups.values()))
    mixed = [key for key in mixed if key != request.x]
    if mixed:
        notes.append(f"Runs of one point differ not in their seed alone but in {', '.join(mixed)}.")
    if without:
        runs = {run.path: run for run in without}.values()
        reasons = sorted({fields.efforts[r.path].note for r in runs} - {""})
        why = f" ({'; '.join(reasons)})" if reasons and request.x.startswith("pretrain") else ""
        names = ", ".join(sorted((r.name for r in runs), key=natural)[:5])
        more = f" and {len(runs) - 5} more" if len(runs) > 5 else ""
        notes.append(f"Left out, as {request.x} is not known{why}: {names}{more}.")
    return notes


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)
