"""What a person sees of a sweep: a live table on a terminal, plain lines elsewhere."""

import statistics
from types import TracebackType

from rich import box
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from vit_jax.sweep.board import STATES, Board, Row
from vit_jax.sweep.records import log_end, log_file
from vit_jax.sweep.selection import split_of

_COLOURS = {"failed": "red", "blocked": "red", "running": "green", "finished": "dim"}
_WIDE = 160
# Lines of the terminal that the table leaves to its head, its last line and the prompt.
_OTHER_LINES = 7


class TableView:
    """Shows where jobs stand. Use as a context manager."""

    def __init__(self) -> None:
        console = Console()
        # Nothing is cut off where no screen has an end.
        self._console = console if console.is_terminal else Console(width=_WIDE)
        self._live: Live | None = None
        self._told: dict[str, tuple[str, str]] = {}

    def __enter__(self) -> "TableView":
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """Prints a line above the table."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, board: Board) -> None:
        """Shows the rows as they are now; without a terminal, those whose state has changed."""
        if self._live is not None:
            most = max(1, self._console.height - _OTHER_LINES)
            self._live.update(job_table(list(board.rows.values()), most), refresh=True)
            return
        finished = len(board.named("finished"))
        for name, row in board.rows.items():
            now = (row.state, row.note if row.state in ("failed", "blocked") else "")
            before = self._told.get(name, ("waiting", ""))
            self._told[name] = now
            if now == before or row.state in ("waiting", "ready"):
                continue
            told = "  ".join(filter(None, [row.note, _score(row), _time(row.seconds)]))
            self.say(
                f"[{finished}/{len(board.rows)}] {name}: {row.state}{'  ' if told else ''}{told}"
            )

    def close(self, board: Board) -> None:
        """Prints the last table, what was chosen and reported, and how failed jobs' logs end."""
        self.__exit__(None, None, None)
        rows = list(board.rows.values())
        self._console.print(job_table(rows, len(rows)))
        for line in group_lines(board):
            self.say(line)
        for row in rows:
            if row.state != "failed":
                continue
            self.say(f"\n{row.job.name}: {row.note}; {log_file(row.job.folder)} ends")
            for line in log_end(row.job.folder):
                self.say(f"  {line}")


def job_table(rows: list[Row], most: int) -> Table:
    """Returns a table of at most so many rows, those that matter now first, else in their order."""
    shown = rows
    if len(rows) > most:
        shown = sorted(rows, key=lambda row: STATES.index(row.state))[:most]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("job", overflow="fold")
    for column in ("step", "score", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for row in shown:
        colour = _COLOURS.get(row.state)
        told = row.note and row.state in ("failed", "blocked")
        state = f"{row.state}: {row.note}" if told else row.state
        state = f"[{colour}]{escape(state)}[/]" if colour else escape(state)
        table.add_row(escape(row.job.name), _steps(row), _score(row), _time(row.seconds), state)
    if len(shown) < len(rows):
        table.add_row(f"and {len(rows) - len(shown)} more", "", "", "", "")
    table.caption = escape(summary(rows))
    table.caption_justify = "left"
    return table


def summary(rows: list[Row]) -> str:
    """Returns how many jobs are in which state, such as "3 finished, 1 running"."""
    counts = {state: sum(row.state == state for row in rows) for state in reversed(STATES)}
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count)


def group_lines(board: Board) -> list[str]:
    """Returns, for each selection whose final runs are finished, what they give, in one line."""
    lines = []
    for group, choice in board.plan.choices.items():
        rows = [board.rows[name] for name in choice.finals]
        results = [row.result for row in rows if row.result is not None]
        if not results or len(results) < len(rows):
            continue
        figure = choice.selection.metric.rpartition("/")[2]
        made = rows[0].job.selection or {}
        lines.append(f"{group}: {made.get('chosen')} chosen by {choice.selection.metric}")
        for name in results[0]:
            values = [result[name] for result in results if name in result]
            if name.endswith(f"/{figure}") and len(values) == len(results):
                lines.append(f"  {split_of(name) or name}/{figure} {mean_and_std(values)}")
    return lines


def mean_and_std(values: list[float]) -> str:
    """Returns the mean and the sample standard deviation in words.

    >>> mean_and_std([0.5, 0.7])
    '0.6000 +- 0.1414 (2 seeds)'
    >>> mean_and_std([0.5])
    '0.5000 (1 seed)'
    """
    mean = statistics.fmean(values)
    if len(values) == 1:
        return f"{mean:.4f} (1 seed)"
    return f"{mean:.4f} +- {statistics.stdev(values):.4f} ({len(values)} seeds)"


def _steps(row: Row) -> str:
    if not row.step and not row.total:
        return ""
    return f"{row.step:,}/{row.total:,}" if row.total else f"{row.step:,}"


def _score(row: Row) -> str:
    if row.score is None:
        return ""
    name, value = row.score
    return f"{name.removeprefix('eval/').removesuffix('/accuracy_top1')} {value:.4f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    whole = round(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
