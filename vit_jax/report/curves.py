"""Learning curves, of one run and of many."""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_jax.report.fields import Fields, select
from vit_jax.report.requests import CurvesRequest
from vit_jax.report.runs import Run, natural
from vit_jax.report.style import DPI, Palette, add_legend, house_style, new_figure, short_number
from vit_jax.report.words import legend_title, show, title_of
from vit_jax.run.metrics import read_metrics

# With more lines than these in a panel, markers hide them.
_MOST_MARKED = 9
# Rows of panels in one picture.
_MOST_ROWS = 5
# Splits by how much they say of a model: the first that a run has is drawn.
_SPLITS = ("test", "validation", "val", "minival", "dev")


def draw_curves(workdir: Path) -> Path:
    """Draws loss, accuracy and learning rate against steps into report/curves.png.

    Args:
        workdir: run folder with a metrics.jsonl.

    Returns:
        The picture's path.
    """
    rows = read_metrics(workdir / "metrics.jsonl")
    palette = Palette()
    with house_style():
        figure, axes = new_figure(1, 3, width=4, height=3.3)
        loss, accuracy, rate = axes[0]
        losses = {"train/loss": "train"} | _eval_names(rows, "loss")
        accuracies = _eval_names(rows, "accuracy_top1")
        palette.add("split", ["train"])
        palette.add("split", [*losses.values(), *accuracies.values()])
        _plot(loss, rows, losses, palette)
        loss.set(title="loss")
        _from_zero(loss)
        _plot(accuracy, rows, accuracies, palette)
        accuracy.set(title="top-1 accuracy", ylim=(None, 1))
        _plot(rate, rows, {"train/learning_rate": "train"}, palette)
        rate.set(title="learning rate")
        _from_zero(rate)
        handles, labels = loss.get_legend_handles_labels()
        add_legend(figure, handles, labels, side="right")
        figure.suptitle(workdir.name, fontweight="bold", x=0.01, ha="left")
        path = workdir / "report" / "curves.png"
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, dpi=DPI)
    return path


@dataclasses.dataclass(frozen=True)
class CurveSheet:
    """A picture of learning curves.

    Attributes:
        title: heading.
        figure: of matplotlib.
        note: what the lines are.
    """

    title: str
    figure: Any
    note: str


def curve_rows(request: CurvesRequest, runs: Sequence[Run], fields: Fields) -> dict[str, list[Run]]:
    """Returns the runs of each row of panels: those asked for that have steps on file.

    Args:
        request: what to draw.
        runs: all there are.
        fields: of these.

    Raises:
        ConfigError: a field that no run has, or a value that none of the runs has.
    """
    for what, name in (("series", request.series), ("panel", request.panel)):
        for part in name.split("+"):
            if part not in ("model", "dataset"):  # Runs may have none: then all are alike.
                fields.check(part, what)
    rows: dict[str, list[Run]] = defaultdict(list)
    for run in select(fields, runs, request.where):
        if any("train/loss" in row for row in run.rows):
            rows[show(fields.of(run, request.panel))].append(run)
    return rows


def curve_sheets(
    request: CurvesRequest, rows: dict[str, list[Run]], fields: Fields, palette: Palette
) -> list[CurveSheet]:
    """Draws training loss and main score against steps.

    Args:
        request: what to draw; a picture for every five rows of panels.
        rows: name of a row of panels -> its runs.
        fields: of the runs.
        palette: gives the colours.
    """
    names = sorted(rows, key=natural)
    parts = [names[i : i + _MOST_ROWS] for i in range(0, len(names), _MOST_ROWS)]
    sheets = []
    for i, part in enumerate(parts):
        chosen = {name: rows[name] for name in part}
        title = request.title or "Runs"
        title += f", part {i + 1} of {len(parts)}" if len(parts) > 1 else ""
        figure = _sheet(chosen, fields, palette, request.series)
        sheets.append(CurveSheet(title, figure, _note(chosen)))
    return sheets


def main_score(names: set[str]) -> str | None:
    """Returns the metric that says most of a run: top-1 accuracy of the test split, if there."""
    found = {n.split("/")[1]: n for n in names if _is_score(n)}
    order = [*_SPLITS, *sorted(found)]
    return next((found[split] for split in order if split in found), None)


