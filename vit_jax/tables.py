"""Tables for the terminal."""

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

# Width of wide tables. In a narrower terminal lines are wrapped, not truncated.
_COLUMNS = 100


def wide_console() -> Console:
    """Returns a console for wide tables."""
    console = Console(highlight=False)
    return console if console.width >= _COLUMNS else Console(highlight=False, width=_COLUMNS)


def plain_table(first: str, *, right: tuple[str, ...], left: str | None = None) -> Table:
    """Returns an empty table; if the header of the first column is "", all headers are hidden.

    `right` has the headers of columns of numbers, and `left` that of a last column of text.
    """
    table = Table(box=box.SIMPLE_HEAD, show_header=bool(first))
    table.add_column(first, no_wrap=True)
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    if left is not None:
        table.add_column(left, overflow="fold")
    return table


def print_table(table: Table, console: Console) -> None:
    """Prints a table, wider than the terminal if it must be: no cell is truncated.

    In a narrow terminal only the last column of text wraps, at words.
    """
    width, options = console.width, console.options.update(width=10 * _COLUMNS)
    needed = Measurement.get(console, options, table).maximum
    for column in table.columns:
        if not column.no_wrap:
            cells = [Measurement.get(console, options, c) for c in (column.header, *column.cells)]
            needed -= max(cell.maximum for cell in cells) - max(cell.minimum for cell in cells)
    console.width = max(width, needed)
    console.print(table)
    console.width = width
