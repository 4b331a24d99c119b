"""Tables of means with their intervals, like Tables 2 and 5 of arXiv:2010.11929."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Set
from typing import Any

import pandas as pd

from vit_jax.errors import ConfigError, first_few
from vit_jax.evaluation.metric_kinds import kind_of
from vit_jax.report import labels, vtab
from vit_jax.report.frame import text_column
from vit_jax.report.intervals import (
    APART,
    all_comparable,
    describe_means,
    describe_seeds,
    is_alike,
    tested_apart,
    with_intervals,
)
from vit_jax.report.labels import (
    FROZEN_FEATURES,
    format_metric,
    format_value,
    is_number,
    natural_key,
)
from vit_jax.report.requests import TableRequest
from vit_jax.report.run import Run
from vit_jax.report.scores import (
    METRIC,
    VALUE,
    differing_within,
    doubts,
    find_chances,
    left_out,
    means_over,
    metric_regex,
    observe,
    summarize,
)

# The axes of a table: both together say which cell an observation belongs to.
_KEYS = ["@columns", "@rows"]
# Name of the last row of a table of accuracies.
CHANCE = "chance"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    value: float | None = None  # sort key on the HTML page; None: sort by the text
    kind: str = ""  # CSS classes: "best", "pending", "state" or "chance"
    detail: str = ""  # shown as a tooltip; several lines are shown below the text


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a report. Tables of scores have `metric` and `means`.

    The means are by column and row, with the columns of `summarize` and `with_intervals`.
    """

    title: str
    header: list[str]
    rows: list[list[Cell]]
    notes: list[str] = dataclasses.field(default_factory=list)  # sentences below the table
    metric: str = ""
    means: pd.DataFrame | None = None

    def markdown(self) -> str:
        """Returns the table as Markdown, with the best value of each column in bold."""
        rows = [
            [f"**{c.text}**" if c.text and "best" in c.kind else c.text for c in row]
            for row in self.rows
        ]
        return labels.markdown_table(self.header, rows, right=bool(self.metric))


def table_of(title: str, frame: pd.DataFrame) -> Table:
    """Returns a data frame as a table. Values may be ready-made cells."""
    rows = [[*map(_plain_cell, frame, row)] for row in frame.astype(object).itertuples(index=False)]
    return Table(title, [str(name) for name in frame], rows)


def _plain_cell(name: Any, value: Any) -> Cell:
    if isinstance(value, Cell):
        return value
    large = isinstance(value, int) and is_number(value) and abs(value) >= 10_000
    text = f"{value:,}" if large else format_value(value)
    return Cell(text, value if is_number(value) else None, "state" if name == "state" else "")


def score_table(request: TableRequest, frame: pd.DataFrame) -> Table:
    """Makes a table of scores."""
    metric = request.metric
    axes = {"rows": request.rows, "columns": request.columns}
    observed = observe(frame, metric, request.where, pool=request.pool, **axes)
    placed = (observed[_KEYS] != "").all(axis="columns")
    observed, unplaced = observed[placed], observed[~placed].index
    if len({kind_of(name).lower for name in observed[METRIC]} | {kind_of(metric).lower}) > 1:
        raise ConfigError(
            f"metric={metric} has metrics of which larger values are better, and others of which"
            " smaller ones are",
            "one table for each kind",
            "name the metrics in several --table=",
        )
    pending = _pending(request, frame)
    columns, rows = (
        sorted({*observed[key], *(cell[i] for cell in pending)}, key=natural_key)
        for i, key in enumerate(_KEYS)
    )
    sets = vtab.group_tasks(columns)
    columns = [*dict.fromkeys([*sets, *sets.get(vtab.ALL, []), *columns])]
    means = summarize(pd.concat([observed, means_over(sets, observed, _KEYS)]), _KEYS)
    means = with_intervals(means, observed, sets, _KEYS, metric)
    means["best"] = _are_best(means, smallest=request.smallest_is_best)
    means["comparable"] = all_comparable(means)
    means["usual_n"] = means["n"] == means["n"].mode().max()
    scores = means.to_dict("index")
    cells = {
        cell: _cell(scores.get(cell), pending.get(cell, []), metric) for cell in {*scores, *pending}
    }
    shown = [[Cell(row), *(cells.get((name, row), Cell("–")) for name in columns)] for row in rows]
    return Table(
        request.heading,
        [labels.title_of(request.rows), *columns],
        shown + _chance_row(metric, observed, columns),
        _notes(request, means, observed, pending=bool(pending))
        + left_out("table", unplaced, [request.rows, request.columns])
        + _lost(request, frame, {*scores}),
        metric,
        means.loc[[(name, row) for row in rows for name in columns if (name, row) in scores]],
    )


