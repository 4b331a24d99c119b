"""Tables of means and standard deviations over seeds, like Tables 2 and 5 of arXiv:2010.11929."""

import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from vit_jax.report import vtab
from vit_jax.report.frame import (
    METRIC,
    VALUE,
    check_columns,
    check_metric,
    differing_within,
    metric_regex,
    observations,
    select,
    texts,
)
from vit_jax.report.labels import (
    is_fraction,
    lower_is_better,
    markdown_table,
    natural,
    number_text,
    title_of,
)
from vit_jax.report.requests import TableRequest
from vit_jax.report.runs import Run

Key = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Summary:
    """Mean and standard deviation of a metric over runs that differ only by their seed.

    Attributes:
        mean: arithmetic mean.
        std: standard deviation with n - 1; None if n is 1.
        values: one a run.
        within: standard deviation over the draws of examples inside a single run, where n is 1.
    """

    mean: float
    std: float | None
    values: tuple[float, ...]
    within: float | None = None

    @property
    def n(self) -> int:
        """Number of runs."""
        return len(self.values)


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
    within = None
    if len(group) == 1:
        within = group.index[0].figures.get(f"{group[METRIC].iloc[0]}_std") or None
    return summarize(group[VALUE], within)


def mean_over(groups: Sequence[pd.DataFrame]) -> Summary:
    """Returns the mean over datasets, a group each.

    Its standard deviation is over seeds, if all datasets have the same ones.
    """
    by_seed = [{run.seed: value for run, value in group[VALUE].items()} for group in groups]
    seeds = set(by_seed[0])
    if all(set(b) == seeds and len(b) == len(g) for b, g in zip(by_seed, groups, strict=True)):
        ordered = sorted(seeds, key=natural)
        return summarize(statistics.fmean([b[seed] for b in by_seed]) for seed in ordered)
    return summarize([statistics.fmean([statistics.fmean(group[VALUE]) for group in groups])])


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what it shows.
        value: sorts the column on the HTML page.
        kind: CSS classes: "best", "pending", "latest", or "state".
        detail: shown as a tooltip; if it has several lines, below the text.
        summary: the statistics it shows, if it is a score.
    """

    text: str
    value: float | str = ""
    kind: str = ""
    detail: str = ""
    summary: Summary | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes:
        title: heading.
        header: of the columns.
        rows: one cell a column.
        notes: sentences below the table.
        metric: for tables of scores, the metric they show.
    """

    title: str
    header: list[str]
    rows: list[list[Cell]]
    notes: list[str] = dataclasses.field(default_factory=list)
    metric: str = ""

    def markdown(self) -> str:
        """Returns the table as Markdown, with the best value of each column in bold."""
        rows = [[f"**{c.text}**" if "best" in c.kind else c.text for c in row] for row in self.rows]
        return markdown_table(self.header, rows, right=bool(self.metric))


def score_table(request: TableRequest, frame: pd.DataFrame) -> Table:
    """Makes a table of scores.

    Args:
        request: which metric, rows and columns.
        frame: of the runs to report.

    Raises:
        ConfigError: no run has a column or metric of that name.
    """
    check_metric(frame, request.metric, "metric")
    observed = observations(frame, request.metric)
    check_columns(observed, rows=request.rows, columns=request.columns)
    observed = select(observed, request.where)
    groups: dict[Key, pd.DataFrame] = {
        (row, name): group
        for (row, name), group in observed.groupby(
            [texts(observed, request.rows), texts(observed, request.columns)]
        )
        if row and name
    }
    asked = {*request.rows.split("+"), *request.columns.split("+")}
    # A run without a result cannot be placed by a word of the metric's name.
    pending = {} if asked & {*metric_regex(request.metric).groupindex} else _pending(request, frame)
    summaries = {key: summarize_group(group) for key, group in groups.items()}
    rows = sorted({row for row, _ in {*groups, *pending}}, key=natural)
    columns = sorted({name for _, name in {*groups, *pending}}, key=natural)
    vtab_groups = vtab.grouped(columns)
    if vtab_groups is not None:
        for row in rows:
            for name, members in vtab_groups.items():
                found = [groups[row, member] for member in members if (row, member) in groups]
                if len(found) == len(members):
                    summaries[row, name] = mean_over(found)
        tasks = vtab_groups[vtab.ALL]
        columns = [*vtab_groups, *tasks, *(c for c in columns if c not in tasks)]
    best = _best(summaries, columns, request.metric)
    common_n = _common_n(summaries)
    cells = [
        [Cell(row), *(_cell(summaries.get((row, c)), pending.get((row, c), []), request.metric,
                            common_n, best=(row, c) in best) for c in columns)]
        for row in rows
    ]  # fmt: skip
    notes = _notes(request.metric, summaries, common_n, groups.values(), pending=bool(pending))
    title = request.title or title_of(request.metric)
    return Table(title, [title_of(request.rows), *columns], cells, notes, request.metric)


