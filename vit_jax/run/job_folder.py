"""The files that a sweep keeps in a job's folder.

A job's folder is a run folder. Beside the files of the run it holds job.json (what to run), log.txt
(what the run printed) and .sweep/ (attempt.json: the latest start; a lock; submitit's files). These
files are the only record of a job, so another launcher can continue from them.

If the folder is in a bucket, submitit's files and the log of a running job are on the local disk,
in the user's cache folder. The log is added to log.txt when the job ends.
"""

import contextlib
import dataclasses
import hashlib
import math
import os
import platform
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from vit_jax.errors import EXIT_STOPPED, DataError, HostsError, OtherDataError, UserError
from vit_jax.run.metrics import read_last_metrics
from vit_jax.storage.files import append_text, read_json, write_json
from vit_jax.storage.lock import is_locked
from vit_jax.storage.paths import cache_dir, is_bucket

# A job that ends with one of these exit codes is started again: it was stopped and saved, it lost
# another host, or a signal ended it before it could save.
_RESTART_CODES = (EXIT_STOPPED, HostsError.exit_code, -signal.SIGTERM, -signal.SIGINT)
ERROR_FILE = "VIT_JAX_ERROR_FILE"
"""Environment variable that tells the process of a job its `error_file`."""
_LAST_BYTES = 50_000
# Jobs whose files are read at the same time: a bucket takes a moment for each.
_READERS = 32

Job = TypeVar("Job")
Found = TypeVar("Found")


@dataclasses.dataclass(frozen=True)
class Attempt:
    """The latest start of a job, as .sweep/attempt.json holds it."""

    number: int = 0  # from 1; 0: not known
    executor: str = ""  # name of the executor that started the job
    id: str = ""  # of the process or SLURM job
    host: str = ""
    pid: int = 0  # of the run's process
    slot: int = 0  # index of the host's device share that it uses
    started: float = 0.0  # Unix seconds
    ended: float | None = None  # Unix seconds; None: it is running, or its host died
    exit_code: int | None = None  # negative for a signal
    failure: str | None = None  # why not to start it again, if the exit code does not show it
    data_error: str | None = None  # error line of a run whose data are wrong, or a `data.` key

    @classmethod
    def from_mapping(cls, content: Mapping[str, Any]) -> "Attempt":
        """Returns the attempt of a file, without unknown keys. A wrong type is a ValueError."""
        known = {field.name for field in dataclasses.fields(cls)}
        found = {key: value for key, value in content.items() if key in known}
        return pydantic.TypeAdapter(cls).validate_python(found)

    @property
    def why_failed(self) -> str | None:
        """Why the job must not be started again; None: it may be started again."""
        code = self.exit_code
        if self.failure is not None:
            return self.failure
        if self.ended is None or code is None or code in _RESTART_CODES:
            return None
        if code == 0:
            return "ended without a result.json"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    @property
    def may_be_running(self) -> bool:
        """Whether its process is alive; one on another host is, until the file says it ended."""
        if self.ended is not None or self.host != platform.node():
            return self.ended is None
        try:
            os.kill(self.pid, 0)
        except OSError:
            return False
        return True


def read_all(read: Callable[[Job], Found], jobs: Sequence[Job]) -> list[Found]:
    """Returns what a function reads of each of several jobs, many at the same time."""
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(read, jobs))


def read_optional_json(path: Path) -> dict[str, Any] | None:
    """Returns the content of a JSON file; None if it is missing or damaged."""
    try:
        return read_json(path)
    except UserError:
        return None


def read_attempt(folder: Path) -> Attempt | None:
    """Returns the latest attempt; None: the job was never started, or the file is damaged."""
    content = read_optional_json(folder / ".sweep" / "attempt.json")
    try:
        return None if content is None else Attempt.from_mapping(content)
    except ValueError:
        return None


def write_attempt(folder: Path, attempt: Attempt) -> None:
    """Records the latest attempt."""
    write_json(folder / ".sweep" / "attempt.json", dataclasses.asdict(attempt))


def error_file(folder: Path) -> Path:
    """Returns the file where the run of a job notes an error; see `note_data_error`."""
    return local_folder(folder) / ".sweep" / "error.json"


def note_data_error(error: UserError) -> None:
    """Notes for the sweep that started this process that its data, or a `data.` key, are wrong."""
    path = os.environ.get(ERROR_FILE)
    is_own = isinstance(error, DataError) and not isinstance(error, OtherDataError)
    if path and (is_own or (error.key or "").startswith("data.")):
        with contextlib.suppress(OSError):
            write_json(Path(path), {"error": str(error)})


