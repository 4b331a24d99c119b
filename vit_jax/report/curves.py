"""Learning curves of many runs, for a report."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from vit_jax.errors import first_few
from vit_jax.report.chart import Drawing, Panel, Trace, dotted, thin
from vit_jax.report.frame import differing_data, differing_settings, in_natural_order, place
from vit_jax.report.labels import lower_first, natural_key, title_of
from vit_jax.report.requests import CurvesRequest
from vit_jax.report.run import Run
from vit_jax.report.scores import differing_losses
from vit_jax.report.style import Palette
from vit_jax.run.metrics import split_of

# Lines in a panel. With more runs than this, each line is the mean of the runs of a series.
_MAX_LINES = 12
# With at most this many lines, a panel of training losses also has those of evaluation.
_MOST_WITH_EVALUATION = 4
# A training loss with n points is averaged over n / 40 of them.
_SMOOTHED = 40
# Rows of panels in one picture.
_MAX_ROWS = 5
# The main score is measured on the first of these splits that a run was evaluated on.
_SPLITS = ("test", "validation", "val", "minival", "dev")


def draw_learning_curves(
    request: CurvesRequest, frame: pd.DataFrame, palette: Palette
) -> list[Drawing]:
    """Draws training loss and main score of many runs, five rows of panels to a picture.

    Runs without steps in metrics.jsonl are left out.
    """
    frame = place(frame, request.where, series=request.series, panel=request.panel)
    trained = ["train/loss" in run.metrics for run in frame.index]
    frame = in_natural_order(frame[trained], ["@panel"])
    palette.add(request.series, frame["@series"])
    rows = [
        row
        for name, of in frame.groupby("@panel", sort=False)
        for row in _rows(name, of["@series"])
    ]
    drawings, parts = [], [rows[i : i + _MAX_ROWS] for i in range(0, len(rows), _MAX_ROWS)]
    for i, part in enumerate(parts, 1):
        title = (request.title or "Runs") + (f", part {i} of {len(parts)}" if parts[1:] else "")
        panels = _panels(request, part, palette)
        columns = 2 if len(panels) == 2 * len(part) else 1
        size = (9.2 / columns, 2.7)
        drawings.append(Drawing(title, _notes(part), panels, columns, size, request.series))
    return drawings


@dataclasses.dataclass(frozen=True)
class _Line:
    """A line of a panel: the mean of one run, or of the finished runs of a series."""

    member: str
    runs: list[Run]

    @property
    def is_cut(self) -> bool:
        return not all(run.finished for run in self.runs)

    def curves(self, metric: str) -> pd.DataFrame:
        # The best step may have been evaluated again at the end.
        found = [run.curve(metric) for run in self.runs]
        return pd.concat([one[~one.index.duplicated()] for one in found], axis=1)

    def curve(self, metric: str) -> pd.Series:
        return self.curves(metric).mean(axis=1)


_Row = tuple[str, list[_Line]]


def _rows(name: Any, series: pd.Series) -> list[_Row]:
    """Returns the lines of a panel: all runs, or the mean of each series; or several panels."""
    runs: list[Any] = [*series.index]
    lines = [_Line(str(member), [run]) for run, member in zip(runs, series, strict=True)]
    if len(lines) > _MAX_LINES:
        of: dict[str, list[Run]] = {}
        for line in lines:
            of.setdefault(line.member, []).extend(line.runs)
        members = sorted(of, key=natural_key)
        lines = [_Line(m, [r for r in of[m] if r.finished] or of[m][:1]) for m in members]
    parts = [lines[i : i + _MAX_LINES] for i in range(0, len(lines), _MAX_LINES)]
    if len(parts) == 1:
        return [(name, lines)]
    return [(f"{name} ({i} of {len(parts)})".strip(), part) for i, part in enumerate(parts, 1)]


def _notes(rows: Sequence[_Row]) -> list[str]:
    lines = [line for _, lines in rows for line in lines]
    runs = [run for line in lines for run in line.runs]
    note = f"A line for each of {len(runs)} runs." if len(runs) > 1 else "One run."
    if len(runs) > len(lines):
        keys = [differing_settings(one.runs) + differing_data(one.runs) for one in lines]
        others = sorted({key for of_line in keys for key in of_line})
        what = f"in {first_few(others, 5)}" if others else "only by their seed"
        note = f"Lines: means of the runs that differ {what}."
        if any(line.curves("train/loss").isna().any(axis=None) for line in lines):
            note += " At some steps, not all of them have values."
    if any(line.is_cut for line in lines):
        note += " A cross marks the end of a run without a result."
    windows = {_window(line.curve("train/loss")) for line in lines} - {1}
    if windows:
        span = "-".join(map(str, sorted({min(windows), max(windows)})))
        note += f" Training loss: rolling means over {span} logged steps."
    of_panels = [[run for line in lines for run in line.runs] for _, lines in rows]
    return [note, *{text: None for one in of_panels for text in differing_losses(one)}]


def _window(points: pd.Series) -> int:
    return max(1, len(points) // _SMOOTHED)


def _panels(request: CurvesRequest, rows: Sequence[_Row], palette: Palette) -> list[Panel]:
    """Returns training loss and main score of each row."""
    panels = []
    for name, lines in rows:
        runs = [run for line in lines for run in line.runs]
        score, loss = _drawn_score(runs), _evaluation_loss(runs)
        for metric, scale in [("train/loss", 1), *([(score, 100)] if score else [])]:
            shown = (_traces(request, line, metric, scale, palette) for line in lines)
            title = _panel_title(metric)
            traces = [trace for of_line in shown for trace in of_line]
            if metric == "train/loss" and loss is not None and len(lines) <= _MOST_WITH_EVALUATION:
                title += f", dotted: {split_of(loss)}"
                shown = (_traces(request, line, loss, 1, palette) for line in lines)
                traces += [
                    dotted(one) for of_line in shown for one in of_line if one.kind == "curve"
                ]
            heading = ", ".join(filter(None, [str(name), title]))
            panels.append(Panel(heading, "step", title, traces, from_zero=metric == "train/loss"))
    return panels


def _traces(
    request: CurvesRequest, line: _Line, metric: str, scale: float, palette: Palette
) -> list[Trace]:
    points, style = _points(line, metric, scale), palette.style(request.series, line.member)
    kept = points.iloc[thin(len(points))] if len(points) else points
    run = line.runs[0] if len(line.runs) == 1 else None
    traces = [Trace(line.member, style, "curve", [*kept.index], [*kept], runs=[run] * len(kept))]
    if len(points) and line.is_cut:
        end = points[-1:]
        traces.append(Trace(line.member, style, "end", [*end.index], [*end], runs=[run]))
    return traces


def _points(line: _Line, metric: str, scale: float) -> pd.Series:
    """Returns the values that are drawn, by step."""
    points = scale * line.curve(metric)
    if metric == "train/loss":
        points = points.rolling(_window(points), center=True, min_periods=1).mean()
    return points


def _panel_title(metric: str) -> str:
    return "training loss" if metric == "train/loss" else f"{lower_first(title_of(metric))}, %"


def main_score(names: Iterable[str]) -> str | None:
    """Returns the metric that best describes a run: top-1 accuracy, of the test split if any."""
    found = {split_of(n) or "": n for n in names if re.fullmatch(r"eval/[^/]*/accuracy_top1", n)}
    return next((found[split] for split in [*_SPLITS, *sorted(found)] if split in found), None)


def _evaluation_loss(runs: Sequence[Run]) -> str | None:
    """Returns the loss on the split of the main score, if it was measured several times."""
    score = main_score({name for run in runs for name, n in run.measured.items() if n > 1})
    loss = "" if score is None else f"{score.rpartition('/')[0]}/loss"
    return loss if any(run.measured.get(loss, 0) > 1 for run in runs) else None


def _drawn_score(runs: Iterable[Run]) -> str | None:
    """Returns the main score, else the few-shot accuracy with the fewest shots.

    Metrics that were measured only once are left out, because one point is no curve, unless the
    runs are so short that no training loss has two points either.
    """
    runs = [*runs]
    least = 1 + any(run.measured.get("train/loss", 0) > 1 for run in runs)
    repeated = {name for run in runs for name, times in run.measured.items() if times >= least}
    few_shot = [n for n in repeated if n.startswith("fewshot/") and n.endswith("/accuracy_top1")]
    return main_score(repeated) or min(few_shot, key=natural_key, default=None)
