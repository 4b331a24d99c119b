"""Batches of uint8 images from a source, in an order that depends on (seed, step) alone."""

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import grain
import numpy as np
from absl import flags

from vit_jax.config.data import DataConfig
from vit_jax.data.batch_memory import BatchMemory
from vit_jax.data.cache import DecodedSource
from vit_jax.data.order import BalancedOrder, ExampleOrder
from vit_jax.data.sources import Example, Source
from vit_jax.data.transforms import Transform
from vit_jax.errors import DataError
from vit_jax.rng import generator

# Rows that one thread loads at a time.
_CHUNK = 32

# Cores that the threads of one process can keep busy.
_CORES_A_PROCESS = 8
# Bad examples in a row that are skipped before the dataset as a whole is taken to be bad.
_MOST_SKIPPED = 100

# Seconds between a reader process's looks at whether its parent is still there.
_SECONDS_TO_LOOK = 0.5

# One host's rows of a batch: image u8[b, H, W, 3], label i32[b], mask bool[b]; and what stays on
# the host (HOST_ONLY): index i64[b], the example's place in the source, and skipped bool[b],
# whether the row's own example was bad.
HostBatch = dict[str, np.ndarray]
HOST_ONLY = ("index", "skipped")


@dataclasses.dataclass(frozen=True)
class BatchSpec:
    """How examples become batches.

    Attributes:
        global_batch_size: B, over all hosts.
        rows: rows of the global batch that this host loads.
        num_classes: labels lie below it.
        num_threads: reader threads of each process; None: one per core; 0: read in the calling
            thread.
        num_workers: reader processes; None: none, unless there are more cores than the threads of
            one process can use; 0: none.
        prefetch: batches kept ready.
        on_bad_example: "error", or "skip": the next readable example takes its place (evaluation:
            it does not count).
    """

    global_batch_size: int
    rows: range
    num_classes: int
    num_threads: int | None = None
    num_workers: int | None = None
    prefetch: int = 4
    on_bad_example: Literal["error", "skip"] = "error"

    def chunks(self) -> list[range]:
        """Returns this host's rows in the pieces that one thread loads at a time."""
        return [self.rows[i : i + _CHUNK] for i in range(0, len(self.rows), _CHUNK)]


def batch_spec(data: DataConfig, batch_size: int, rows: range, num_classes: int) -> BatchSpec:
    """Returns how a config's examples become batches.

    Args:
        data: the data section.
        batch_size: examples a batch, over all hosts.
        rows: rows of a batch that this host loads.
        num_classes: labels lie below it.
    """
    return BatchSpec(
        global_batch_size=batch_size,
        rows=rows,
        num_classes=num_classes,
        num_threads=data.num_threads,
        num_workers=data.num_workers,
        prefetch=data.prefetch_batches,
        on_bad_example=data.on_bad_example,
    )


