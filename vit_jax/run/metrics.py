"""Metrics of a run: metrics.jsonl, examples-HOST.jsonl, TensorBoard and Weights & Biases."""

import contextlib
import hashlib
import io
import logging
import math
import os
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from vit_jax.config.run import LoggingConfig
from vit_jax.errors import ConfigError, RunFolderError
from vit_jax.rng import splitmix64
from vit_jax.storage.log_file import LogFile, read_log, read_log_end
from vit_jax.storage.paths import cache_dir, is_bucket

log = logging.getLogger(__name__)

# Seconds between writes of an event file in a bucket, which grows and is written whole.
_EVENTS_INTERVAL_S = 60.0


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the valid lines of a metrics.jsonl, with NaN for null, which was not finite."""
    return _with_nan(read_log(path, _is_row))


def read_last_metrics(path: Path, num_bytes: int) -> list[dict[str, Any]]:
    """Returns the lines among the last bytes of a metrics.jsonl, see `read_metrics`."""
    return _with_nan(read_log_end(path, num_bytes, _is_row))


def _with_nan(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: math.nan if v is None else v for k, v in row.items()} for row in rows]


def _is_row(row: dict[str, Any]) -> bool:
    """Whether a JSON object is a line of metrics.jsonl: a step, and numbers."""
    return _has_step(row) and all(v is None or isinstance(v, (int, float)) for v in row.values())


def _has_step(row: dict[str, Any]) -> bool:
    return type(row.get("step")) is int


def split_of(metric: str) -> str | None:
    """Returns the name in evaluation.splits of the split that a metric is measured on, or None.

    >>> split_of("eval/dev/accuracy_top1")
    'dev'
    >>> split_of("knn/pets/accuracy_top1")
    """
    parts = metric.split("/")
    return parts[1] if parts[0] == "eval" and len(parts) > 2 else None


class MetricsWriter:
    """Writes the scalars of a run.

    A resumed run writes the lines of steps after `start_step` again, so they are deleted first.
    Only the first host writes, so others are not `enabled`.
    """

    def __init__(
        self,
        workdir: Path,
        config: LoggingConfig,
        *,
        start_step: int,
        run_config: dict[str, Any],
        enabled: bool = True,
    ):
        self._path = workdir / "metrics.jsonl"
        self._log: LogFile | None = None
        self._tensorboard: _EventFile | None = None
        self._wandb: Any = None
        self._newest = start_step
        if not enabled:
            return
        wandb = None if config.wandb_project is None else _import_wandb(config.wandb_project)
        with _writing(self._path):
            if config.tensorboard:
                self._tensorboard = _EventFile(workdir / "tensorboard", start_step)
            self._log = LogFile(self._path, lambda row: row["step"] <= start_step, _is_row)
        if wandb is not None:
            # The id depends on the folder, so that a resumed run continues the same W&B run.
            if is_bucket(workdir):
                place = hashlib.sha256(str(workdir).encode()).hexdigest()[:12]
                folder = cache_dir() / "wandb"
                folder.mkdir(parents=True, exist_ok=True)
            else:
                place, folder = f"{workdir.stat().st_ino:x}", workdir
            self._wandb = wandb.init(
                project=config.wandb_project,
                id=f"{workdir.name}-{place}",
                dir=str(folder),
                config=run_config,
                resume="allow",
            )

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            with _writing(self._path):  # Closing writes the rest of the buffer.
                if self._log is not None:
                    self._log.close()
                if self._tensorboard is not None:
                    self._tensorboard.close()
        finally:
            if self._wandb is not None:
                self._wandb.finish()

    def evaluation_at(self, step: int, prefixes: str | tuple[str, ...]) -> dict[str, float]:
        """Returns the metrics of a step with these prefixes that are already in the file."""
        self.flush()
        rows = [row for row in read_metrics(self._path) if row["step"] == step]
        return {k: v for row in rows for k, v in row.items() if k.startswith(prefixes)}

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes one line, with null for a value that is NaN or infinite, as JSON has neither."""
        with _writing(self._path):
            if self._log is not None:
                finite = {k: v if math.isfinite(v) else None for k, v in values.items()}
                self._log.write({"step": step, "time": time.time(), **finite})
            if self._tensorboard is not None:
                self._tensorboard.write(step, values)
        if self._wandb is not None:
            # W&B rejects steps before the newest, but the best weights may be of an earlier step.
            self._newest = max(step, self._newest)
            self._wandb.log(values, step=self._newest)

    def flush(self) -> None:
        """Returns when all lines are where other hosts can read them."""
        with _writing(self._path):
            if self._log is not None:
                self._log.flush()
            if self._tensorboard is not None:
                self._tensorboard.flush()


