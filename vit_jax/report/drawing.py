"""Pictures of a report, drawn with matplotlib."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vit_jax.report.chart import Drawing, Panel, Trace
from vit_jax.report.labels import natural_key, short_number, title_of
from vit_jax.report.style import CHANCE, GRID, INK, MODEL_COLUMNS, MUTED, SURFACE

DPI = 160
# Markers on a curve.
_MARKS = 8
# The values of single runs, behind their mean.
_FAINT = {"linestyle": "none", "marker": "o", "markersize": 3.6, "markeredgewidth": 0,
          "alpha": 0.4, "zorder": 2}  # fmt: skip
_SETTINGS: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"], "font.size": 9.5,
    "axes.titlesize": 10.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.labelsize": 9.5, "axes.linewidth": 0.8, "axes.axisbelow": True, "axes.grid": True,
    "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": MUTED, "axes.labelcolor": INK, "axes.titlecolor": INK, "text.color": INK,
    "axes.facecolor": SURFACE, "figure.facecolor": SURFACE, "savefig.facecolor": SURFACE,
    "grid.color": GRID, "grid.linewidth": 0.8,
    "xtick.color": MUTED, "xtick.labelcolor": INK, "xtick.major.size": 3, "xtick.minor.size": 0,
    "ytick.color": MUTED, "ytick.labelcolor": INK, "ytick.major.size": 0, "ytick.minor.size": 0,
    "legend.frameon": False, "legend.fontsize": 9.5,
    "lines.linewidth": 1.8, "lines.markersize": 6, "lines.solid_capstyle": "round",
    "svg.fonttype": "none", "svg.hashsalt": "vit_jax", "figure.constrained_layout.use": True,
}  # fmt: skip


@contextmanager
def plot_style() -> Iterator[None]:
    """Sets colours, fonts and lines for the figures that are drawn inside."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        yield


