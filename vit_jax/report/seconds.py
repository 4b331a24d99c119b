"""A bar for each run that shows where its time went, from its first start to its end."""

from collections.abc import Iterable
from typing import Any

from vit_jax.report.chart import Panel, Trace
from vit_jax.report.run import Run
from vit_jax.report.style import (
    COLOURS,
    GRID,
    INK,
    MUTED,
    SURFACE,
    Drawing,
    add_legend,
    new_figure,
    page_look,
    plot_style,
)
from vit_jax.run.time_account import PARTS, duration_text, read_sessions

# Part -> colour. What counts is cold, what is lost is warm, and nobody paid for idle time.
_COLOURS = {
    "start": COLOURS[1][0],
    "compile": COLOURS[4][0],
    "restore": MUTED,
    "steps": COLOURS[0][0],
    "lost": COLOURS[6][0],
    "data": COLOURS[5][0],
    "evaluation": COLOURS[2][0],
    "saving": COLOURS[3][0],
    "idle": GRID,
}
# A report of more runs has no bars: it is about scores, and nobody reads that many.
_MAX_BARS = 8


def run_seconds(run: Run) -> dict[str, float]:
    """Returns part -> seconds of a run, so far if it is unfinished; {} if it has no account."""
    if "seconds" in run.result:
        return run.result["seconds"]
    rows = [] if run.finished else read_sessions(run.path)
    return rows[-1]["seconds"] if rows else {}


def draw_seconds(runs: Iterable[Run]) -> list[Drawing]:
    """Draws a bar for each run; nothing if there are many, or none has an account of its time."""
    accounts = [(run, seconds) for run in runs if (seconds := run_seconds(run))]
    if not 0 < len(accounts) <= _MAX_BARS:
        return []
    notes = ["A bar covers all sessions of a run. Lost: steps that were repeated after a restart."]
    with plot_style():
        figure, axes = new_figure(1, 1, width=8.6, height=0.75 + 0.42 * len(accounts))
        panel, handles = axes[0, 0], dict[str, Any]()
        for row, (_, seconds) in enumerate(accounts):
            handles |= _draw_bar(panel, row, seconds)
        names = [f"{run.name}\n{duration_text(sum(seconds.values()))}" for run, seconds in accounts]
        panel.set_yticks(range(len(names)), names)
        panel.set(xlim=(0, 100), ylim=(len(names) - 0.5, -0.5), xlabel="share of the time, %")
        panel.grid(visible=False)
        panel.spines["left"].set_visible(False)
        add_legend(figure, {part: handles[part] for part in PARTS if part in handles})
        _shorten_labels(figure, panel)
    panel = _chart_panel(dict(accounts))
    return [Drawing("Where the time went", figure, notes, [panel])]


def _chart_panel(accounts: dict[Run, dict[str, float]]) -> Panel:
    """Returns the bars for the page."""
    totals = [sum(seconds.values()) for seconds in accounts.values()]
    rows = [f"{run.name}, {duration_text(t)}" for run, t in zip(accounts, totals, strict=True)]
    traces = []
    for part, colour in _COLOURS.items():
        spent = [seconds.get(part, 0.0) for seconds in accounts.values()]
        if any(spent):
            shares = [100 * s / t for s, t in zip(spent, totals, strict=True)]
            look = page_look({"color": colour})
            traces.append(Trace(part, look, "bars", [*range(len(rows))], shares, runs=[*accounts]))
    return Panel("", "share of the time, %", "", traces, rows=rows)


def _draw_bar(panel: Any, row: int, seconds: dict[str, float]) -> dict[str, Any]:
    """Draws the bar of a run; returns part -> its piece, without parts that took no time."""
    pieces, left, total = {}, 0.0, sum(seconds.values())
    for part, colour in _COLOURS.items():
        share = seconds.get(part, 0.0) / total
        if not share:
            continue
        (pieces[part],) = panel.barh(
            row, 100 * share, left=left, color=colour, height=0.66, edgecolor=SURFACE, linewidth=0.8
        )
        panel.annotate(
            f"{part} {share:.0%}",
            (left + 50 * share, row),
            ha="center",
            va="center",
            fontsize=8,
            color=INK if part == "idle" else SURFACE,
        )
        left += 100 * share
    return pieces


def _shorten_labels(figure: Any, panel: Any) -> None:
    """Leaves out the name of a part, or the whole label, where it is wider than its bar."""
    figure.draw_without_rendering()  # Widths are known after the layout.
    for bar, label in zip(panel.patches, panel.texts, strict=True):
        room = bar.get_window_extent().width - 4
        for text in (label.get_text(), label.get_text().split()[-1], ""):
            label.set_text(text)
            if label.get_window_extent().width <= room:
                break
