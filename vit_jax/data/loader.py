"""Training and evaluation batches, read in the background.

The examples of a training batch and their augmentation depend only on (seed, step).
"""

import atexit
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import grain
import numpy as np
from absl import flags

from vit_jax.config.data import DataConfig
from vit_jax.data.arrays import ArraySpec, Preprocessing
from vit_jax.data.batch_buffers import BatchBuffers
from vit_jax.data.order import ExampleOrder
from vit_jax.data.sources import Example, Source
from vit_jax.errors import DataError, UnreachableError
from vit_jax.rng import generator
from vit_jax.warning_signals import WARNING_SIGNALS, can_handle_signals

# Rows that one thread loads at a time.
_CHUNK_ROWS = 32
# Cores that the threads of one process can keep busy.
_CORES_PER_PROCESS = 8
# After this many bad examples in a row the whole dataset is considered bad.
_MAX_SKIPPED = 100
# Chunks that a source in a bucket is told about before they are read, at least.
_MIN_CHUNKS_AHEAD = 16
# Interval in seconds at which a reader process checks that its parent is alive.
_PARENT_CHECK_S = 0.5

# One host's rows of a batch: the task's arrays and mask bool[b]. Two more arrays stay on the host
# (HOST_ONLY): index i64[b] is the example's index in the source, and skipped i64[b] is the index of
# the bad example that it replaces, or -1.
HostBatch = dict[str, np.ndarray]
HOST_ONLY = ("index", "skipped")

_LOADER_ARRAYS = {
    "mask": ArraySpec((), np.bool_),
    "index": ArraySpec((), np.int64),
    "skipped": ArraySpec((), np.int64, padding=-1),
}


@dataclasses.dataclass(frozen=True)
class BatchSpec:
    """How examples become batches.

    Attributes:
        global_batch_size: B, over all hosts.
        rows: rows of the global batch that this host loads.
        num_threads: of each process; None: one per core; 0: read in the calling thread.
        num_workers: reader processes; None: none, unless there are more cores than the threads of
            one process can use.
        prefetch: batches that are prepared ahead.
        repeats: copies of each example in a batch.
        on_bad_example: "skip" replaces a bad example by the next readable one. Evaluation does not
            count the replacement.
    """

    global_batch_size: int
    rows: Sequence[int]
    num_threads: int | None = None
    num_workers: int | None = None
    prefetch: int = 4
    repeats: int = 1
    on_bad_example: Literal["error", "skip"] = "error"

    def chunks(self) -> list[Sequence[int]]:
        """Returns this host's rows in the pieces that one thread loads at a time."""
        return [self.rows[i : i + _CHUNK_ROWS] for i in range(0, len(self.rows), _CHUNK_ROWS)]


def batch_spec(data: DataConfig, batch_size: int, rows: Sequence[int]) -> BatchSpec:
    """Returns how the examples of a config become batches."""
    return BatchSpec(
        global_batch_size=batch_size,
        rows=rows,
        num_threads=data.num_threads,
        num_workers=data.num_workers,
        repeats=data.repeats,
        on_bad_example=data.on_bad_example,
    )


class Feed(Iterator[HostBatch]):
    """An iterator of batches made in the background. `close` ends its threads and processes.

    So does the end of this process, before multiprocessing would wait for them.
    """

    def __init__(self, batches: Any):
        self._batches = batches
        atexit.register(batches.close)

    def __next__(self) -> HostBatch:
        return next(self._batches)

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        atexit.unregister(self._batches.close)
        self._batches.close()


def on_device(batch: HostBatch) -> HostBatch:
    """Returns the arrays of a batch that go to the device."""
    return {name: rows for name, rows in batch.items() if name not in HOST_ONLY}


