"""Tables of means and standard deviations over seeds, as Tables 2 and 5 of arXiv:2010.11929."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from vit_jax.report import vtab
from vit_jax.report.dispersion import Summary, mean_over, summarize, within_run
from vit_jax.report.fields import Fields, Observation, metric_regex, mixed_settings, select
from vit_jax.report.requests import TableRequest
from vit_jax.report.runs import Run, natural
from vit_jax.report.words import is_share, lower_is_better, number_text, show, title_of


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        summary: of the finished runs; None: there is none.
        best: whether it is the best mean of its column.
        pending: states of the runs that belong here and have no result.
        within: standard deviation inside the only run, over its own draws of examples.
    """

    summary: Summary | None
    best: bool = False
    pending: tuple[str, ...] = ()
    within: float | None = None


@dataclasses.dataclass(frozen=True)
class ReportTable:
    """A table that can be written as Markdown or HTML.

    Attributes:
        title: heading.
        metric: what the figures are.
        corner: heading of the first column.
        rows: headings of the rows.
        columns: headings of the columns.
        cells: (row, column) -> cell; a pair that is missing has no runs.
        notes: sentences on what the figures are.
    """

    title: str
    metric: str
    corner: str
    rows: list[str]
    columns: list[str]
    cells: dict[tuple[str, str], Cell]
    notes: list[str]

    def text(self, row: str, column: str) -> str:
        """Returns a cell as text, e.g. "81.20 ± 0.31"."""
        cell = self.cells.get((row, column))
        return "–" if cell is None else cell_text(cell, self.metric, self.common_n)

    @property
    def common_n(self) -> int | None:
        """Number of runs of most cells; None: there are no runs."""
        counts = Counter(c.summary.n for c in self.cells.values() if c.summary is not None)
        return max(counts, key=lambda n: (counts[n], n)) if counts else None


def cell_text(cell: Cell, metric: str, common_n: int | None) -> str:
    """Returns a cell as text; n is told where it is not that of most cells."""
    words = []
    if cell.summary is not None:
        text = number_text(cell.summary.mean, metric)
        if cell.summary.std is not None:
            text += f" ± {number_text(cell.summary.std, metric, like=cell.summary.mean)}"
        elif cell.within is not None:
            text += f" (± {number_text(cell.within, metric, like=cell.summary.mean)})"
        words.append(text)
        if common_n != cell.summary.n:
            words.append(f"(n={cell.summary.n})")
    for state in sorted(set(cell.pending)):
        words.append(f"[{cell.pending.count(state)} {state}]")
    return " ".join(words) or "–"


def build_table(request: TableRequest, runs: Sequence[Run], fields: Fields) -> ReportTable:
    """Builds a table.

    Args:
        request: what is asked for.
        runs: those that are to be reported.
        fields: of all runs.

    Raises:
        ConfigError: a field or metric that no run has.
    """
    bound = set(metric_regex(request.metric).groupindex)
    fields.check_metric(request.metric, "metric")
    fields.check(request.rows, "rows", bound)
    fields.check(request.columns, "columns", bound)
    chosen = select(fields, fields.observations(runs, request.metric), request.where)
    groups: dict[tuple[str, str], list[Observation]] = defaultdict(list)
    for observation in chosen:
        key = [show(fields.value(observation, f)) for f in (request.rows, request.columns)]
        if all(key):
            groups[key[0], key[1]].append(observation)
    asked = {*request.rows.split("+"), *request.columns.split("+")}
    # Where the metric's name says the row or column, nobody knows those of a run without it.
    pending = {} if asked & bound else _pending(request, runs, fields)
    cells = {
        key: Cell(
            summarize([o.value for o in groups[key]]) if key in groups else None,
            pending=tuple(pending.get(key, ())),
            within=within_run(groups.get(key, [])),
        )
        for key in {*groups, *pending}
    }
    rows = sorted({row for row, _ in cells}, key=natural)
    columns = sorted({column for _, column in cells}, key=natural)
    columns = _add_vtab(request, groups, cells, rows, columns)
    _mark_best(request.metric, cells, columns)
    table = ReportTable(
        request.title or title_of(request.metric), request.metric, title_of(request.rows),
        rows, columns, cells, [],
    )  # fmt: skip
    table.notes.extend(_notes(table, groups))
    return table