class ExampleLog:
    """Logs the examples of each training step, in one file for each host: examples-HOST.jsonl.

    A line holds the step, the first row and the end of each block of the host's rows of the global
    batch (usually one block), and either the example indices or their hash. The hash is a sum over
    rows, modulo 2^64: adding the hashes of all hosts gives the hash of the global batch, so runs on
    different numbers of hosts can be compared. An example's index is its position in the training
    split, or in its subset if `data.subset` is set. `kind` is "hash", "all" or "none".
    """

    def __init__(
        self, workdir: Path, host: int, rows: Sequence[int], *, start_step: int, kind: str
    ):
        self._path, self._rows, self._kind = workdir / f"examples-{host}.jsonl", rows, kind
        self._blocks = _blocks(rows)
        self._log: LogFile | None = None
        if kind == "none":
            return
        with _writing(self._path):
            self._log = LogFile(self._path, lambda row: row["step"] <= start_step, _has_step)

    def __enter__(self) -> "ExampleLog":
        return self

    def __exit__(self, *exception: object) -> None:
        with _writing(self._path):
            if self._log is not None:
                self._log.close()

    def flush(self) -> None:
        """Returns when all lines are where other hosts can read them."""
        with _writing(self._path):
            if self._log is not None:
                self._log.flush()

    def write(self, step: int, indices: np.ndarray) -> None:
        """Writes one line with the example indices i64[b] of this host's rows."""
        if self._log is None:
            return
        row: dict[str, Any] = {"step": step, "rows": self._blocks}
        if self._kind == "hash":
            row["hash"] = f"{example_hash(self._rows, indices):016x}"
        else:
            row["indices"] = indices.tolist()
        with _writing(self._path):
            self._log.write(row)


def _blocks(rows: Sequence[int]) -> list[int]:
    """Returns the first row and the end of each block: [0, 1, 4, 5, 6] is [0, 2, 4, 7]."""
    breaks = [i for i in range(1, len(rows)) if rows[i] != rows[i - 1] + 1]
    starts, ends = [0, *breaks], [*breaks, len(rows)]
    return [n for a, b in zip(starts, ends, strict=True) for n in (rows[a], rows[b - 1] + 1)]


def example_hash(rows: Sequence[int], indices: np.ndarray) -> int:
    """Returns the sum over rows, modulo 2^64, of a hash of row number and example index."""
    row_numbers = np.array(rows, dtype=np.uint64)
    states = (row_numbers << np.uint64(40)) ^ indices.astype(np.uint64)
    return int(splitmix64(states).sum(dtype=np.uint64))


class _EventFile:
    """A TensorBoard event file, written without TensorFlow.

    In a bucket the file is written again, whole, every few seconds. TensorBoard hides steps after
    `start_step` of old files.
    """

    def __init__(self, folder: Path, start_step: int):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Any = event_pb2
        self._summary: Any = summary_pb2
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{platform.node()}.{os.getpid()}"
        self._path, self._in_bucket = folder / name, is_bucket(folder)
        self._file: IO[bytes] = io.BytesIO() if self._in_bucket else self._path.open("wb")
        self._flushed = time.monotonic()
        self._records = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        started = self._event.SessionLog(status=self._event.SessionLog.START)
        self._add(step=start_step + 1, session_log=started)

    def write(self, step: int, values: dict[str, float]) -> None:
        scalars = [
            self._summary.Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
        ]
        self._add(step=step, summary=self._summary.Summary(value=scalars))
        if self._in_bucket and time.monotonic() - self._flushed > _EVENTS_INTERVAL_S:
            self.flush()

    def flush(self) -> None:
        """Returns when all events are where other hosts can read them."""
        if isinstance(self._file, io.BytesIO):
            self._path.write_bytes(self._file.getvalue())
            self._flushed = time.monotonic()

    def close(self) -> None:
        self.flush()
        self._file.close()

    def _add(self, **fields: Any) -> None:
        event = self._event.Event(wall_time=time.time(), **fields)
        self._records.write(event.SerializeToString())
        self._records.flush()


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {error.strerror or error}",
            "a writable run folder with free space",
            "free some space or choose another --workdir; the last complete checkpoint is kept",
        ) from None


def _import_wandb(project: str) -> Any:
    try:
        import wandb  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError(
            f"'logging.wandb_project' is {project!r} but wandb is not installed",
            "the wandb package",
            "run: pip install wandb, or set logging.wandb_project=none",
        ) from None
    return wandb
