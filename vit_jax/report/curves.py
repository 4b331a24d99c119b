"""Learning curves: of one run, drawn by `train`, and of many runs, for a report."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit_jax.report.labels import lower_first, natural_key, short_number, title_of
from vit_jax.report.requests import CurvesRequest
from vit_jax.report.runs import Run
from vit_jax.report.style import DPI, Drawing, Palette, add_legend, new_figure, plot_style
from vit_jax.run.metrics import read_metrics

if TYPE_CHECKING:  # `train` imports this module and does not need pandas.
    import pandas as pd

# With more lines than this in a panel, they have no markers.
_MAX_MARKED = 9
# Rows of panels in one picture.
_MAX_ROWS = 5
# The main score is measured on the first of these splits that a run was evaluated on.
_SPLITS = ("test", "validation", "val", "minival", "dev")


def draw_curves(workdir: Path) -> Path:
    """Draws loss, accuracy and learning rate of a run into report/curves.png.

    Args:
        workdir: run folder with a metrics.jsonl.

    Returns:
        The picture's path.
    """
    rows, palette = read_metrics(workdir / "metrics.jsonl"), Palette()
    names = sorted({name for row in rows for name in row if name.startswith("eval/")})
    panels = {
        "loss": ["train/loss", *(name for name in names if name.endswith("/loss"))],
        "top-1 accuracy": [name for name in names if name.endswith("/accuracy_top1")],
        "learning rate": ["train/learning_rate"],
    }
    splits = {
        name: name.removeprefix("eval/").split("/")[0]
        for lines in panels.values()
        for name in lines
    }
    palette.add("split", ["train"])
    palette.add("split", splits.values())
    with plot_style():
        figure, axes = new_figure(1, 3, width=4, height=3.3)
        for panel, (title, lines) in zip(axes[0], panels.items(), strict=True):
            for name in lines:
                style = palette.style("split", splits[name]) | {"markersize": 4}
                style |= {} if name.startswith("eval/") else {"marker": None}
                panel.plot(*_points(rows, name), markeredgewidth=0, **style)
            if not lines:
                panel.text(0.5, 0.5, "not evaluated", ha="center", transform=panel.transAxes)
            panel.set(title=title, xlabel="step")
            panel.xaxis.set_major_formatter(short_number)
            if title == "top-1 accuracy":
                panel.set_ylim(None, 1)
            else:
                _start_at_zero(panel)
        add_legend(figure, {line.get_label(): line for line in axes[0][0].lines}, side="right")
        figure.suptitle(workdir.name, fontweight="bold", x=0.01, ha="left")
        path = workdir / "report" / "curves.png"
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, dpi=DPI)
    return path


def draw_learning_curves(
    request: CurvesRequest, frame: pd.DataFrame, palette: Palette
) -> list[Drawing]:
    """Draws training loss and main score of many runs, five rows of panels to a picture.

    Args:
        request: what to draw.
        frame: of all runs; those without steps in metrics.jsonl are left out.
        palette: colours of the report.

    Raises:
        ConfigError: no run has such a column, or the value in `where`.
    """
    from vit_jax.report.frame import check_columns, in_natural_order, select, text_column

    check_columns(frame, series=request.series, panel=request.panel)
    frame = select(frame, request.where)
    columns = {name: text_column(frame, getattr(request, name)) for name in ("panel", "series")}
    trained = [any("train/loss" in row for row in run.metrics) for run in frame.index]
    frame = in_natural_order(frame.assign(**columns)[trained], ["panel"])
    rows = [*frame.groupby("panel", sort=False)["series"]]
    drawings, parts = [], [rows[i : i + _MAX_ROWS] for i in range(0, len(rows), _MAX_ROWS)]
    for i, part in enumerate(parts, 1):
        title = (request.title or "Runs") + (f", part {i} of {len(parts)}" if parts[1:] else "")
        runs = [run for _, series in part for run in series.index]
        note = f"A line for each of {len(runs)} runs." if len(runs) > 1 else "One run."
        if not all(run.finished for run in runs):
            note += " A cross marks the end of a run without a result."
        drawings.append((title, _draw_rows(request, part, palette), [note]))
    return drawings


def _draw_rows(
    request: CurvesRequest, rows: Sequence[tuple[Any, pd.Series]], palette: Palette
) -> Any:
    """Returns a figure with two panels, training loss and main score, for each row.

    Args:
        request: what to draw.
        rows: (name, series by run).
        palette: colours of the report.
    """
    palette.add(request.series, [name for _, series in rows for name in series])
    scores = [_drawn_score(series.index) for _, series in rows]
    columns, handles = 2 if any(scores) else 1, {}
    with plot_style():
        figure, axes = new_figure(len(rows), columns, width=9.2 / columns, height=2.7)
        for i, (name, series) in enumerate(rows):
            score, (left, *right) = scores[i], axes[i]
            marker = {"marker": None} if len(series) > _MAX_MARKED else {}
            for run, member in zip(series.index, series, strict=True):
                style = palette.style(request.series, member)
                handle = _draw_run(left, run, "train/loss", 1, **style | {"marker": None})
                handles.setdefault(member, handle)
                if score is not None:
                    _draw_run(right[0], run, score, 100, **style | {"markersize": 3.5} | marker)
            titles = ["training loss"]
            if score is not None:
                titles.append(f"{lower_first(title_of(score))}, %")
            elif right:
                right.pop().remove()
                left.set_subplotspec(left.get_gridspec()[i, :])
            for panel, title in zip([left, *right], titles, strict=True):
                panel.set_title(", ".join(filter(None, [name, title])))
                panel.xaxis.set_major_formatter(short_number)
            _start_at_zero(left)
        for panel in figure.axes:
            if panel.get_subplotspec().is_last_row():
                panel.set_xlabel("step")
        add_legend(figure, handles, request.series)
    return figure


def main_score(names: Iterable[str]) -> str | None:
    """Returns the metric that best describes a run: top-1 accuracy, of the test split if any."""
    scores = (name for name in names if re.fullmatch(r"eval/[^/]*/accuracy_top1", name))
    found = {name.split("/")[1]: name for name in scores}
    return next((found[split] for split in [*_SPLITS, *sorted(found)] if split in found), None)


def _drawn_score(runs: Iterable[Run]) -> str | None:
    """Returns the main score, else the few-shot accuracy with the fewest shots.

    Metrics that were measured only once are left out: one point is no curve.
    """
    counts = [Counter(name for row in run.metrics for name in row) for run in runs]
    repeated = {name for count in counts for name, times in count.items() if times > 1}
    few_shot = [n for n in repeated if n.startswith("fewshot/") and n.endswith("/accuracy_top1")]
    return main_score(repeated) or min(few_shot, key=natural_key, default=None)


def _draw_run(panel: Any, run: Run, metric: str, scale: float, **style: Any) -> Any:
    xs, ys = _points(run.metrics, metric, scale)
    handle = panel.plot(xs, ys, linewidth=1.2, alpha=0.8, markeredgewidth=0, **style)
    if xs and not run.finished:
        panel.plot(xs[-1], ys[-1], "x", color=style["color"], markersize=8, markeredgewidth=2)
    return handle[0]


def _points(
    rows: Iterable[Mapping[str, Any]], metric: str, scale: float = 1
) -> tuple[list[float], list[float]]:
    rows = [row for row in rows if metric in row]
    return [row["step"] for row in rows], [scale * row[metric] for row in rows]


def _start_at_zero(panel: Any) -> None:
    """Lets the axis begin at zero and end a little above the largest finite value."""
    heights = [y for line in panel.lines for y in line.get_ydata() if math.isfinite(y)]
    if heights and max(heights) > 0:
        panel.set_ylim(0, 1.06 * max(heights))
