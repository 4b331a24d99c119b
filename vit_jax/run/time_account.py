"""Accounts for every second of a run, from its first start to its end, over all its sessions.

At any moment one part of PARTS is the current one, so the parts of a run add up to its wall time:

    with account.part("compile"):
        ...

The account is kept in `sessions.jsonl`, a file of its own, because a resumed run deletes the last
lines of metrics.jsonl. A thread appends a line every second at first, and less often in a long
session: the lines lie 1/200 of the session's time apart. So a `kill -9` loses at most this part of
the account, which then counts as idle. A line holds the figures of the whole run so far.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from vit_jax.errors import RunFolderError, UserError
from vit_jax.storage.log_file import LogFile, read_log
from vit_jax.storage.private import hide_private

FILE = "sessions.jsonl"

# Part of a run's time -> what it is.
PARTS = {
    "start": "imports, opening data, initializing, closing",
    "compile": "compiling the training step",
    "restore": "reading a checkpoint",
    "steps": "training steps that count",
    "lost": "work that was repeated after a restart",
    "data": "waiting for data while the device is idle",
    "evaluation": "evaluation",
    "saving": "training blocked by saving",
    "idle": "between two sessions",
}
# What is done again for the steps after the checkpoint that a session resumes from.
_REPEATED = ("steps", "data", "evaluation")
_LONGEST_WHY = 500


class TimeAccount:
    """The account of a run's time, continued by each of its sessions.

    `began_s` is the start of this session's process, in unix seconds; None: now. `step` counts
    finished steps.
    """

    def __init__(self, began_s: float | None = None):
        now = time.time()
        self._began = now if began_s is None else min(began_s, now)
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._seconds["start"] = now - self._began
        self._part, self._since = "start", time.perf_counter()
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._log: LogFile | None = None
        self._thread: threading.Thread | None = None
        self._session = 1
        self.step = 0
        self.total_steps: int | None = None

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts the time inside the block as one of PARTS.

        Blocks may be nested; the inner one counts.
        """
        outer = self._switch(name)
        try:
            yield
        finally:
            self._switch(outer)

    def move(self, seconds: float, part: str) -> None:
        """Moves seconds that have just passed from the current part to another one."""
        with self._lock:
            self._seconds[self._part] -= seconds
            self._seconds[part] += seconds

    def seconds(self) -> dict[str, float]:
        """Returns part -> seconds of the run so far. They add up to its wall time."""
        with self._lock:
            self._count()
            return {part: round(seconds, 3) for part, seconds in self._seconds.items()}

    def log(self) -> None:
        """Logs the account now, without waiting for the next interval."""
        self._write("running")

    def open(self, folder: Path) -> None:
        """Continues the account in a run folder, and starts to log. Only the first call counts."""
        if self._log is not None:
            return
        path = folder / FILE
        try:
            rows = read_sessions(folder)
            self._log = LogFile(path, is_valid=_is_line)
        except OSError as error:
            raise RunFolderError(
                f"cannot write {path}: {error.strerror}",
                "a writable run folder with free space",
                "free some space or choose another --workdir",
            ) from None
        if rows:
            self._continue(rows)
        self._write("running")
        self._thread = threading.Thread(target=self._keep_writing, name="sessions", daemon=True)
        self._thread.start()

    def resume(self, step: int, saved: Mapping[str, float]) -> None:
        """Counts the work after a checkpoint as lost, because it is done again.

        `saved` is `seconds` when it was saved, or empty. Step 0: the run starts again.
        """
        with self._lock:
            self._count()
            if step != self.step:
                for part in _REPEATED:
                    extra = self._seconds[part] - saved.get(part, 0.0)
                    self._seconds[part] -= extra
                    # The last lines before a crash may be missing. They are in `idle` until here.
                    self._seconds["lost" if extra > 0 else "idle"] += extra
        self.step = step

    def close(self, event: str, error: BaseException | None = None) -> None:
        """Writes the last line: "finished", "stopped" (the last step is saved) or "failed"."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._write(event, "" if error is None else _line(error))
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.close()

    def _switch(self, part: str) -> str:
        with self._lock:
            self._count()
            before, self._part = self._part, part
        return before

    def _count(self) -> None:
        now = time.perf_counter()
        self._seconds[self._part] += now - self._since
        self._since = now

    def _continue(self, rows: list[dict[str, Any]]) -> None:
        """Adds the figures of the earlier sessions."""
        last = rows[-1]
        with self._lock:
            for part, seconds in last["seconds"].items():
                self._seconds[part] += seconds
            self._seconds["idle"] += max(self._began - last["time"], 0.0)
        self._session, self.step = last["session"] + 1, last["step"]

    def _keep_writing(self) -> None:
        begin = time.monotonic()
        while not self._ended.wait(max(1.0, (time.monotonic() - begin) / 200)):
            self._write("running")

    def _write(self, event: str, why: str = "") -> None:
        """Appends a line. A full disk ends the run at its next save, not here."""
        if self._log is None:
            return
        with self._lock, contextlib.suppress(OSError):
            self._log.write(
                {
                    "session": self._session,
                    "event": event,
                    "began": self._began,
                    "time": time.time(),
                    "step": self.step,
                    "total_steps": self.total_steps,
                    "seconds": self.seconds(),
                    **({"why": why} if why else {}),
                }
            )


def process_start_s() -> float:
    """Returns when this process was started, in unix seconds."""
    created = psutil.Process().create_time()
    if not psutil.LINUX:
        return created
    # On Linux, psutil adds the age of the machine to a boot time in whole seconds.
    since_boot = created - psutil.boot_time()
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of a run's sessions.jsonl; [] if it has none.

    A line has "session" (from 1), "event" ("running", "stopped", "failed", "finished"), "began" and
    "time" in unix seconds, "step", "total_steps" (null: not known), "seconds", the seconds of the
    whole run by part, and, if the session failed, "why".
    """
    return read_log(folder / FILE, _is_line)


