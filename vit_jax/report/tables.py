"""Tables of means and standard deviations over seeds, like Tables 2 and 5 of arXiv:2010.11929."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from vit_jax.report import labels, vtab
from vit_jax.report.frame import (
    check_columns,
    differing_within,
    metric_regex,
    observations,
    select,
    text_column,
)
from vit_jax.report.labels import format_metric, format_value, is_number, natural_key
from vit_jax.report.requests import TableRequest
from vit_jax.report.scores import Groups, Key, Summary, group_by, means_over, summarize_groups

_FROZEN_FEATURE_METRICS = ("fewshot/", "knn/", "linear_probe/")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: the text shown.
        value: sort key on the HTML page; None: sort by the text.
        kind: CSS classes: "best", "pending" or "state".
        detail: shown as a tooltip; several lines are shown below the text.
    """

    text: str
    value: float | None = None
    kind: str = ""
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes:
        title: heading.
        header: of the columns.
        rows: one cell per column.
        notes: sentences below the table.
        metric: of a table of scores, else "".
        means: of a table of scores: (column, row) -> mean and standard deviation.
    """

    title: str
    header: list[str]
    rows: list[list[Cell]]
    notes: list[str] = dataclasses.field(default_factory=list)
    metric: str = ""
    means: Mapping[Key, Summary] = dataclasses.field(default_factory=dict)

    def markdown(self) -> str:
        """Returns the table as Markdown, with the best value of each column in bold."""
        rows = [[f"**{c.text}**" if "best" in c.kind else c.text for c in row] for row in self.rows]
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
    """Makes a table of scores.

    Args:
        request: which metric, rows and columns.
        frame: of the runs to report.

    Raises:
        ConfigError: no run has a column or metric of that name.
    """
    metric = request.metric
    observed = observations(frame, metric)
    check_columns(observed, rows=request.rows, columns=request.columns)
    observed = select(observed, request.where)
    keys = [text_column(observed, name) for name in (request.columns, request.rows)]
    groups = {key: group for key, group in group_by(observed, *keys).items() if all(key)}
    pending = _pending(request, frame)
    columns, rows = (
        sorted({str(key[i]) for key in {*groups, *pending}}, key=natural_key) for i in (0, 1)
    )
    sets = vtab.group_tasks(columns)
    columns = [*dict.fromkeys([*sets, *sets.get(vtab.ALL, []), *columns])]
    means = summarize_groups(groups) | means_over(sets, groups)
    best = _best(means, min if labels.lower_is_better(metric) else max)
    counts = Counter(len(summary.values) for summary in means.values())
    common_n = max(counts, key=lambda n: (counts[n], n), default=0)
    cells = {
        key: _cell(means.get(key), pending.get(key, []), metric, common_n, best=key in best)
        for key in {*means, *pending}
    }
    return Table(
        request.title or labels.title_of(metric),
        [labels.title_of(request.rows), *columns],
        [[Cell(row), *(cells.get((name, row), Cell("–")) for name in columns)] for row in rows],
        _notes(metric, means, common_n, groups, pending=bool(pending)),
        metric,
        {(name, row): means[name, row] for row in rows for name in columns if (name, row) in means},
    )


def scores_csv(tables: Iterable[Table]) -> pd.DataFrame:
    """Returns tables.csv: one row per mean, at full precision."""
    rows = [
        [table.title, table.metric, row, name, summary.mean, summary.std, len(summary.values)]
        for table in tables
        for (name, row), summary in table.means.items()
    ]
    header = ["table", "metric", "row", "column", "mean", "std", "n"]
    return pd.DataFrame(rows, columns=header, dtype=object)


def _pending(request: TableRequest, frame: pd.DataFrame) -> dict[Key, list[str]]:
    """Returns the states of runs without a result, by the cell that they belong to."""
    metric, found = request.metric, defaultdict(list)
    asked = {*request.rows.split("+"), *request.columns.split("+")}
    if asked & {*metric_regex(metric).groupindex}:
        return {}  # The cell of a run is not known before it has a result.
    for name, wanted in request.where.items():
        frame = frame[text_column(frame, name) == wanted]
    keys = text_column(frame, request.columns), text_column(frame, request.rows)
    for run, state, *key in zip(frame.index, frame["state"], *keys, strict=True):
        measured = run.job.get("command", "train") == "train"
        if metric.startswith(_FROZEN_FEATURE_METRICS):
            measured = run.job.get("command") == "fewshot" or run.config.get("fewshot.datasets")
        if measured and not run.finished and all(key):
            found[tuple(key)].append(state)
    return found


def _best(means: Mapping[Key, Summary], choose: Any) -> set[Key]:
    """Returns the cells with the best mean of their column, if it has more than one mean."""
    columns: dict[Any, list[float]] = defaultdict(list)
    for (column, _), summary in means.items():
        columns[column].append(summary.mean)
    return {
        key
        for key, summary in means.items()
        if len(columns[key[0]]) > 1 and summary.mean == choose(columns[key[0]])
    }


def _cell(
    summary: Summary | None, pending: list[str], metric: str, common_n: int, *, best: bool
) -> Cell:
    parts = [f"[{pending.count(state)} {state}]" for state in sorted({*pending})]
    kind = " ".join(["best"] * best + ["pending"] * bool(pending))
    if summary is None:
        return Cell(" ".join(parts), kind=kind)
    mean, std, values, within = summary
    text = format_metric(mean, metric)
    if std is not None:
        text += f" ± {format_metric(std, metric, like=mean)}"
    elif within is not None:
        text += f" (± {format_metric(within, metric, like=mean)})"
    text += f" (n={len(values)})" if len(values) != common_n else ""
    detail = ", ".join(format_metric(value, metric) for value in values)
    return Cell(" ".join([text, *parts]), mean, kind, detail)


def _notes(
    metric: str, means: Mapping[Key, Summary], common_n: int, groups: Groups, *, pending: bool
) -> list[str]:
    counts = {len(summary.values) for summary in means.values()}
    if not counts:
        return ["No run in this table has a result."]
    if counts == {1}:
        first = "One run in each cell, so no dispersion"
    else:
        runs = "1 run" if common_n == 1 else f"n = {common_n} runs"
        first = f"Mean ± standard deviation (n - 1) over {runs} in each cell"
        first += " unless it says otherwise" if len(counts) > 1 else ""
    unit = "Percent. " if labels.is_fraction(metric) else ""
    better = "smallest" if labels.lower_is_better(metric) else "largest"
    notes = [f"{unit}{first}. Bold: the {better} mean of its column."]
    if any(summary.within is not None for summary in means.values()):
        notes.append("In brackets: standard deviation over the draws of examples inside one run.")
    differing = differing_within(groups.values())
    if differing:
        notes.append(f"Runs within a cell differ in more than the seed: {', '.join(differing)}.")
    elif any(group["seed"].dropna().duplicated().any() for group in groups.values()):
        notes.append("Some cells average several runs with the same seed.")
    if pending:
        notes.append("In square brackets: runs without a result, which are not in the means.")
    return notes
