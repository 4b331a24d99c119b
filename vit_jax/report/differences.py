"""Tables of differences from one row, such as a baseline, and whether they are certain."""

import numpy as np

from vit_jax.errors import ConfigError, first_few, nearest
from vit_jax.evaluation.intervals import interval
from vit_jax.evaluation.metric_kinds import kind_of
from vit_jax.report.intervals import are_comparable, is_equal_within, is_told_apart
from vit_jax.report.labels import format_metric
from vit_jax.report.requests import TableRequest
from vit_jax.report.tables import CHANCE, Cell, Table

# In place of an interval and a verdict.
_UNKNOWN = "(uncertainty not known)"


def difference_table(request: TableRequest, scores: Table) -> Table:
    """Makes a table of how each row differs from the row `against`, and whether that is certain."""
    against, metric, means = request.against, request.metric, scores.means
    assert means is not None
    rows = [row[0].text for row in scores.rows if row[0].kind != CHANCE]
    if against not in rows:
        raise ConfigError(
            f"against={against}: no {request.rows} has this name",
            f"one of {first_few(rows, 8)}",
            f"did you mean {nearest(str(against), rows)!r}?",
        )
    found = means.to_dict("index")

    def cell(name: str, row: str) -> Cell:
        ours, theirs = found.get((name, row)), found.get((name, against))
        if ours is None or theirs is None:
            return Cell("–")
        mean = ours["mean"] - theirs["mean"]
        if not are_comparable(ours, theirs):
            return Cell(f"{format_metric(mean, metric, like=theirs['mean'])} {_UNKNOWN}", mean)
        low, high = interval(ours["draws"] - theirs["draws"])
        parts = [format_metric(value, metric, like=theirs["mean"]) for value in (mean, low, high)]
        verdict = _verdict(ours["draws"], theirs["draws"], request)
        return Cell(f"{parts[0]} [{parts[1]}, {parts[2]}] {verdict}", mean)

    shown = [
        [Cell(row), *(cell(name, row) for name in scores.header[1:])]
        for row in rows
        if row != against
    ]
    unit = "Percentage points. " if kind_of(metric).is_fraction else ""
    notes = [f"{unit}Mean minus that of {against} [95 % interval]. Not significant: it holds zero."]
    if any(cell.text.endswith(_UNKNOWN) for row in shown for cell in row):
        notes.append(
            f"{_UNKNOWN[1:2].upper()}{_UNKNOWN[2:-1]}: neither test images nor seeds show by how"
            " much both means could differ by chance."
        )
    if request.margin is not None:
        margin = format_metric(request.margin, metric)
        notes.append(f"Equal: two one-sided tests at 5 % show a difference of less than {margin}.")
    return Table(f"{scores.title}: differences from {against}", scores.header, shown, notes)


def _verdict(ours: np.ndarray, theirs: np.ndarray, request: TableRequest) -> str:
    if request.margin is not None and is_equal_within(request.margin, ours, theirs):
        return "equal"
    if not is_told_apart(ours, theirs):
        return "not significant"
    higher = bool(np.mean(ours) > np.mean(theirs))
    return "worse" if higher == request.smallest_is_best else "better"