def why_failed(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns why the latest of `read_sessions` failed, "" if not known; None: it did not fail."""
    return rows[-1].get("why", "") if rows and rows[-1]["event"] == "failed" else None


def _line(error: BaseException) -> str:
    """Returns an error as one line that may be shown to others."""
    text = (str(error).splitlines() or [""])[0][:_LONGEST_WHY]
    name = "" if isinstance(error, UserError) else type(error).__name__
    return hide_private(": ".join(filter(None, [name, text])))


def _is_line(row: dict[str, Any]) -> bool:
    """Whether a JSON object is a line of sessions.jsonl."""
    seconds = row.get("seconds")
    return (
        all(type(row.get(name)) is int for name in ("session", "step"))
        and all(isinstance(row.get(name), (int, float)) for name in ("began", "time"))
        and isinstance(row.get("event"), str)
        and isinstance(row.get("why", ""), str)
        and isinstance(seconds, dict)
        and all(part in PARTS and isinstance(s, (int, float)) for part, s in seconds.items())
    )


def duration_text(seconds: float) -> str:
    """Formats a duration with up to three digits.

    >>> duration_text(0.5), duration_text(90), duration_text(5400), duration_text(4e6)
    ('0.5 s', '90 s', '90 min', '1,111 h')
    """
    unit, name = (3600, "h") if seconds >= 7200 else (60, "min") if seconds >= 120 else (1, "s")
    value = seconds / unit
    return f"{value:,.0f} {name}" if value >= 100 else f"{value:.3g} {name}"


def ago_text(seconds: float) -> str:
    """Formats how long ago something was, in whole units.

    >>> ago_text(0.4), ago_text(121), ago_text(9000)
    ('0 s ago', '2 min ago', '2 h ago')
    """
    unit, name = (3600, "h") if seconds >= 7200 else (60, "min") if seconds >= 120 else (1, "s")
    return f"{seconds // unit:,.0f} {name} ago"


def clock_text(seconds: float) -> str:
    """Formats a duration as hours, minutes and seconds.

    >>> clock_text(59.9), clock_text(90_000)
    ('0:00:59', '25:00:00')
    """
    whole = int(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
