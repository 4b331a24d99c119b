"""Files of JSON lines that grow: one file on a local disk, numbered segments in a bucket.

An object in a bucket cannot be appended to. `metrics.jsonl` is therefore a series of objects there,
metrics-000001.jsonl, metrics-000002.jsonl, ... The last one is written again, whole, every few
seconds, until it is large; readers join them.

A crash can cut off the last line, which the next writer deletes. Any other line that cannot be read
is damaged: it stays, and readers leave it out with a warning.
"""

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from vit_jax.errors import first_few
from vit_jax.storage.files import json_text, write_atomically
from vit_jax.storage.paths import is_bucket

log = logging.getLogger(__name__)

# A segment is closed when it has this many characters.
_SEGMENT_CHARACTERS = 1 << 18
# Seconds until a line is in the bucket. Stores limit how often one object may be written.
FLUSH_INTERVAL_S = 10.0


def read_log(path: Path, is_valid: Callable[[Any], bool] = bool) -> list[dict[str, Any]]:
    """Reads a file, or its segments in a bucket, with one JSON object per line.

    [] if it is missing.

    Lines for which `is_valid` is False are damaged. Damaged lines are left out with a warning; a
    last line that a crash cut off is left out.
    """
    rows: list[dict[str, Any]] = []
    for file in _files(path):
        found = _parse(file.read_bytes(), is_valid)
        damaged = [str(number) for number, _, row in found if row is None]
        if damaged:
            log.warning("%s: lines left out, not valid: %s", file, first_few(damaged, 5))
        rows += [row for _, _, row in found if row is not None]
    return rows


def read_log_end(
    path: Path, num_bytes: int, is_valid: Callable[[Any], bool] = bool
) -> list[dict[str, Any]]:
    """Returns the valid lines among the last bytes of a log file, or of its last segment."""
    for file in _files(path)[-1:]:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - num_bytes))
            rows = [row for _, _, row in _parse(opened.read(), is_valid)]
            return [row for row in rows if row is not None]
    return []


def segments(path: Path) -> list[Path]:
    """Returns the segments of a log file, ascending. On a disk they were copied from a bucket."""
    return sorted(path.parent.glob(f"{path.stem}-[0-9][0-9][0-9][0-9][0-9][0-9]{path.suffix}"))


def log_exists(path: Path) -> bool:
    """Whether there is a log file, or a segment of it."""
    return path.exists() or bool(segments(path))


def _files(path: Path) -> list[Path]:
    return [file for file in (path, *segments(path)) if file.is_file()]


def _parse(
    content: bytes, is_valid: Callable[[Any], bool]
) -> list[tuple[int, bytes, dict[str, Any] | None]]:
    """Returns number, line and JSON object of each line; None: it is damaged.

    Empty lines and a last line that is cut off are left out.
    """
    found = []
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        row = _object(line)
        row = row if row is not None and is_valid(row) else None
        if row is not None or (line.endswith((b"\n", b"\r")) and line.strip()):
            found.append((number, line, row))
    return found


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # Neither UTF-8 nor JSON, or nested too deeply.
        return None
    return row if isinstance(row, dict) else None


class LogFile:
    """Appends JSON lines to a log file.

    On a local disk each line is written at once. In a bucket lines are written in the background
    within `FLUSH_INTERVAL_S`; `flush` writes them now.

    Lines for which `keep` is False are deleted first, e.g. those of steps that a resumed run makes
    again. Damaged lines (not `is_valid`) stay.
    """

    def __init__(
        self,
        path: Path,
        keep: Callable[[Any], bool] = lambda row: True,
        is_valid: Callable[[Any], bool] = bool,
    ):
        _bring_together(path)
        _clean(path, keep, is_valid)
        self._file: TextIO | None = None
        self._segments: _Segments | None = None
        if is_bucket(path):
            self._segments = _Segments(path)
        else:
            self._file = path.open("a", encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        """Appends a line. An OSError may be that of an earlier line."""
        line = json_text(row, what="a line of a log") + "\n"
        if self._segments is not None:
            self._segments.add(line)
        elif self._file is not None:
            self._file.write(line)
            self._file.flush()

    def flush(self) -> None:
        """Returns when all lines are where other hosts can read them."""
        if self._segments is not None:
            self._segments.flush()

    def close(self) -> None:
        if self._segments is not None:
            self._segments.close()
        if self._file is not None:
            self._file.close()


class _Segments:
    """The segments of a log file in a bucket; a thread writes the last one."""

    def __init__(self, path: Path):
        self._path = path
        there = segments(path)
        self._number = int(there[-1].stem.rpartition("-")[2]) + 1 if there else 1
        self._text, self._written = "", 0
        self._error: OSError | None = None
        # `_lock` is held for moments, so that `add` never waits for the store.
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._flush_often, name="log file", daemon=True)
        self._thread.start()

    def add(self, line: str) -> None:
        with self._lock:
            error, self._error = self._error, None
            self._text += line
        if error is not None:
            raise error

    def flush(self) -> None:
        with self._writing:
            with self._lock:
                text = self._text
            if self._written == len(text):
                return
            write_atomically(_segment(self._path, self._number), text)
            self._written, self._error = len(text), None
            if self._written >= _SEGMENT_CHARACTERS:
                with self._lock:
                    self._text = self._text[self._written :]
                self._number, self._written = self._number + 1, 0

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self.flush()

    def _flush_often(self) -> None:
        while not self._closed.wait(FLUSH_INTERVAL_S):
            try:
                self.flush()
            except OSError as error:
                self._error = error


def _bring_together(path: Path) -> None:
    """Gives the file of a folder that was copied to or from a bucket the form of the new place."""
    if is_bucket(path):
        if path.is_file():
            write_atomically(_segment(path, 0), path.read_bytes())
            path.unlink()
        return
    there = segments(path)
    if there:
        files = [path, *there] if path.is_file() else there
        write_atomically(path, b"".join(_with_newline(file.read_bytes()) for file in files))
        for file in there:
            file.unlink()


def _segment(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number:06}{path.suffix}")


def _clean(path: Path, keep: Callable[[Any], bool], is_valid: Callable[[Any], bool]) -> None:
    """Rewrites a log file without the lines that are not to be kept."""
    for file in _files(path):
        old = file.read_bytes()
        kept = [line for _, line, row in _parse(old, is_valid) if row is None or keep(row)]
        new = _with_newline(b"".join(kept))
        if new != old:
            write_atomically(file, new)


def _with_newline(content: bytes) -> bytes:
    """Returns the content with a newline at its end, unless it is empty."""
    return content if not content or content.endswith(b"\n") else content + b"\n"
