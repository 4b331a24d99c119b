"""Batches of uint8 images from a source, in an order that depends on (seed, step) alone."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grain
import numpy as np

from vit_jax.data.sources import Source
from vit_jax.data.transforms import Transform
from vit_jax.errors import DataError
from vit_jax.rng import generator, shuffle_seed

# Rows that one thread loads at a time.
_CHUNK = 32

# One host's rows of a batch: image u8[b, H, W, 3], label i32[b], mask bool[b].
HostBatch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class BatchSpec:
    """How examples become batches.

    Attributes:
        global_batch_size: B, over all hosts.
        rows: rows of the global batch that this host loads.
        num_classes: labels lie below it.
        num_threads: reader threads; None: one per core; 0: read in the calling thread.
        prefetch: batches kept ready.
    """

    global_batch_size: int
    rows: range
    num_classes: int
    num_threads: int | None = None
    prefetch: int = 4

    def chunks(self) -> list[range]:
        """Returns this host's rows in the pieces that one thread loads at a time."""
        return [self.rows[i : i + _CHUNK] for i in range(0, len(self.rows), _CHUNK)]


def train_batches(
    source: Source,
    transform: Transform,
    spec: BatchSpec,
    *,
    seed: int,
    start_step: int,
    end_step: int,
) -> Iterator[HostBatch]:
    """Yields this host's rows of the batches of steps start_step to end_step - 1.

    Global position p = step * B + row runs through the epochs: epoch p // N has its own permutation
    of the N examples, computed index by index (constant memory). Augmentation at p draws from the
    stream (seed, "augment", p). So the batch at a step is the same after a resume, with any number
    of threads, and put together over any number of hosts.

    Args:
        source: examples.
        transform: (encoded bytes, generator) -> u8 image.
        spec: sizes.
        seed: the run's seed.
        start_step: first step.
        end_step: one past the last step.

    Raises:
        DataError: an example that cannot be read, or whose label is out of range; it is named.
    """
    shuffled = grain.MapDataset.range(len(source)).shuffle(seed=shuffle_seed(seed))
    order: Any = shuffled.repeat()

    def load(step: int, rows: range) -> HostBatch:
        positions = [step * spec.global_batch_size + row for row in rows]
        indices = [int(order[p]) for p in positions]
        generators = [generator(seed, "augment", p) for p in positions]
        return _load(source, transform, spec, indices, generators)

    return _iterate(load, start_step, end_step, spec)


def eval_batches(source: Source, transform: Transform, spec: BatchSpec) -> Iterator[HostBatch]:
    """Yields this host's rows of batches that hold every example once, in order.

    The last batch is filled up with zeros whose mask is False, on every host alike, so that all
    hosts see equally many batches.

    Raises:
        DataError: an example that cannot be read, or whose label is out of range; it is named.
    """
    steps = -(-len(source) // spec.global_batch_size)

    def load(step: int, rows: range) -> HostBatch:
        positions = [step * spec.global_batch_size + row for row in rows]
        indices = [p for p in positions if p < len(source)]
        # Without a single example of their own, rows need one for the image's shape.
        batch = _load(
            source, transform, spec, indices or [0], [generator(0, "eval", 0)] * len(positions)
        )
        batch["mask"][len(indices) :] = False
        return {name: _fill(rows[: len(positions)], len(positions)) for name, rows in batch.items()}

    return _iterate(load, 0, steps, spec)


def _iterate(
    load: Callable[[int, range], HostBatch], start: int, end: int, spec: BatchSpec
) -> Iterator[HostBatch]:
    """Loads the chunks of steps start to end - 1 in threads, and joins them into batches."""
    threads = os.cpu_count() or 1 if spec.num_threads is None else spec.num_threads
    chunks = spec.chunks()
    buffer = max(spec.prefetch * len(chunks), threads) if threads else 0
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)
    pieces = grain.MapDataset.range(start * len(chunks), end * len(chunks)).map(
        lambda i: load(i // len(chunks), chunks[i % len(chunks)])
    )
    return iter(pieces.to_iter_dataset(options).batch(len(chunks), batch_fn=_join))


def _join(chunks: Sequence[HostBatch]) -> HostBatch:
    if len(chunks) == 1:
        return chunks[0]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _load(
    source: Source,
    transform: Transform,
    spec: BatchSpec,
    indices: list[int],
    generators: list[np.random.Generator],
) -> HostBatch:
    examples = source.read(indices)
    images = []
    for example, rng in zip(examples, generators, strict=False):
        if not 0 <= example.label < spec.num_classes:
            raise DataError(
                f"label {example.label} of example {example.id} of {source.name}",
                f"0 to {spec.num_classes - 1}",
                "set data.num_classes to the number of classes, or repair the dataset",
            )
        try:
            images.append(transform(example.image, rng))
        except DataError as error:
            where = f"example {example.id} of {source.name}: {error.got}"
            raise DataError(where, error.expected, error.mend) from None
    return {
        "image": np.stack(images),
        "label": np.array([example.label for example in examples], np.int32),
        "mask": np.ones(len(examples), bool),
    }


def _fill(rows: np.ndarray, count: int) -> np.ndarray:
    """Appends zeros up to `count` rows."""
    return np.concatenate([rows, np.zeros((count - len(rows), *rows.shape[1:]), rows.dtype)])
