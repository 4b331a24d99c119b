"""What a sweep notes on disk: in the folder of a job, and what is read back from it.

A job's folder is a run folder with, beside what the run itself writes, job.json (what was asked),
log.txt (what it printed) and .sweep/ (who runs it: a lock, attempt.json, submitit's files). All is
judged from these files, so that any launcher can go on with what another has begun.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from vit_jax.errors import SweepError
from vit_jax.files import write_atomically

# Exit codes of a run that wants to be started again: stopped and saved, or a host was lost; and
# those of a process that was asked to stop before it could answer.
RUN_AGAIN = (75, 76, -signal.SIGTERM, -signal.SIGINT)
_LOG_END = 4096


@dataclasses.dataclass(frozen=True)
class Attempt:
    """The latest time that a job was started.

    Attributes:
        number: from 1.
        executor: that started it.
        id: of the job there: a process or a SLURM job.
        host: where it runs.
        pid: of the run's process.
        slot: which share of the host's devices it has.
        started: Unix seconds.
        ended: Unix seconds; None: it runs, or ended without a word.
        exit_code: negative for a signal.
        failure: why it is not to be started again.
    """

    number: int
    executor: str
    id: str
    host: str
    pid: int
    slot: int
    started: float
    ended: float | None = None
    exit_code: int | None = None
    failure: str | None = None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a file atomically: a reader sees the old one or the whole new one.

    Raises:
        SweepError: it cannot be written.
    """
    try:
        write_atomically(path, json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise SweepError(
            f"cannot write {path}: {error.strerror}", "a writable folder with free space",
            "choose another --workdir, or free some space",
        ) from None  # fmt: skip


def read_json(path: Path) -> dict[str, Any] | None:
    """Returns the content of a file; None where there is none, or not (yet) a whole one."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def attempt_file(folder: Path) -> Path:
    """Returns where the latest attempt of a job is noted."""
    return folder / ".sweep" / "attempt.json"


def read_attempt(folder: Path) -> Attempt | None:
    """Returns the latest attempt of a job, None where there was none."""
    content = read_json(attempt_file(folder))
    return None if content is None else Attempt(**content)


def write_attempt(folder: Path, attempt: Attempt) -> None:
    """Notes the latest attempt of a job."""
    write_json(attempt_file(folder), dataclasses.asdict(attempt))


def open_lock(path: Path) -> TextIO | None:
    """Takes a lock that ends with the last process that holds it; None: another one has it.

    Args:
        path: of the lock file; made when missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError:
        pass  # Some network file systems have no locks; the run folder's own says so.
    return file


def job_lock(folder: Path) -> Path:
    """Returns the lock that is held as long as a job runs."""
    return folder / ".sweep" / "lock"


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock."""
    try:
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def log_file(folder: Path) -> Path:
    """Returns where a job's output goes."""
    return folder / "log.txt"


def log_end(folder: Path, lines: int = 12) -> list[str]:
    """Returns the last lines of what a job printed (or of submitit's log, where it never began)."""
    path = log_file(folder)
    if not path.is_file():
        logs = sorted((folder / ".sweep" / "submitit").glob("*_log.err"), key=_changed)
        if not logs:
            return []
        path = logs[-1]
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _LOG_END))
        text = file.read().decode(errors="replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]


def _changed(path: Path) -> float:
    return path.stat().st_mtime


class Progress:
    """Follows a run's metrics.jsonl, reading each line once."""

    def __init__(self, folder: Path):
        self._path = folder / "metrics.jsonl"
        self._read, self._file_number = 0, -1
        self.step = 0
        self.scores: dict[str, float] = {}

    def update(self) -> None:
        """Reads what was written since; all of it where a resumed run has cut the file."""
        try:
            found = self._path.stat()
        except OSError:
            return
        if found.st_ino != self._file_number or found.st_size < self._read:
            self._read, self._file_number = 0, found.st_ino
        if found.st_size == self._read:
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                self.step = int(row.get("step", self.step))
                self.scores |= {k: v for k, v in row.items() if k.endswith("accuracy_top1")}