def read_data_error(folder: Path) -> str | None:
    """Returns what a job's run has noted; None: nothing."""
    return (read_optional_json(error_file(folder)) or {}).get("error")


def clear_failure(folder: Path) -> None:
    """Records a failed job as stopped, so that it is started again."""
    attempt = read_attempt(folder)
    if attempt is not None and attempt.why_failed is not None:
        write_attempt(folder, dataclasses.replace(attempt, failure=None, exit_code=EXIT_STOPPED))


def local_folder(folder: Path) -> Path:
    """Returns the folder of a job's files that must be on a disk: its own, unless in a bucket."""
    if not is_bucket(folder):
        return folder
    return cache_dir() / "jobs" / hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def submitit_folder(folder: Path) -> Path:
    """Returns the folder of submitit's files of a job."""
    return local_folder(folder) / ".sweep" / "submitit"


def keep_log(folder: Path, name: str) -> None:
    """Adds the log of a job that has ended to the one in the bucket.

    If it cannot be written (OSError), the log stays on the local disk.
    """
    log = local_folder(folder) / name
    if log != folder / name and log.exists():
        append_text(folder / name, log.read_text(encoding="utf-8", errors="replace"))
        log.unlink()


def job_lock(folder: Path) -> Path:
    """Returns the lock that `JobProcess` holds while it runs."""
    return folder / ".sweep" / "lock"


def run_lock(folder: Path) -> Path:
    """Returns the lock that a run holds on its folder."""
    return folder / ".lock"


def is_running(folder: Path) -> bool:
    """Whether the job runs on this host, even if its launcher or its `JobProcess` was killed."""
    return is_locked(job_lock(folder)) or is_locked(run_lock(folder))


def last_log_lines(folder: Path, count: int = 12) -> list[str]:
    """Returns the last lines of a job's log, or of submitit's log if the run never began."""
    text = _log(folder)
    if not text:
        logs = submitit_folder(folder).glob("*_log.err")
        text = _tail(max(logs, key=lambda log: log.stat().st_mtime, default=folder / "log.txt"))
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def read_progress(folder: Path) -> tuple[int, int | None, dict[str, float]]:
    """Returns the last logged step, the number of steps if known, and the latest accuracies."""
    step, scores = 0, {}
    rows: list[dict[str, Any]] = []
    with contextlib.suppress(OSError):
        rows = read_last_metrics(folder / "metrics.jsonl", _LAST_BYTES)
    for row in rows:
        step = row["step"]
        scores |= {key: value for key, value in row.items() if key.endswith("accuracy_top1")}
    totals = re.findall(r"(?m)^step [\d,]+/([\d,]+)", _log(folder))
    return step, int(totals[-1].replace(",", "")) if totals else None, scores


def edges_of_grid(chosen: str, candidates: Sequence[str]) -> list[str]:
    """Returns which values of a candidate are the smallest or largest that were tried.

    >>> edges_of_grid("rate=0.1,depth=2", ["rate=0.1,depth=2", "rate=0.01,depth=2"])
    ['rate=0.1 is the largest of 2']
    """
    tried: dict[str, set[float]] = {}
    for name in candidates:
        for key, text in _numbers_in(name).items():
            tried.setdefault(key, set()).add(float(text))
    found = []
    for key, text in _numbers_in(chosen).items():
        value, values = float(text), tried.get(key, set())
        # Nothing is below zero, such as no dropout.
        if len(values) > 1 and value and value in (min(values), max(values)):
            which = "smallest" if value == min(values) else "largest"
            found.append(f"{key}={text} is the {which} of {len(values)}")
    return found


def _numbers_in(name: str) -> dict[str, str]:
    """Returns key -> value of the parts "key=value" of a candidate's name that are numbers."""
    pairs = [part.partition("=") for part in name.rpartition("/")[2].split(",")]
    found = {}
    for key, equals, value in pairs:
        with contextlib.suppress(ValueError):
            if equals and key != "seed" and math.isfinite(float(value)):
                found[key] = value
    return found


def _log(folder: Path) -> str:
    """Returns the end of the log of a job's latest attempt."""
    return _tail(local_folder(folder) / "log.txt") or _tail(folder / "log.txt")


def _tail(path: Path) -> str:
    """Returns the end of a text file; "" if there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LAST_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
