"""Reads CSV and JSONL files that list images."""

import csv
import io
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.data.sources.split_names import read_splits
from vit_jax.errors import DataError, first_few
from vit_jax.storage.files import LFS_FIX, LFS_POINTER, is_lfs_pointer, parse_json

log = logging.getLogger(__name__)

_MAX_NAMED = 10


class Table(NamedTuple):
    """The rows of a file."""

    columns: list[str]
    rows: list[dict[str, Any]]
    lines: list[int]  # of each row in the file, from 1


def read_csv(path: Path, separator: str) -> Table:
    """Reads a CSV file. `separator` is the usual one; tabs and semicolons are found."""
    rows, lines = [], []
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            text = file.read()
            if is_lfs_pointer(text[:100].encode()):
                raise DataError(f"{path} is {LFS_POINTER}", "a CSV file", LFS_FIX)
            found = separator_of(text, separator)
            reader = csv.DictReader(io.StringIO(text, newline=""), restval="", delimiter=found)
            for row in reader:
                row.pop(None, None)  # pyright: ignore[reportArgumentType]
                rows.append(row)
                lines.append(reader.line_num)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}: {error}", "a CSV file in UTF-8", "fix the file") from None
    return Table(list(reader.fieldnames or []), rows, lines)


def read_jsonl(path: Path) -> Table:
    """Reads a file with a JSON object in each line."""
    rows: list[dict[str, Any]] = []
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                row = parse_json(line)
                if not isinstance(row, dict):
                    raise ValueError(f"line {number} is not a JSON object")
                rows.append(row)
    except ValueError as error:  # Neither UTF-8 nor JSON.
        reason = f"line {len(rows) + 1}: {error}" if "line" not in str(error) else str(error)
        raise DataError(f"{path}: {reason}", "a JSON object in each line", "fix it") from None
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return Table(columns, rows, list(range(1, len(rows) + 1)))


def separator_of(text: str, usual: str) -> str:
    """Returns the separator of a table: a tab or semicolon if only they are in the first line."""
    first = text.partition("\n")[0]
    others = [mark for mark in "\t;" if mark in first and "," not in first]
    return others[0] if others else usual


def split_cells(path: Path, table: Table, used: Collection[str]) -> list[Any]:
    """Returns the split of each row as the table writes it, or "train".

    It is in the column split, or else in one that `read_splits` understands. Says which columns are
    not read; `used` are those with another meaning.
    """
    others = {name: name.strip().casefold() for name in table.columns if name not in used}
    own = next((name for name, lower in others.items() if lower == "split"), None)
    if own is not None:
        splits, read = [row.get(own) for row in table.rows], [own]
    else:
        cells = {name: [_text(row.get(name)) for row in table.rows] for name in others}
        found, read = read_splits(path, cells)
        splits = ["train"] * len(table.rows) if found is None else found
        if found is not None:
            counts = ", ".join(f"{split} {found.count(split):,}" for split in dict.fromkeys(found))
            log.info("%s: splits by the column %s: %s", path, " and ".join(read), counts)
    unread = [name for name in others if name not in read]
    if unread:
        log.info("%s: columns that are not read: %s", path, first_few(unread, _MAX_NAMED))
    return splits


def _text(value: Any) -> str:
    return "" if value is None else str(value)