def train_batches(
    source: Source,
    preprocessing_of: Callable[[int], Preprocessing],
    spec: BatchSpec,
    *,
    seed: int,
    start_step: int,
    end_step: int,
) -> Feed:
    """Returns this host's rows of the batches of steps start_step to end_step - 1.

    A row of a batch has the global position p = step * B + row. Epoch p // N has its own
    permutation of the N examples, see `ExampleOrder`. The augmentation at p draws from the stream
    (seed, "augment", p). With R repeats the examples are those at p // R instead, and the rows have
    another order, see `repeated_places`. So the batch of a step is the same after a resume, with
    any number of threads and processes, and when several hosts load parts of it.

    `preprocessing_of` returns the preprocessing of a step. A DataError names the example that
    cannot be used.
    """
    find = ExampleOrder(len(source), seed)

    places_of_rows = repeated_places(spec.global_batch_size, spec.repeats)

    def indices(step: int, chunk: Sequence[int]) -> list[int]:
        first = step * spec.global_batch_size
        return find([(first + places_of_rows[row]) // spec.repeats for row in chunk])

    def load(step: int, chunk: Sequence[int], batch: HostBatch) -> None:
        places = [step * spec.global_batch_size + row for row in chunk]
        rows = _RowLoader(source, preprocessing_of(step), spec)
        rows.load(indices(step, chunk), batch, lambda i: generator(seed, "augment", places[i]))

    return _make_feed(load, indices, start_step, end_step, source, preprocessing_of, spec)


def repeated_places(batch_size: int, repeats: int) -> list[int]:
    """Returns the place in a batch of each row, for R repeats: 0, R, 2R, ..., then 1, R + 1, ...

    The copies of an example have neighbouring places. Mixing pairs neighbouring rows, so copies
    must not be in neighbouring rows.
    """
    return [place for copy in range(repeats) for place in range(copy, batch_size, repeats)]


def eval_batches(source: Source, preprocessing: Preprocessing, spec: BatchSpec) -> Feed:
    """Returns this host's rows of batches that contain every example once, in order.

    The last batch is padded with rows whose mask is False. Every host pads it, so that all hosts
    have the same number of batches. A skipped example is masked as well.
    """
    steps = -(-len(source) // spec.global_batch_size)
    rows = _RowLoader(source, preprocessing, spec)

    def indices(step: int, chunk: Sequence[int]) -> list[int]:
        positions = [step * spec.global_batch_size + row for row in chunk]
        return [p for p in positions if p < len(source)]

    def load(step: int, chunk: Sequence[int], batch: HostBatch) -> None:
        rows.load(indices(step, chunk), batch, lambda i: generator(0, "eval", 0))
        batch["mask"] &= batch["skipped"] < 0

    return _make_feed(load, indices, 0, steps, source, lambda step: preprocessing, spec)


def reader_counts(spec: BatchSpec, *, in_memory: bool = False) -> tuple[int, int]:
    """Returns the number of reader processes (0: none) and of threads in each.

    Decoding and resizing release the GIL. The rest, about an eighth of the work, holds it, so the
    threads of one process can use about eight cores. With an `in_memory` source, every process
    would keep its own copy of the images, so by default there are no processes.
    """
    cores = os.cpu_count() or 1
    workers = spec.num_workers
    if workers is None:
        many = not in_memory and cores > _CORES_PER_PROCESS
        workers = -(-cores // _CORES_PER_PROCESS) if many else 0
    threads = spec.num_threads
    if threads is None:
        threads = -(-cores // workers) if workers else cores
    return workers, threads


def _make_feed(
    load: Callable[[int, Sequence[int], HostBatch], None],
    indices: Callable[[int, Sequence[int]], list[int]],
    start: int,
    end: int,
    source: Source,
    preprocessing_of: Callable[[int], Preprocessing],
    spec: BatchSpec,
) -> Feed:
    """Fills the chunks of steps start to end - 1 in the background and joins them into batches."""
    workers, threads = reader_counts(spec, in_memory=source.in_memory)
    chunks = spec.chunks()
    announce = None
    if source.remote:

        def announce_chunk(number: int) -> None:
            step, chunk = start + number // len(chunks), chunks[number % len(chunks)]
            source.read_ahead(indices(step, chunk))

        announce = _Announcer(
            announce=announce_chunk,
            stop=(end - start) * len(chunks),
            stride=max(workers, 1),
            ahead=max(spec.prefetch * len(chunks), _MIN_CHUNKS_AHEAD) // max(workers, 1),
        )
    # Chunks from another process are copied in any case.
    buffers = None if workers else BatchBuffers(spec.rows)

    def load_chunk(number: int) -> tuple[int, HostBatch]:
        step, rows = start + number // len(chunks), chunks[number % len(chunks)]
        if announce is not None:
            announce(number)
        arrays = {**preprocessing_of(step).arrays, **_LOADER_ARRAYS}
        batch = {} if buffers is None else buffers.part(step, rows, arrays)
        for name, array in arrays.items():
            if name not in batch:
                batch[name] = np.empty((len(rows), *array.shape), array.dtype)
        load(step, rows, batch)
        return step, batch

    def join(parts: Sequence[tuple[int, HostBatch]]) -> HostBatch:
        whole = {} if buffers is None else buffers.whole(parts[0][0])
        copied = {
            name: np.concatenate([part[name] for _, part in parts])
            for name in parts[0][1]
            if name not in whole
        }
        return {**copied, **whole}

    buffer = max(spec.prefetch * len(chunks), threads) if threads else 0
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)
    pieces = grain.MapDataset.range((end - start) * len(chunks)).map(load_chunk)
    stream = pieces.to_iter_dataset(options)
    if workers:
        if not flags.FLAGS.is_parsed():  # Grain reads absl flags, but this program parses none.
            flags.FLAGS.mark_as_parsed()
        ahead = -(-spec.prefetch * len(chunks) // workers)
        stream = stream.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=ahead),
            worker_init_fn=_follow_parent,
        )
    return Feed(iter(stream.batch(len(chunks), batch_fn=join)))


def _follow_parent(worker: int, count: int) -> None:
    """Ends this reader process soon after its parent dies. A killed parent cannot end it.

    Signals that go to all processes of a job or a terminal are the parent's to act upon.
    """
    del worker, count
    if can_handle_signals():
        for number in (*WARNING_SIGNALS, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Announcer:
    """Announces to a source in a bucket what a process will read next.

    A process loads every `stride`-th chunk below `stop`; `ahead` of them are announced.
    """

    def __init__(self, announce: Callable[[int], None], stop: int, stride: int, ahead: int):
        self._announce, self._stop = announce, stop
        self._stride, self._ahead = stride, max(ahead, 1)
        self._next = 0
        self._lock = threading.Lock()

    def __reduce__(self):
        return _Announcer, (self._announce, self._stop, self._stride, self._ahead)

    def __call__(self, number: int) -> None:
        """Announces the chunks that follow one, each of them once."""
        with self._lock:
            first = max(number, self._next)
            last = min(number + (self._ahead + 1) * self._stride, self._stop)
            for chunk in range(first, last, self._stride):
                self._announce(chunk)
            self._next = max(self._next, last)


@dataclasses.dataclass(frozen=True)
class _RowLoader:
    """Reads examples and writes them into the rows of a batch."""

    source: Source
    preprocessing: Preprocessing
    spec: BatchSpec

    def load(
        self,
        indices: Sequence[int],
        batch: HostBatch,
        make_generator: Callable[[int], np.random.Generator],
    ) -> None:
        """Fills the first rows of a batch, one per index, and pads the others."""
        for i, example in enumerate(self._read_examples(indices) if indices else ()):
            used, row = self._load_row(indices[i], example, lambda i=i: make_generator(i))
            for name, array in self.preprocessing.arrays.items():
                value = row[name]
                if np.shape(value) != array.shape:
                    got, expected = np.shape(value), array.shape
                    raise ValueError(f"{name!r} has shape {got}, its ArraySpec has {expected}")
                batch[name][i] = value
            batch["index"][i] = used
            batch["skipped"][i] = -1 if used == indices[i] else indices[i]
        count = len(indices)
        for name, array in {**self.preprocessing.arrays, **_LOADER_ARRAYS}.items():
            batch[name][count:] = array.padding
        batch["mask"][:count] = True

    def _read_examples(self, indices: Sequence[int]) -> Sequence[Example | None]:
        """Returns examples, or only None if one is unreadable; `_load_row` then reads each."""
        try:
            return self.source.read(indices)
        except UnreachableError:
            raise
        except DataError:
            if self.spec.on_bad_example == "error":
                raise
            return [None] * len(indices)

    def _load_row(
        self, index: int, example: Example | None, make_generator: Callable[[], np.random.Generator]
    ) -> tuple[int, Mapping[str, Any]]:
        """Returns an example's index and arrays. Replaces a bad example by the next good one."""
        for attempt in range(_MAX_SKIPPED):
            used = (index + attempt) % len(self.source)
            try:
                if attempt or example is None:
                    example = self.source[used]
                return used, self._make_row(example, make_generator())
            except UnreachableError:
                raise
            except DataError:
                if self.spec.on_bad_example == "error":
                    raise
        raise DataError(
            f"{_MAX_SKIPPED} bad examples in a row in {self.source.name}, starting at {index}",
            "at most a few bad examples",
            "find them with: python -m vit_jax data check",
        )

    def _make_row(self, example: Example, rng: np.random.Generator) -> Mapping[str, Any]:
        try:
            return self.preprocessing.make_row(example, rng)
        except DataError as error:
            where = f"example {example.id} of {self.source.name}: {error.got}"
            fix = f"{error.fix}, or set data.on_bad_example=skip"
            raise DataError(where, error.expected, fix) from None