def _chance_row(metric: str, observed: pd.DataFrame, columns: list[str]) -> list[list[Cell]]:
    """Returns a row with the accuracy of guessing, where it is known; none if it never is."""
    chances = find_chances(observed)
    cells = [Cell(CHANCE, kind=CHANCE)]
    for name in columns:
        found = {*chances[observed["@columns"] == name]}
        value = found.pop() if len(found) == 1 else math.nan
        known = not math.isnan(value)
        cells.append(Cell(format_metric(value, metric), value) if known else Cell("–"))
    return [cells] if any(cell.value is not None for cell in cells) else []


def _are_best(means: pd.DataFrame, *, smallest: bool) -> pd.Series:
    """Returns which means are the best of their column, or do not differ significantly from it.

    The means of a column with a single row are never best.
    """
    best = []
    for _, column in means.groupby(level=0, sort=False):
        at = [*column["mean"]]
        best_mean = min(at) if smallest else max(at)
        rows = column.to_dict("records")
        first = rows[at.index(best_mean)]
        alike = [len(at) > 1 and (row["mean"] == best_mean or is_alike(row, first)) for row in rows]
        best.append(pd.Series(alike, index=column.index))
    return pd.concat(best) if best else pd.Series(dtype=bool)


def scores_csv(tables: Iterable[Table]) -> pd.DataFrame:
    """Returns tables.csv: one row per mean, at full precision."""
    names = ["table", "metric", "row", "column", "mean", "low", "high", "std", "n", "images"]
    means = [
        table.means.reset_index(names=["column", "row"]).assign(
            table=table.title, metric=table.metric
        )
        for table in tables
        if table.means is not None
    ]
    return pd.concat([pd.DataFrame(columns=names), *means])[names]


def _pending(request: TableRequest, frame: pd.DataFrame) -> dict[tuple[str, str], list[str]]:
    """Returns the states of runs without a result, by the cell that they belong to."""
    asked = {*request.rows.split("+"), *request.columns.split("+")}
    if asked & {*metric_regex(request.metric).groupindex}:
        return {}  # The cell of a run is not known before it has a result.
    frame = _where(request, frame)
    frozen = request.metric.partition("/")[0] in FROZEN_FEATURES
    frame = frame[[not r.finished and _measures(r, frozen=frozen) for r in frame.index]]
    columns, rows = text_column(frame, request.columns), text_column(frame, request.rows)
    placed = frame[(columns != "") & (rows != "")]
    states: dict[Any, list[str]] = placed.groupby([columns, rows])["state"].agg(list).to_dict()
    return states