def _pending(request: TableRequest, frame: pd.DataFrame) -> dict[Key, list[str]]:
    """Returns the states of runs without a result, by the cell in which they belong."""
    found: dict[Key, list[str]] = defaultdict(list)
    frame = frame.loc[[not run.finished and _measures(run, request.metric) for run in frame.index]]
    for name, wanted in request.where:
        frame = frame[texts(frame, name) == wanted]
    rows, columns = texts(frame, request.rows), texts(frame, request.columns)
    for run, row, name in zip(frame.index, rows, columns, strict=True):
        if row and name:
            found[row, name].append(run.state)
    return found


def _measures(run: Run, metric: str) -> bool:
    """Whether a run will have a metric once it is finished."""
    if metric.startswith(("fewshot/", "knn/", "linear_probe/")):
        return run.job.get("command") == "fewshot" or bool(run.config.get("fewshot.datasets"))
    return run.job.get("command", "train") == "train"


def _best(summaries: Mapping[Key, Summary], columns: Iterable[str], metric: str) -> set[Key]:
    """Returns the cells with the best mean of their column, if it has more than one."""
    best = set()
    for name in columns:
        means = {key: summary.mean for key, summary in summaries.items() if key[1] == name}
        if len(means) > 1:
            wanted = (min if lower_is_better(metric) else max)(means.values())
            best |= {key for key, mean in means.items() if mean == wanted}
    return best


def _common_n(summaries: Mapping[Key, Summary]) -> int | None:
    """Returns the number of runs of most cells."""
    counts = Counter(summary.n for summary in summaries.values())
    return max(counts, key=lambda n: (counts[n], n)) if counts else None


def _cell(
    summary: Summary | None, pending: list[str], metric: str, common_n: int | None, *, best: bool
) -> Cell:
    parts = []
    if summary is not None:
        text = number_text(summary.mean, metric)
        if summary.std is not None:
            text += f" ± {number_text(summary.std, metric, like=summary.mean)}"
        elif summary.within is not None:
            text += f" (± {number_text(summary.within, metric, like=summary.mean)})"
        parts.append(text)
        if summary.n != common_n:
            parts.append(f"(n={summary.n})")
    parts += [f"[{pending.count(state)} {state}]" for state in sorted(set(pending))]
    values = summary.values if summary is not None else ()
    return Cell(
        text=" ".join(parts) or "–",
        value="" if summary is None else summary.mean,
        kind=" ".join(["best"] * best + ["pending"] * bool(pending)),
        detail=", ".join(number_text(value, metric) for value in values),
        summary=summary,
    )


def _notes(
    metric: str,
    summaries: Mapping[Key, Summary],
    common_n: int | None,
    groups: Iterable[pd.DataFrame],
    *,
    pending: bool,
) -> list[str]:
    counts = {summary.n for summary in summaries.values()}
    if not counts:
        return ["No run in this table has a result."]
    if counts == {1}:
        first = "One run in each cell, so no dispersion"
    else:
        runs = "1 run" if common_n == 1 else f"n = {common_n} runs"
        first = f"Mean ± standard deviation (n - 1) over {runs} in each cell"
        first += " unless it says otherwise" if len(counts) > 1 else ""
    unit = "Percent. " if is_fraction(metric) else ""
    better = "smallest" if lower_is_better(metric) else "largest"
    notes = [f"{unit}{first}. Bold: the {better} mean of its column."]
    if any(summary.within is not None for summary in summaries.values()):
        notes.append("In brackets: standard deviation over the draws of examples inside one run.")
    groups = list(groups)
    differing = differing_within(groups)
    seeds = [[run.seed for run in group.index if run.seed is not None] for group in groups]
    if differing:
        notes.append(f"Runs within a cell differ in more than the seed: {', '.join(differing)}.")
    elif any(len(set(s)) < len(s) for s in seeds):
        notes.append("Some cells average several runs with the same seed.")
    if pending:
        notes.append("In square brackets: runs without a result, which are not in the means.")
    return notes


def scores_csv(tables: Iterable[Table]) -> pd.DataFrame:
    """Returns tables.csv: a row for each mean, at full precision."""
    rows = [
        {
            "table": table.title, "metric": table.metric, "row": row[0].text, "column": name,
            "mean": summary.mean, "std": summary.std, "n": summary.n,
        }
        for table in tables for row in table.rows
        for name, cell in zip(table.header[1:], row[1:], strict=True) if (summary := cell.summary)
    ]  # fmt: skip
    return pd.DataFrame(rows, dtype=object)
