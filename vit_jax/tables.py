"""Tables for the terminal."""

from rich import box
from rich.table import Table


def plain_table(first: str, *, right: tuple[str, ...], left: str | None = None) -> Table:
    """Returns an empty table.

    The columns on the `right` hold numbers, and a last one on the `left` text. If the header of the
    first column is "", all headers are hidden.
    """
    table = Table(box=box.SIMPLE_HEAD, show_header=bool(first))
    table.add_column(first, no_wrap=True)
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    if left is not None:
        table.add_column(left, no_wrap=True)
    return table
