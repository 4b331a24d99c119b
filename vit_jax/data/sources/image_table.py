"""Reads CSV, TSV and JSONL files that list images, each with a label or captions.

Files are UTF-8. A line has the path of an image, relative to the file, and a value. Columns may say
its split (`split_names.py`).
"""

import csv
import functools
import io
import logging
import posixpath
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.data.sources.split_names import read_splits, splits_in_paths
from vit_jax.errors import DataError, first_few
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import LFS_FIX, LFS_POINTER, is_lfs_pointer, parse_json

log = logging.getLogger(__name__)

_MAX_NAMED = 10
_QUOTES = "a value with a separator or quotes in it needs quotes, and quotes in it are doubled"
# Texts for a value that is not there.
MISSING = ("nan", "none", "null", "n/a", "#n/a", "na", "<na>", "nat")


class Row(NamedTuple):
    """A line that lists an image."""

    where: str  # For messages.
    image: str  # Path relative to the file, spelled as in the first line that has it.
    value: Any  # Of the column that was asked for; None: the line has none.
    split: str


def read_rows(path: Path, image_columns: Sequence[str], value_column: str, fix: str) -> list[Row]:
    """Returns the lines of a file, by the first of the image columns that it has.

    `fix` says what to do if it has no such columns. Capitals do not matter in names of columns.
    """
    table = _read_jsonl(path) if path.suffix == ".jsonl" else _read_csv(path)
    wanted = f"{' or '.join(image_columns)}, and {value_column}"
    known = {name.casefold(): name for name in table.columns} | {n: n for n in table.columns}
    image = next((known[name] for name in image_columns if name in known), None)
    value = known.get(value_column)
    if table.columns and (image is None or value is None):
        raise DataError(f"{path} with the columns {', '.join(table.columns)}", wanted, fix)
    if not table.rows or image is None or value is None:
        raise DataError(f"{path} lists no image", f"{wanted}, with a line per image", "add them")
    rows: list[Row] = []
    folder = path.parent.resolve()
    seen: dict[str, tuple[str, str]] = {}  # Path of an image -> its name and split.
    cells = _split_cells(path, table, image, value)
    for number, row, split in zip(table.lines, table.rows, cells, strict=True):
        where, name = f"line {number} of {path}", row.get(image)
        if not isinstance(name, str) or not (name := name.strip()):
            raise DataError(f"{where} has no {image}", "the path of an image", "fix the line")
        name, first = seen.setdefault(_file_of(folder, name), (name, split))
        if first != split:
            raise DataError(
                f"{where}: {name} is in the splits {first} and {split}",
                "one split for an image",
                "fix the line",
            )
        rows.append(Row(where, name, row.get(value), split))
    return rows


def _file_of(folder: Path, name: str) -> str:
    """Returns the path of a listed file, which is the same for all its spellings."""
    path = posixpath.join(folder, name)
    if "../" not in name or "\0" in name or isinstance(folder, BucketPath):
        return posixpath.normpath(path)
    above, leaf = posixpath.split(path)
    return posixpath.join(_real_folder(above), leaf)


@functools.lru_cache(1000)
def _real_folder(path: str) -> str:
    """Returns a folder without links and "..", which behind a link is not the folder before it."""
    return posixpath.realpath(path)


def label_text(value: Any) -> str | None:
    """Returns a label of a table or a JSON file as text; None: it is no label.

    pandas writes 3 as 3.0 beside missing values.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return unicodedata.normalize("NFC", str(value).strip()) if type(value) in (str, int) else None


class _Table(NamedTuple):
    """The rows of a file."""

    columns: list[str]
    rows: list[dict[str, Any]]
    lines: list[int]  # of each row in the file, from 1


def _read_csv(path: Path) -> _Table:
    """Reads a CSV file, whose values may also be separated by tabs or semicolons."""
    rows, lines = [], []
    text = _read(path, "a CSV file")
    first = text.partition("\n")[0]
    others = [mark for mark in "\t;" if mark in first and "," not in first]
    separator = others[0] if others else "\t" if path.suffix == ".tsv" else ","
    held = io.StringIO(text, newline="")
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
    return _Table(columns, rows, lines)


def _read_jsonl(path: Path) -> _Table:
    """Reads a file with a JSON object in each line."""
    expected = "a JSON object in each line"
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(io.StringIO(_read(path, expected)), start=1):
        try:
            row = parse_json(line, _unique_keys)
        except ValueError as error:
            raise DataError(f"{path}: line {number}: {error}", expected, "fix it") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}: line {number} is not a JSON object", expected, "fix it")
        rows.append(row)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return _Table(columns, rows, list(range(1, len(rows) + 1)))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object; ValueError if a key comes twice, because one value would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} comes twice in an object")
    return found


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


def _split_cells(path: Path, table: _Table, image: str, label: str) -> list[str]:
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
        missing = sum(name not in row for row in table.rows) if is_split else 0
        if missing:
            log.warning(
                "%s: %d of %d lines have no %s and are in the split train",
                *(path, missing, len(table.rows), name),
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
