"""The files that a sweep keeps in a job's folder.

A job's folder is a run folder. Beside the files of the run it holds job.json (what to run), log.txt
(what the run printed) and .sweep/ (attempt.json: the latest start; a lock; submitit's files). These
files are the only record of a job, so another launcher can continue from them.
"""

import dataclasses
import json
import platform
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from vit_jax.config.run import Config
from vit_jax.errors import EXIT_STOPPED, HostsError, SweepError, UserError, first_few
from vit_jax.files import is_locked, read_json, write_json
from vit_jax.schema import differences
from vit_jax.sweep.plan import PlannedJob

# A job that ends with one of these exit codes is started again: it was stopped and saved, it lost
# another host, or a signal ended it before it could save.
RESTART_CODES = (EXIT_STOPPED, HostsError.exit_code, -signal.SIGTERM, -signal.SIGINT)
_RUN_FILES = ("result.json", "metrics.jsonl", "checkpoints")


@dataclasses.dataclass(frozen=True)
class Attempt:
    """The latest start of a job.

    Attributes:
        number: from 1.
        executor: name of the executor that started the job.
        id: of the process or SLURM job.
        host: where it runs.
        pid: of the run's process.
        slot: index of the host's device share that it uses.
        started: Unix seconds.
        ended: Unix seconds; None: it is running, or its host died.
        exit_code: negative for a signal.
        failure: why it must not be started again, if the exit code does not show it.
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

    @property
    def why_failed(self) -> str | None:
        """Why the job must not be started again; None: it may be started again."""
        code = self.exit_code
        if self.failure is not None:
            return self.failure
        if self.ended is None or code is None or code in RESTART_CODES:
            return None
        if code == 0:
            return "ended without a result.json"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def read_optional_json(path: Path) -> dict[str, Any] | None:
    """Returns the content of a JSON file; None if it is missing or damaged."""
    try:
        return read_json(path)
    except UserError:
        return None


def write_sweep_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file atomically.

    Raises:
        SweepError: it cannot be written.
    """
    try:
        write_json(path, content)
    except OSError as error:
        raise SweepError(
            f"cannot write {path}: {error.strerror}",
            "a writable folder with free space",
            "choose another --workdir, or free some space",
        ) from None


def read_attempt(folder: Path) -> Attempt | None:
    """Returns the latest attempt; None: the job was never started."""
    content = read_optional_json(folder / ".sweep" / "attempt.json")
    return None if content is None else Attempt(**content)


def write_attempt(folder: Path, attempt: Attempt) -> None:
    """Records the latest attempt."""
    write_sweep_json(folder / ".sweep" / "attempt.json", dataclasses.asdict(attempt))


def clear_failure(folder: Path) -> None:
    """Records a failed job as stopped, so that it is started again."""
    attempt = read_attempt(folder)
    if attempt is not None and attempt.why_failed is not None:
        write_attempt(folder, dataclasses.replace(attempt, failure=None, exit_code=EXIT_STOPPED))


def job_lock(folder: Path) -> Path:
    """Returns the lock that `JobProcess` holds while it runs."""
    return folder / ".sweep" / "lock"


def is_running(folder: Path) -> bool:
    """Whether the job runs on this host, even if its launcher was killed."""
    return (job_lock(folder).exists() and is_locked(job_lock(folder))) or is_run_alive(folder)


def is_run_alive(folder: Path) -> bool:
    """Whether the run's process of the latest attempt is alive on this host."""
    attempt = read_attempt(folder)
    if attempt is None or attempt.ended is not None or attempt.host != platform.node():
        return False
    try:
        words = psutil.Process(attempt.pid).cmdline()
    except psutil.Error:
        return False
    # After the host restarts, another process may have this id.
    return any(str(folder) in word for word in words)


def log_file(folder: Path) -> Path:
    """Returns the file that receives what the run prints."""
    return folder / "log.txt"


def last_log_lines(folder: Path, count: int = 12) -> list[str]:
    """Returns the last lines of a job's log, or of submitit's log if the run never began."""
    path = log_file(folder)
    if not path.is_file():
        logs = (folder / ".sweep" / "submitit").glob("*_log.err")
        path = max(logs, key=lambda log: log.stat().st_mtime, default=path)
    return [line for line in _tail(path, 4096) if line.strip()][-count:]


def read_progress(folder: Path) -> tuple[int, int | None, dict[str, float]]:
    """Returns the last logged step, the number of steps if known, and the latest accuracies."""
    step, scores = 0, {}
    for line in _tail(folder / "metrics.jsonl", 50_000):
        try:
            row = json.loads(line)
        except ValueError:  # Cut off.
            continue
        step = int(row.get("step", step))
        scores |= {key: value for key, value in row.items() if key.endswith("accuracy_top1")}
    totals = re.findall(r"(?m)^step [\d,]+/([\d,]+)", "\n".join(_tail(log_file(folder), 4096)))
    return step, int(totals[-1].replace(",", "")) if totals else None, scores


def _tail(path: Path, size: int) -> list[str]:
    """Returns the lines in the last bytes of a text file; none if there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return [line.rstrip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError:
        return []


def changed_settings(job: PlannedJob) -> str | None:
    """Returns how a job's settings differ from those it was started with.

    None: they are the same, or the job has not started. Folders of earlier versions record only the
    overrides, not the settings of the config file.
    """
    if not any((job.folder / name).exists() for name in _RUN_FILES):
        return None
    before, now = read_optional_json(job.folder / "job.json") or {}, job.record("")
    if job.config is not None and before.get("settings"):
        try:
            rows = differences(Config.from_mapping(before["settings"]), job.config)
        except UserError:  # Another version of the program has written them.
            rows = []
    else:
        keys = [key for key in ("command", "config", "overrides", "arguments") if key in before]
        rows = [(key, before[key], now[key]) for key in keys if before[key] != now[key]]
    return first_few([f"{key}: {a!r} before, {b!r} now" for key, a, b in rows], 3, "; ") or None
