"""Tables of means and standard deviations over seeds, like Tables 2 and 5 of arXiv:2010.11929."""

import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from vit_jax.report import frame as frames
from vit_jax.report import labels, vtab
from vit_jax.report.frame import METRIC, VALUE, text_column
from vit_jax.report.labels import format_metric, natural_key
from vit_jax.report.requests import TableRequest

Key = tuple[str, ...]
_FROZEN_FEATURE_METRICS = ("fewshot/", "knn/", "linear_probe/")


class Summary(NamedTuple):
    """Mean and standard deviation of a metric over runs that differ only by their seed.

    Attributes:
        mean: arithmetic mean.
        std: standard deviation with n - 1; None if n is 1.
        values: one per run.
        within: standard deviation over the draws of examples within one run, if n is 1.
    """

    mean: float
    std: float | None
    values: tuple[float, ...]
    within: float | None = None


def summarize(values: Iterable[float], within: float | None = None) -> Summary:
    """Returns mean and standard deviation.

    >>> summarize([1.0, 2.0, 3.0])
    Summary(mean=2.0, std=1.0, values=(1.0, 2.0, 3.0), within=None)
    """
    values = tuple(values)
    std = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), std, values, within)


def summarize_group(group: pd.DataFrame) -> Summary:
    """Returns mean and standard deviation of a group of observations."""
    figures, name = group.index[0].figures, group[METRIC].iloc[0]
    within = figures.get(f"{name}_std") or None
    return summarize(group[VALUE], within if len(group) == 1 else None)


def mean_over_datasets(groups: Sequence[pd.DataFrame]) -> Summary:
    """Returns the mean over datasets; each group holds the runs of one dataset.

    If all datasets have the same seeds, its standard deviation is over seeds.
    """
    by_seed = [
        {run.seed: value for run, value in zip(group.index, group[VALUE], strict=True)}
        for group in groups
    ]
    seeds = sorted(by_seed[0], key=natural_key)
    if all({*b} == {*seeds} and len(b) == len(g) for b, g in zip(by_seed, groups, strict=True)):
        return summarize(statistics.fmean([b[seed] for b in by_seed]) for seed in seeds)
    return summarize([statistics.fmean([statistics.fmean(group[VALUE]) for group in groups])])


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: the text shown.
        value: sort key on the HTML page; None: sort by the text.
        kind: CSS classes: "best", "pending" or "state".
        detail: shown as a tooltip; several lines are shown below the text.
        summary: its statistics, if it is a score.
    """

    text: str
    value: float | None = None
    kind: str = ""
    detail: str = ""
    summary: Summary | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes:
        title: heading.
        header: of the columns.
        rows: one cell per column.
        notes: sentences below the table.
        metric: of a table of scores, else "".
    """

    title: str
    header: list[str]
    rows: list[list[Cell]]
    notes: list[str] = dataclasses.field(default_factory=list)
    metric: str = ""

    def markdown(self) -> str:
        """Returns the table as Markdown, with the best value of each column in bold."""
        rows = [[f"**{c.text}**" if "best" in c.kind else c.text for c in row] for row in self.rows]
        return labels.markdown_table(self.header, rows, right=bool(self.metric))