def _pending(
    request: TableRequest, runs: Sequence[Run], fields: Fields
) -> dict[tuple[str, str], list[str]]:
    """Returns the states of runs without a result, by the cell in which they would be."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for run in runs:
        key = [show(fields.of(run, f)) for f in (request.rows, request.columns)]
        fits = all(show(fields.of(run, name)) == wanted for name, wanted in request.where)
        if not run.finished and fits and all(key) and _would_have(run, request.metric):
            found[key[0], key[1]].append(run.state)
    return found


def _would_have(run: Run, metric: str) -> bool:
    """Whether a run without a result is one that measures a metric."""
    if metric.startswith(("fewshot/", "knn/", "linear_probe/")):
        return run.job.get("command") == "fewshot" or bool(run.config.get("fewshot.datasets"))
    return run.job.get("command", "train") == "train"


def _add_vtab(
    request: TableRequest,
    groups: dict[tuple[str, str], list[Observation]],
    cells: dict[tuple[str, str], Cell],
    rows: list[str],
    columns: list[str],
) -> list[str]:
    """Adds columns of means over VTAB's groups, where all its tasks are columns."""
    tasks = vtab.grouped(columns)
    if tasks is None:
        return columns
    for row in rows:
        for name, members in tasks.items():
            found = [groups.get((row, member), []) for member in members]
            if all(found):
                cells[row, name] = Cell(mean_over(found))
    ordered = tasks["VTAB (19)"]
    return [*tasks, *ordered, *(c for c in columns if c not in ordered)]


def _mark_best(metric: str, cells: dict[tuple[str, str], Cell], columns: Sequence[str]) -> None:
    choose = min if lower_is_better(metric) else max
    for column in columns:
        keys = [k for k, c in cells.items() if k[1] == column and c.summary is not None]
        means: dict[tuple[str, str], Any] = {k: s.mean for k in keys if (s := cells[k].summary)}
        if len(means) < 2:
            continue
        best = choose(means.values())
        for key, mean in means.items():
            cells[key] = dataclasses.replace(cells[key], best=mean == best)


def _notes(table: ReportTable, groups: dict[tuple[str, str], list[Observation]]) -> list[str]:
    unit = "Percent. " if is_share(table.metric) else ""
    n = table.common_n
    counts = {c.summary.n for c in table.cells.values() if c.summary is not None}
    if not counts:
        return ["No run that belongs here has a result."]
    if counts == {1}:
        spread = "One run in each cell, so no dispersion"
    else:
        runs = "1 run" if n == 1 else f"n = {n} runs"
        spread = f"Mean ± standard deviation (n - 1) over {runs} in each cell"
        spread += " that does not say otherwise" if len(counts) > 1 else ""
    better = "smallest" if lower_is_better(table.metric) else "largest"
    notes = [f"{unit}{spread}. Bold: the {better} mean of its column."]
    if any(c.within is not None for c in table.cells.values()):
        notes.append("In brackets: standard deviation over the draws of examples inside one run.")
    mixed = mixed_settings(list(groups.values()))
    if mixed:
        notes.append(f"Runs of one cell differ not in their seed alone but in {', '.join(mixed)}.")
    seeds = [[o.run.seed for o in group if o.run.seed is not None] for group in groups.values()]
    if not mixed and any(len(set(s)) < len(s) for s in seeds):
        notes.append("Some cells hold several runs of the same seed.")
    if any(c.pending for c in table.cells.values()):
        notes.append("In square brackets: runs that have no result, which the means leave out.")
    return notes
