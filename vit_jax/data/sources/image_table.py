"""Reads CSV and JSONL files that list images."""

import csv
import io
import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.data.sources.split_names import read_splits, splits_in_paths
from vit_jax.errors import DataError, first_few
from vit_jax.storage.files import LFS_FIX, LFS_POINTER, is_lfs_pointer, parse_json

log = logging.getLogger(__name__)

_MAX_NAMED = 10
_QUOTES = "a value with a separator or quotes in it needs quotes, and quotes in it are doubled"
# Texts for a value that is not there.
MISSING = ("nan", "none", "null", "n/a", "#n/a", "na", "<na>", "nat")

# Captions that programs write in place of a text: a missing value, a list.
_NO_CAPTION = re.compile(
    r"(?:nan|none|null|<na>)?|\[\s*(['\"]).*\1\s*\]", re.DOTALL | re.IGNORECASE
)


class Table(NamedTuple):
    """The rows of a file."""

    columns: list[str]
    rows: list[dict[str, Any]]
    lines: list[int]  # of each row in the file, from 1


def read_csv(path: Path, separator: str) -> Table:
    """Reads a CSV file. `separator` is the usual one; tabs and semicolons are found."""
    rows, lines = [], []
    text = _read(path, "a CSV file")
    held, separator = io.StringIO(text, newline=""), separator_of(text, separator)
    # Else a quote that is not closed takes the lines up to the next one.
    reader = csv.reader(held, delimiter=separator, strict=True)
    try:
        columns = [name.strip() or f"column {i}" for i, name in enumerate(next(reader, []), 1)]
        for row in filter(None, reader):
            if len(row) != len(columns):
                raise DataError(
                    f"line {reader.line_num} of {path} has {len(row)} values",
                    f"{len(columns)}, one for each of {','.join(columns)}",
                    f"fix the line: {_QUOTES}",
                )
            rows.append(dict(zip(columns, row, strict=True)))
            lines.append(reader.line_num)
    except csv.Error as error:
        raise DataError(
            f"line {reader.line_num} of {path}: {error}", "a CSV file", f"fix the line: {_QUOTES}"
        ) from None
    counts = Counter(name.casefold() for name in columns)
    if twice := [name for name in columns if counts[name.casefold()] > 1]:
        raise DataError(
            f"line 1 of {path} has the columns {', '.join(twice)}",
            "different names, also in small letters",
            "rename or remove all but one of them",
        )
    return Table(columns, rows, lines)


def read_jsonl(path: Path) -> Table:
    """Reads a file with a JSON object in each line."""
    expected = "a JSON object in each line"
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(io.StringIO(_read(path, expected)), start=1):
        try:
            row = parse_json(line)
        except ValueError as error:
            raise DataError(f"{path}: line {number}: {error}", expected, "fix it") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}: line {number} is not a JSON object", expected, "fix it")
        rows.append(row)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return Table(columns, rows, list(range(1, len(rows) + 1)))


def _read(path: Path, expected: str) -> str:
    content = path.read_bytes()
    if is_lfs_pointer(content):
        raise DataError(f"{path} is {LFS_POINTER}", expected, LFS_FIX)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}: line {number}: {error.reason}", f"{expected} in UTF-8", "convert the file"
        ) from None


def separator_of(text: str, usual: str) -> str:
    """Returns the separator of a table: a tab or semicolon if only they are in the first line."""
    first = text.partition("\n")[0]
    others = [mark for mark in "\t;" if mark in first and "," not in first]
    return others[0] if others else usual


def is_caption(text: str) -> bool:
    """Whether a text is a caption: not empty, no missing value and no list written as text."""
    return _NO_CAPTION.fullmatch(text.strip()) is None


def split_cells(path: Path, table: Table, image: str, label: str) -> list[str]:
    """Returns the split of each row, "train" if no column says it as `read_splits` understands it.

    Says which columns are not read. `image` and `label` are columns with another meaning.
    """
    columns: dict[str, list[str]] = {}
    for name in table.columns:
        if name in (image, label):
            continue
        is_split = name.strip().casefold() == "split"
        cells = [row.get(name, "train" if is_split else None) for row in table.rows]
        for line, cell in zip(table.lines, cells, strict=True):
            if is_split and (
                not isinstance(cell, str) or cell.strip().casefold() in ("", *MISSING)
            ):
                raise DataError(
                    f"line {line} of {path} has the {name} {cell!r}",
                    "the name of a split, such as train, val or test",
                    "fix the line",
                )
        columns[name] = ["" if cell is None else str(cell) for cell in cells]
    found, read = read_splits(path, table.lines, columns)
    unread = [name for name in columns if name not in read]
    if unread:
        log.info("%s: columns that are not read: %s", path, first_few(unread, _MAX_NAMED))
    if found is None:
        for name in (image, *unread):
            folders = splits_in_paths([str(row.get(name)) for row in table.rows])
            if len(folders) > 1:
                log.warning(
                    "%s: all images are in the split train, but folders in the column %s are named"
                    " %s: is a column split missing?",
                    path, name, ", ".join(folders),
                )  # fmt: skip
        return ["train"] * len(table.rows)
    counts = ", ".join(f"{split} {found.count(split):,}" for split in dict.fromkeys(found))
    log.info("%s: splits by the column %s: %s", path, " and ".join(read), counts)
    return found