class Feed(Iterator[HostBatch]):
    """Batches made ready in the background; closing it ends the threads and processes."""

    def __init__(self, batches: Any):
        self._batches = batches

    def __next__(self) -> HostBatch:
        return next(self._batches)

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the reader threads and processes."""
        self._batches.close()


def on_device(batch: HostBatch) -> HostBatch:
    """Returns what of a batch goes to the device."""
    return {name: rows for name, rows in batch.items() if name not in HOST_ONLY}


def train_batches(
    source: Source,
    transform: Transform,
    spec: BatchSpec,
    *,
    seed: int,
    start_step: int,
    end_step: int,
    order: BalancedOrder | None = None,
) -> Feed:
    """Returns this host's rows of the batches of steps start_step to end_step - 1.

    Global position p = step * B + row runs through the epochs: epoch p // N has its own permutation
    of the N examples, see `ExampleOrder`. Augmentation at p draws from the stream
    (seed, "augment", p). So the batch at a step is the same after a resume, with any number of
    threads and processes, and put together over any number of hosts.

    Args:
        source: examples.
        transform: (encoded bytes, generator) -> u8 image.
        spec: sizes.
        seed: the run's seed.
        start_step: first step.
        end_step: one past the last step.
        order: of the examples; None: that of `ExampleOrder`.

    Raises:
        DataError: an example that cannot be read, or whose label is out of range; it is named.
    """
    find: Callable[[Sequence[int]], list[int]] = order or ExampleOrder(len(source), seed)
    read = _make_read(source, spec)

    def load(step: int, rows: range, memory: BatchMemory | None) -> HostBatch:
        positions = [step * spec.global_batch_size + row for row in rows]
        indices = find(positions)
        loaded = (
            _load(
                source, transform, spec, index, example, lambda p=p: generator(seed, "augment", p)
            )
            for index, example, p in zip(indices, read(indices), positions, strict=True)
        )
        return _collect(loaded, step, rows, memory)

    in_memory = isinstance(source, DecodedSource)
    return _iterate(load, start_step, end_step, spec, in_memory=in_memory)


def eval_batches(source: Source, transform: Transform, spec: BatchSpec) -> Feed:
    """Returns this host's rows of batches that hold every example once, in order.

    The last batch is filled up with zeros whose mask is False, on every host alike, so that all
    hosts see equally many batches. An example that is skipped is masked as well.

    Raises:
        DataError: an example that cannot be read, or whose label is out of range; it is named.
    """
    steps, read = -(-len(source) // spec.global_batch_size), _make_read(source, spec)

    def load(step: int, rows: range, memory: BatchMemory | None) -> HostBatch:
        positions = [step * spec.global_batch_size + row for row in rows]
        indices = [p for p in positions if p < len(source)]
        # Without a single example of their own, rows need one for the image's shape.
        examples = zip(indices or [0], read(indices or [0]), strict=True)
        loaded = (
            _load(source, transform, spec, index, example, lambda: generator(0, "eval", 0))
            for index, example in examples
        )
        batch = _collect(loaded, step, rows, memory)
        batch["mask"] &= ~batch["skipped"]
        for array in batch.values():
            array[len(indices) :] = 0
        return batch

    return _iterate(load, 0, steps, spec, in_memory=isinstance(source, DecodedSource))


def reader_counts(
    spec: BatchSpec, cores: int | None = None, *, in_memory: bool = False
) -> tuple[int, int]:
    """Returns the numbers of processes (0: none) and of threads in each.

    Decoding and resizing run outside Python's lock, so that threads are enough until what is left
    inside, about an eighth of the work, keeps one core busy.

    Args:
        spec: what is asked for.
        cores: of this machine; None: count them.
        in_memory: whether the source keeps decoded images, of which every process would keep its
            own; then there are processes only if asked for.
    """
    cores = cores or os.cpu_count() or 1
    workers = spec.num_workers
    if workers is None:
        workers = 0 if in_memory or cores <= _CORES_A_PROCESS else -(-cores // _CORES_A_PROCESS)
    threads = spec.num_threads
    if threads is None:
        threads = -(-cores // workers) if workers else cores
    return workers, threads


def _iterate(
    load: Callable[[int, range, BatchMemory | None], HostBatch],
    start: int,
    end: int,
    spec: BatchSpec,
    *,
    in_memory: bool,
) -> Feed:
    """Loads the chunks of steps start to end - 1 in the background, and joins them into batches."""
    workers, threads = reader_counts(spec, in_memory=in_memory)
    chunks = spec.chunks()
    # What comes from another process is a copy already.
    memory = None if workers else BatchMemory(spec.rows)
    buffer = max(spec.prefetch * len(chunks), threads) if threads else 0
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)
    pieces = grain.MapDataset.range(start * len(chunks), end * len(chunks)).map(
        lambda i: load(i // len(chunks), chunks[i % len(chunks)], memory)
    )
    stream = pieces.to_iter_dataset(options)
    if workers:
        if not flags.FLAGS.is_parsed():  # Grain asks for flags of its own, which nobody gives.
            flags.FLAGS.mark_as_parsed()
        ahead = -(-spec.prefetch * len(chunks) // workers)
        stream = stream.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=ahead),
            worker_init_fn=_end_with_parent,
        )
    return Feed(iter(stream.batch(len(chunks), batch_fn=lambda parts: _join(parts, memory))))


def _end_with_parent(worker: int, count: int) -> None:
    """Ends this reader process soon after its parent, which a kill keeps from ending it."""
    del worker, count
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_SECONDS_TO_LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _join(chunks: Sequence[HostBatch], memory: BatchMemory | None) -> HostBatch:
    copied = [name for name in chunks[0] if memory is None or name != "image"]
    batch = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in copied}
    if memory is not None:
        batch["image"] = memory.whole(chunks[0]["image"])
    return batch


# An image, its label, its index, and whether its own example was skipped.
_Loaded = tuple[np.ndarray, int, int, bool]


def _make_read(
    source: Source, spec: BatchSpec
) -> Callable[[Sequence[int]], Sequence[Example | None]]:
    """Returns indices -> examples; None: to be read one by one, since one of them is unreadable."""

    def read(indices: Sequence[int]) -> Sequence[Example | None]:
        try:
            return source.read(indices)
        except DataError:
            if spec.on_bad_example == "error":
                raise
            return [None] * len(indices)

    return read


def _load(
    source: Source,
    transform: Transform,
    spec: BatchSpec,
    index: int,
    example: Example | None,
    make_generator: Callable[[], np.random.Generator],
) -> _Loaded:
    """Returns an example transformed, or where it is bad and to be skipped, the next good one."""
    for attempt in range(_MOST_SKIPPED):
        used = (index + attempt) % len(source)
        try:
            if attempt or example is None:
                example = source[used]
            image = _transformed(source, transform, spec, example, make_generator())
            return image, example.label, used, attempt > 0
        except DataError:
            if spec.on_bad_example == "error":
                raise
    raise DataError(
        f"{_MOST_SKIPPED} examples of {source.name} in a row, from {index} on, that cannot be used",
        "a few at most", "look at it with: python -m vit_jax data check",
    )  # fmt: skip


def _transformed(
    source: Source,
    transform: Transform,
    spec: BatchSpec,
    example: Example,
    rng: np.random.Generator,
) -> np.ndarray:
    if not 0 <= example.label < spec.num_classes:
        raise DataError(
            f"label {example.label} of example {example.id} of {source.name}",
            f"0 to {spec.num_classes - 1}",
            "set data.num_classes to the number of classes, or repair the dataset",
        )
    try:
        return transform(example.image, rng)
    except DataError as error:
        where = f"example {example.id} of {source.name}: {error.got}"
        raise DataError(where, error.expected, error.fix) from None


def _collect(
    loaded: Iterator[_Loaded], step: int, rows: range, memory: BatchMemory | None
) -> HostBatch:
    """Returns rows of a batch; of those behind what was loaded only the shape is right."""
    batch: HostBatch = {
        "label": np.zeros(len(rows), np.int32),
        "mask": np.ones(len(rows), bool),
        "index": np.zeros(len(rows), np.int64),
        "skipped": np.zeros(len(rows), bool),
    }
    for place, (image, label, index, skipped) in enumerate(loaded):
        if "image" not in batch:
            shape = image.shape
            batch["image"] = (
                np.empty((len(rows), *shape), np.uint8)
                if memory is None
                else memory.part(step, rows, shape)
            )
        batch["image"][place] = image
        batch["label"][place] = label
        batch["index"][place] = index
        batch["skipped"][place] = skipped
    return batch