def new_figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, Any]:
    """Returns a figure and its axes [rows, columns]; the size of a panel is in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows + 0.45))
    return figure, figure.subplots(rows, columns, squeeze=False)


def add_legend(
    figure: Any, handles: Mapping[str, Any], column: str = "", side: str = "left"
) -> None:
    """Puts a legend above all panels, on a `side`, and makes room; a single entry needs no legend.

    If the names are values of a `column`, they are sorted, and it becomes the title unless they are
    models.
    """
    if len(handles) < 2:
        return
    names = sorted(handles, key=natural_key) if column else [*handles]
    is_model = column.partition("+")[0] in MODEL_COLUMNS
    title = "" if is_model else title_of(column)
    longest = max(map(len, handles))
    most = max(1, min(len(handles), int(figure.get_figwidth() * 10.5 / (longest + 8))))
    rows = math.ceil(len(handles) / most)
    # Every figure has room for two lines.
    figure.set_figheight(figure.get_figheight() + 0.2 * max(0, rows + bool(title) - 2))
    legend = figure.legend(
        [handles[name] for name in names],
        names,
        loc=f"outside upper {side}",
        ncols=math.ceil(len(handles) / rows),
        title=title or None,
        alignment="left",
        handlelength=3.5,  # Shorter ones do not show the dashes.
        columnspacing=1.4,
        borderaxespad=0.2,
    )
    for text in (*legend.get_texts(), legend.get_title()):
        text.set_parse_math(False)


def draw(drawing: Drawing) -> Any:
    """Returns a figure with the panels of a drawing."""
    panels, columns = drawing.panels, min(drawing.columns, len(drawing.panels))
    width, height = drawing.panel_size
    handles: dict[str, Any] = {}
    with plot_style():
        figure, grid = new_figure(-(-len(panels) // columns), columns, width=width, height=height)
        for i, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
            handles |= _draw_panel(axes, panel)
            axes.set_title(panel.title, parse_math=False)
            if i >= len(panels) - columns:
                axes.set_xlabel(panel.x, parse_math=False)
            if i % columns == 0:
                label = panel.y if all(one.y == panel.y for one in panels) else ""
                axes.set_ylabel(label, parse_math=False)
            elif panel.rows:
                axes.set_yticklabels([])
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        if drawing.legend is not None:
            add_legend(figure, handles, drawing.legend)
    return figure


def _draw_panel(axes: Any, panel: Panel) -> dict[str, Any]:
    """Returns series -> its line, for the legend."""
    handles: dict[str, Any] = {}
    for trace in panel.traces:
        if trace.kind == "chance":
            _draw_chance(axes, trace.y[0], is_row=bool(panel.rows))
        elif trace.kind == "means":
            handles[trace.series] = _draw_means(axes, trace, is_row=bool(panel.rows))
        elif trace.kind == "runs":
            places = trace.x if panel.rows else trace.at
            points = (trace.y, places) if panel.rows else (places, trace.y)
            axes.plot(*points, color=trace.style["color"], **_FAINT)
        elif trace.kind == "end":
            axes.plot(trace.x, trace.y, "x", color=trace.style["color"], ms=8, mew=2)
        else:
            look = {"linewidth": 1.2, "alpha": 0.8, "markeredgewidth": 0, **trace.style}
            # A single point has no line that would show where it is.
            size, every = 4 if len(trace.x) > 1 else 7, max(1, len(trace.x) // _MARKS)
            (line,) = axes.plot(trace.x, trace.y, markersize=size, markevery=every, **look)
            handles.setdefault(trace.series, line)
    if panel.rows:
        axes.set_yticks(range(len(panel.rows)), panel.rows, parse_math=False)
        axes.set_ylim(len(panel.rows) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.1)
        return handles
    means = [trace for trace in panel.traces if trace.kind == "means"]
    _set_ticks(axes, sorted({x for trace in means for x in trace.x}), log_x=panel.log_x)
    axes.set_yscale("log" if panel.log_y else "linear")
    if means:
        axes.margins(x=0.08, y=0.12)
    heights = [y for line in axes.lines for y in line.get_ydata() if math.isfinite(y)]
    if panel.from_zero and heights and max(heights) > 0:
        axes.set_ylim(0, 1.06 * max(heights))
    return handles


def _draw_means(axes: Any, trace: Trace, *, is_row: bool) -> Any:
    style = {**trace.style, "markeredgewidth": 0.8, "capsize": 0, "zorder": 3}
    below = (trace.y - trace.low).fillna(0)
    above = (trace.high - trace.y).fillna(0)
    if is_row:
        style |= {"xerr": [below, above], "elinewidth": 1.3, "linestyle": "none"}
        return axes.errorbar(trace.y, trace.at, **style)
    return axes.errorbar(trace.at, trace.y, yerr=[below, above], elinewidth=1.1, **style)


def _draw_chance(axes: Any, chance: float, *, is_row: bool) -> None:
    """Draws a line at the accuracy of guessing."""
    if is_row:
        axes.axvline(chance, **CHANCE, zorder=1)
        place = {"xy": (chance, 0), "xycoords": axes.get_xaxis_transform(), "va": "bottom"}
    else:
        axes.axhline(chance, **CHANCE, zorder=1)
        place = {"xy": (1, chance), "xycoords": axes.get_yaxis_transform(), "va": "center"}
    axes.annotate(
        "chance", xytext=(3, 1), textcoords="offset points", fontsize=8, color=MUTED, **place
    )


def _set_ticks(axes: Any, xs: Sequence[float], *, log_x: bool) -> None:
    """Puts ticks at the points if there is room, and labels them with short numbers."""
    from matplotlib import ticker

    axes.set_xscale("log" if log_x else "linear")
    axes.xaxis.set_major_formatter(short_number)
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    if not log_x:
        return
    gaps = [b / a for a, b in itertools.pairwise(xs)]
    if not gaps or min(gaps) > (xs[-1] / xs[0]) ** 0.09:
        axes.set_xticks(xs)
        axes.set_xticks([], minor=True)
    elif xs[-1] < 100 * xs[0]:  # Powers of ten would be one or two ticks.
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))


def save(figure: Any, path: Path) -> None:
    """Writes PATH.png and PATH.svg."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with plot_style():
        figure.savefig(path.with_name(f"{path.name}.png"), dpi=DPI)
        figure.set_layout_engine("none")  # Keep the layout of the PNG.
        figure.savefig(path.with_name(f"{path.name}.svg"), metadata={"Date": None})
