"""Progress of long operations: a bar on a terminal, otherwise a log line every 30 seconds."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_LINE_S = 10.0
_LINE_EVERY_S = 30.0


class ProgressBar:
    """A context manager that shows progress. An earlier run finished `done` of the items."""

    def __init__(self, description: str, total: int, done: int = 0):
        self._description, self._total, self._first, self._done = description, total, done, done
        self._begin = time.monotonic()
        self._due = self._begin + _FIRST_LINE_S
        self._bar: Any = None

    def __enter__(self) -> "ProgressBar":
        if sys.stderr.isatty():
            self._bar = _rich_bar()
            self._bar.start()
            self._task = self._bar.add_task(
                self._description, total=self._total, completed=self._done
            )
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int = 1) -> None:
        """Records that `count` more items are done."""
        self._done += count
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
            return
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _LINE_EVERY_S
            speed = (self._done - self._first) / (now - self._begin)
            left = (self._total - self._done) / max(speed, 1e-9)
            log.info("%s: %d of %d, %.0f s left", self._description, self._done, self._total, left)


def track(items: Iterable[T], description: str, total: int) -> Iterator[T]:
    """Yields the items and shows the progress."""
    with ProgressBar(description, total) as progress:
        for item in items:
            yield item
            progress.advance()


def _rich_bar() -> Any:
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