def score_table(request: TableRequest, frame: pd.DataFrame) -> Table:
    """Makes a table of scores.

    Args:
        request: which metric, rows and columns.
        frame: of the runs to report.

    Raises:
        ConfigError: no run has a column or metric of that name.
    """
    metric = request.metric
    frames.check_metric(frame, metric, "metric")
    observed = frames.observations(frame, metric)
    frames.check_columns(observed, rows=request.rows, columns=request.columns)
    observed = frames.select(observed, request.where)
    keys = [text_column(observed, request.rows), text_column(observed, request.columns)]
    groups = {key: group for key, group in frames.group_by(observed, keys).items() if all(key)}
    summaries = {key: summarize_group(group) for key, group in groups.items()}
    pending = _pending(request, frame)
    rows, columns = (
        sorted({key[i] for key in {*groups, *pending}}, key=natural_key) for i in (0, 1)
    )
    means = vtab.group_tasks(columns)
    for row, (name, members) in ((row, item) for row in rows for item in means.items()):
        found = [groups[row, member] for member in members if (row, member) in groups]
        if len(found) == len(members):
            summaries[row, name] = mean_over_datasets(found)
    columns = list(dict.fromkeys([*means, *means.get(vtab.ALL, []), *columns]))
    best = _best(summaries, min if labels.lower_is_better(metric) else max)
    counts = Counter(len(summary.values) for summary in summaries.values())
    common_n = max(counts, key=lambda n: (counts[n], n), default=0)
    cells = {
        key: _cell(summaries.get(key), pending.get(key, []), metric, common_n, best=key in best)
        for key in {*summaries, *pending}
    }
    return Table(
        request.title or labels.title_of(metric),
        [labels.title_of(request.rows), *columns],
        [[Cell(row), *(cells.get((row, name), Cell("–")) for name in columns)] for row in rows],
        _notes(metric, summaries, common_n, list(groups.values()), pending=bool(pending)),
        metric,
    )


def scores_csv(tables: Iterable[Table]) -> pd.DataFrame:
    """Returns tables.csv: one row per mean, at full precision."""
    rows = [
        {
            "table": table.title,
            "metric": table.metric,
            "row": row[0].text,
            "column": name,
            "mean": summary.mean,
            "std": summary.std,
            "n": len(summary.values),
        }
        for table in tables
        for row in table.rows
        for name, cell in zip(table.header, row, strict=True)
        if (summary := cell.summary)
    ]
    return pd.DataFrame(rows, dtype=object)


def _pending(request: TableRequest, frame: pd.DataFrame) -> dict[Key, list[str]]:
    """Returns the states of runs without a result, by the cell that they belong to."""
    metric, found = request.metric, defaultdict(list)
    asked = {*request.rows.split("+"), *request.columns.split("+")}
    if asked & {*frames.metric_regex(metric).groupindex}:
        return {}  # The cell of a run is not known before it has a result.
    for name, wanted in request.where.items():
        frame = frame[text_column(frame, name) == wanted]
    rows, columns = text_column(frame, request.rows), text_column(frame, request.columns)
    for run, *key in zip(frame.index, rows, columns, strict=True):
        measured = run.job.get("command", "train") == "train"
        if metric.startswith(_FROZEN_FEATURE_METRICS):
            measured = run.job.get("command") == "fewshot" or run.config.get("fewshot.datasets")
        if measured and not run.finished and all(key):
            found[key[0], key[1]].append(run.state)
    return found


def _best(summaries: Mapping[Key, Summary], choose: Any) -> set[Key]:
    """Returns the cells with the best mean of their column, if it has more than one mean."""
    columns: dict[str, dict[Key, float]] = defaultdict(dict)
    for key, summary in summaries.items():
        columns[key[1]][key] = summary.mean
    several = [means for means in columns.values() if len(means) > 1]
    return {k for means in several for k, mean in means.items() if mean == choose(means.values())}


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
    return Cell(" ".join([text, *parts]), mean, kind, detail, summary)


def _notes(
    metric: str,
    summaries: Mapping[Key, Summary],
    common_n: int,
    groups: list[pd.DataFrame],
    *,
    pending: bool,
) -> list[str]:
    counts = {len(summary.values) for summary in summaries.values()}
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
    if any(summary.within is not None for summary in summaries.values()):
        notes.append("In brackets: standard deviation over the draws of examples inside one run.")
    differing = frames.differing_within(groups)
    seeds = [[run.seed for run in group.index if run.seed is not None] for group in groups]
    if differing:
        notes.append(f"Runs within a cell differ in more than the seed: {', '.join(differing)}.")
    elif any(len({*of_cell}) < len(of_cell) for of_cell in seeds):
        notes.append("Some cells average several runs with the same seed.")
    if pending:
        notes.append("In square brackets: runs without a result, which are not in the means.")
    return notes
