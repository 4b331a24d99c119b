"""Files of JSON lines that grow: one file on a local disk, numbered segments in a bucket.

An object in a bucket cannot be appended to. `metrics.jsonl` is therefore a series of objects there,
metrics-000001.jsonl, metrics-000002.jsonl, ... The last one is written again, whole, every few
seconds, until it is large; readers join them.
"""

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from vit_jax.storage.files import write_atomically
from vit_jax.storage.paths import is_bucket

log = logging.getLogger(__name__)

# A segment is closed when it has this many characters.
_SEGMENT_CHARACTERS = 1 << 18
# Seconds until a line is in the bucket. Stores limit how often one object may be written.
FLUSH_INTERVAL_S = 10.0


def read_log(path: Path) -> list[dict[str, Any]]:
    """Reads a file with one JSON object per line. Returns [] if it is missing.

    A line that is not a JSON object is left out. A crash can cut off the last line; for any other
    one a warning is logged.

    Args:
        path: name of the file; in a bucket its segments are read.

    Raises:
        OSError: it cannot be read.
    """
    files = [path] if path.is_file() else []
    lines = [line for file in files + segments(path) for line in _parse(file)]
    return [row for _, row in lines if row is not None]


def segments(path: Path) -> list[Path]:
    """Returns the segments of a log file, in ascending order.

    A folder on a local disk has them if it was copied from a bucket.
    """
    return sorted(path.parent.glob(f"{path.stem}-[0-9][0-9][0-9][0-9][0-9][0-9]{path.suffix}"))


def log_exists(path: Path) -> bool:
    """Whether there is a log file, or a segment of it."""
    return path.exists() or bool(segments(path))


def _parse(file: Path) -> list[tuple[bytes, dict[str, Any] | None]]:
    """Returns each line and its JSON object; None: it is not one."""
    lines = file.read_bytes().splitlines(keepends=True)
    found = [(line, _object(line)) for line in lines]
    for number, (_, row) in enumerate(found[:-1], start=1):
        if row is None:
            log.warning("line %d of %s is damaged and left out", number, file)
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

    Args:
        path: name of the file.
        keep: lines for which this is False are deleted first, e.g. those of steps that a resumed
            run makes again.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, keep: Callable[[dict[str, Any]], bool] = lambda row: True):
        _bring_together(path)
        for file in [path, *segments(path)]:
            if file.is_file():
                _keep_lines(file, keep)
        self._file: TextIO | None = None
        self._segments: _Segments | None = None
        if is_bucket(path):
            self._segments = _Segments(path)
        else:
            self._file = path.open("a")

    def write(self, row: dict[str, Any]) -> None:
        """Appends a line.

        Raises:
            OSError: this or an earlier line could not be written.
        """
        line = json.dumps(row) + "\n"
        if self._segments is not None:
            self._segments.add(line)
        elif self._file is not None:
            self._file.write(line)
            self._file.flush()

    def flush(self) -> None:
        """Returns when all lines are where other hosts can read them.

        Raises:
            OSError: they could not be written.
        """
        if self._segments is not None:
            self._segments.flush()

    def close(self) -> None:
        """Flushes and closes the file.

        Raises:
            OSError: lines could not be written.
        """
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
        write_atomically(path, b"".join(file.read_bytes() for file in files))
        for file in there:
            file.unlink()


def _segment(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number:06}{path.suffix}")


def _keep_lines(file: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Rewrites a file without the lines that are not to be kept, and without a cut-off last one."""
    found = _parse(file)
    if found and found[-1][1] is None:
        found.pop()
    new = b"".join(line for line, row in found if row is None or keep(row))
    new += b"" if new.endswith(b"\n") or not new else b"\n"
    if new != file.read_bytes():
        write_atomically(file, new)
