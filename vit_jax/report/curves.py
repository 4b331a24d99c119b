"""Learning curves of many runs, for a report."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from vit_jax.report.frame import in_natural_order, place
from vit_jax.report.labels import lower_first, natural_key, short_number, title_of
from vit_jax.report.requests import CurvesRequest
from vit_jax.report.run import Run
from vit_jax.report.style import Drawing, Palette, add_legend, new_figure, plot_style, start_at_zero
from vit_jax.run.metrics import split_of

# With more lines than this in a panel, they have no markers.
_MAX_MARKED = 9
# Rows of panels in one picture.
_MAX_ROWS = 5
# The main score is measured on the first of these splits that a run was evaluated on.
_SPLITS = ("test", "validation", "val", "minival", "dev")


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
    frame = place(frame, request.where, series=request.series, panel=request.panel)
    trained = ["train/loss" in run.metrics for run in frame.index]
    frame = in_natural_order(frame[trained], ["@panel"])
    rows = [*frame.groupby("@panel", sort=False)["@series"]]
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
            start_at_zero(left)
        for panel in figure.axes:
            if panel.get_subplotspec().is_last_row():
                panel.set_xlabel("step")
        add_legend(figure, handles, request.series)
    return figure


def main_score(names: Iterable[str]) -> str | None:
    """Returns the metric that best describes a run: top-1 accuracy, of the test split if any."""
    found = {split_of(n) or "": n for n in names if re.fullmatch(r"eval/[^/]*/accuracy_top1", n)}
    return next((found[split] for split in [*_SPLITS, *sorted(found)] if split in found), None)


def _drawn_score(runs: Iterable[Run]) -> str | None:
    """Returns the main score, else the few-shot accuracy with the fewest shots.

    Metrics that were measured only once are left out: one point is no curve.
    """
    repeated = {name for run in runs for name, times in run.measured.items() if times > 1}
    few_shot = [n for n in repeated if n.startswith("fewshot/") and n.endswith("/accuracy_top1")]
    return main_score(repeated) or min(few_shot, key=natural_key, default=None)


def _draw_run(panel: Any, run: Run, metric: str, scale: float, **style: Any) -> Any:
    points = scale * run.curve(metric)
    (line,) = panel.plot(points, linewidth=1.2, alpha=0.8, markeredgewidth=0, **style)
    if len(points) and not run.finished:
        panel.plot(points[-1:], "x", color=style["color"], markersize=8, markeredgewidth=2)
    return line