def _drawn_score(runs: Sequence[Run]) -> str | None:
    """Returns the main score, or the few-shot accuracy of the fewest shots.

    Only of what a run has more than once: the rest makes no curve.
    """
    counts = [Counter(name for row in run.rows for name in row) for run in runs]
    often = {name for count in counts for name, times in count.items() if times > 1}
    on_features = [n for n in often if n.startswith("fewshot/") and n.endswith("/accuracy_top1")]
    return main_score(often) or min(on_features, key=natural, default=None)


def _is_score(name: str) -> bool:
    return name.startswith("eval/") and name.count("/") == 2 and name.endswith("/accuracy_top1")


def _sheet(rows: dict[str, list[Run]], fields: Fields, palette: Palette, series: str) -> Any:
    everyone = [run for runs in rows.values() for run in runs]
    palette.add(series, [show(fields.of(run, series)) for run in everyone])
    with house_style():
        scores = [_drawn_score(runs) for runs in rows.values()]
        columns = 2 if any(scores) else 1
        figure, axes = new_figure(len(rows), columns, width=9.2 / columns, height=2.7)
        handles: dict[str, Any] = {}
        for i, (name, runs) in enumerate(rows.items()):
            score, (left, *rest) = scores[i], axes[i]
            hide = {"marker": None} if len(runs) > _MOST_MARKED else {}
            for run in runs:
                member = show(fields.of(run, series))
                style = {**palette.style(series, member), "label": member}
                handle = _line(left, run, "train/loss", {**style, "marker": None}, 1)
                handles.setdefault(member, handle)
                if score is not None:
                    _line(rest[0], run, score, {**style, "markersize": 3.5, **hide}, 100)
            left.set_title(", ".join(filter(None, [name, "training loss"])))
            _from_zero(left)
            for panel in (left, *rest):
                panel.xaxis.set_major_formatter(short_number)
            for right in rest:
                right.set_title(", ".join(filter(None, [name, _score_title(score)])))
            if rest and score is None:
                rest[0].remove()
                left.set_subplotspec(left.get_gridspec()[i, :])
        for panel in axes[-1]:
            if panel.figure is not None:
                panel.set_xlabel("step")
        names = sorted(handles, key=natural)
        add_legend(figure, [handles[n] for n in names], names, legend_title(series))
    return figure


def _from_zero(panel: Any) -> None:
    """Lets the axis begin at zero and end a little above the highest finite figure."""
    heights = [y for line in panel.lines for y in line.get_ydata() if math.isfinite(y)]
    if heights and max(heights) > 0:
        panel.set_ylim(0, 1.06 * max(heights))


def _score_title(metric: str | None) -> str:
    return "" if metric is None else f"{title_of(metric)[:1].lower()}{title_of(metric)[1:]}, %"


def _line(panel: Any, run: Run, metric: str, style: dict[str, Any], scale: float) -> Any:
    points = [(row["step"], row[metric]) for row in run.rows if metric in row]
    xs, ys = [p[0] for p in points], [scale * p[1] for p in points]
    handle = panel.plot(xs, ys, linewidth=1.2, alpha=0.8, markeredgewidth=0, **style)
    if xs and not run.finished:
        panel.plot(xs[-1], ys[-1], "x", color=style["color"], markersize=8, markeredgewidth=2)
    return handle[0]


def _note(groups: dict[str, list[Run]]) -> str:
    runs = [run for members in groups.values() for run in members]
    note = f"A line for each of {len(runs)} runs." if len(runs) > 1 else "One run."
    if any(not run.finished for run in runs):
        note += " A cross ends those that have no result."
    return note


def _eval_names(rows: list[dict[str, Any]], metric: str) -> dict[str, str]:
    """Returns metric name -> split, of the evaluations in a run."""
    names = sorted({name for row in rows for name in row if name.startswith("eval/")})
    return {n: n.split("/")[1] for n in names if n.endswith(f"/{metric}")}


def _plot(axes: Any, rows: list[dict[str, Any]], lines: dict[str, str], palette: Palette) -> None:
    for name, label in lines.items():
        points = [(row["step"], row[name]) for row in rows if name in row]
        style = palette.style("split", label)
        if not name.startswith("eval/"):
            style["marker"] = None
        axes.plot(*zip(*points, strict=True), label=label, markersize=4, markeredgewidth=0, **style)
    axes.set_xlabel("step")
    axes.xaxis.set_major_formatter(short_number)
    if not lines:
        axes.text(0.5, 0.5, "not evaluated", ha="center", transform=axes.transAxes)