def _lost(request: TableRequest, frame: pd.DataFrame, cells: Set[Any]) -> list[str]:
    """Returns sentences that name finished runs whose value is not finite, or is missing.

    It is missing if other runs of their cell have one; `cells` are (column, row).
    """
    wanted, matches = _where(request, frame), metric_regex(request.metric).fullmatch
    frozen = request.metric.partition("/")[0] in FROZEN_FEATURES
    axes = [text_column(wanted, name) for name in (request.columns, request.rows)]
    lost, absent = [], []
    for run, row, *cell in zip(wanted.index, wanted.to_dict("records"), *axes, strict=True):
        if run.finished and any(map(matches, run.not_finite)):
            lost.append(run.name)
            continue
        has_it = row.get(request.metric) is not None or any(map(matches, run.figures))
        if run.finished and (*cell,) in cells and not has_it and _measures(run, frozen=frozen):
            absent.append(run.name)
    reasons = {"it is not finite": lost, "they did not measure it": absent}
    found = {why: first_few(names, 5) for why, names in reasons.items() if names}
    return [f"Not in the means, because {why}: {names}." for why, names in found.items()]


def _where(request: TableRequest, frame: pd.DataFrame) -> pd.DataFrame:
    for name, wanted in request.where.items():
        frame = frame[text_column(frame, name) == wanted]
    return frame


def _measures(run: Run, *, frozen: bool) -> bool:
    """Whether a run measures scores of its frozen features, or else scores of its training."""
    command = run.job.get("command", "train")
    if frozen:
        return command == "fewshot" or bool(run.config.get("fewshot.datasets"))
    return command == "train"


def _cell(score: Mapping[Any, Any] | None, pending: list[str], metric: str) -> Cell:
    parts = [f"[{pending.count(state)} {state}]" for state in sorted({*pending})]
    if score is None:
        return Cell(" ".join(parts), kind="pending")
    mean = score["mean"]
    text = format_metric(mean, metric)
    if not math.isnan(score["low"]):
        ends = (format_metric(score[end], metric, like=mean) for end in ("low", "high"))
        text += f" [{', '.join(ends)}]"
    if not math.isnan(score["within"]):
        text += f" (± {format_metric(score['within'], metric, like=mean)})"
    text += f" (n={score['n']})" if not score["usual_n"] else ""
    kind = " ".join(["best"] * score["best"] + ["pending"] * bool(pending))
    detail = ", ".join(format_metric(value, metric) for value in score["values"])
    return Cell(" ".join([text, *parts]), mean, kind, detail)


def _notes(
    request: TableRequest, means: pd.DataFrame, observed: pd.DataFrame, *, pending: bool
) -> list[str]:
    if means.empty:
        return ["No run in this table has a result."]
    unit = "Percent. " if kind_of(request.metric).is_fraction else ""
    extreme = "smallest" if request.smallest_is_best else "largest"
    alike = ", and means that do not differ significantly from it"
    if not means["comparable"].all():
        alike = ", and means that are known not to differ significantly from it"
    alike = alike if means["low"].notna().any() else ""
    notes = [
        f"{unit}{describe_means(means)}.",
        *describe_seeds(means, request.pool),
        f"Bold: the {extreme} mean of its column{alike}.",
    ]
    if apart := tested_apart(observed, ["@columns"]):
        names = first_few([name for (name,) in apart], 5)
        notes.append(f"Not all runs of a column were tested on the same images: {names}.")
    if kind_of(request.metric).images and tested_apart(observed, _KEYS):
        notes.append(APART)
    low, high = kind_of(request.metric).bounds
    values = observed[VALUE].astype(float)
    if unit and not values.between(low, high).all():
        names = first_few([run.name for run in observed.index[~values.between(low, high)]], 5)
        notes.append(f"Not between 0 and 1, and shown times 100: the values of {names}.")
    if means["within"].notna().any():
        notes.append("After ±: standard deviation over the draws of examples inside one run.")
    notes += doubts(observed)
    differing = differing_within(observed, _KEYS)
    if differing:
        notes.append(f"Runs within a cell differ in more than the seed: {', '.join(differing)}.")
    elif observed[observed["seed"].notna()].duplicated([*_KEYS, "seed"]).any():
        notes.append("Some cells average several runs with the same seed.")
    if pending:
        notes.append("In square brackets: runs without a result, which are not in the means.")
    return notes
