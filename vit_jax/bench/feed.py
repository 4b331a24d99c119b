"""Measures the speed of the data loader by threads and processes."""

import dataclasses
import tempfile
import time
from collections.abc import Mapping, Sequence

import numpy as np

from vit_jax.config.data import DataConfig
from vit_jax.data.arrays import ArraySpec, Preprocessing, labelled_image
from vit_jax.data.cache import DecodedSource, cached
from vit_jax.data.loader import batch_spec, train_batches
from vit_jax.data.sources import Example, Source, open_training_data
from vit_jax.data.sources.open import data_cache
from vit_jax.data.transforms import make_train_transform
from vit_jax.errors import DataError

# Number of examples in memory.
SAMPLE = 512
# Reads an image and does nothing with it.
bytes_only = Preprocessing(
    {"bytes": ArraySpec((), np.int64)}, lambda example, rng: {"bytes": len(example.image)}
)


@dataclasses.dataclass(frozen=True)
class Rate:
    """One measurement."""

    name: str  # what was measured
    images_per_second: float  # of wall-clock time
    cpu_ms_per_image: float | None = None  # of all threads of this process; None: unknown


class MemorySource:
    """Some examples of a source, spread over it, kept encoded in memory."""

    def __init__(self, source: Source):
        picked = np.linspace(0, len(source) - 1, min(SAMPLE, len(source))).astype(int)
        self.examples = source.read(picked.tolist())
        self.name, self.class_names = f"{source.name} in memory", source.class_names
        self.fingerprint = source.fingerprint

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]

    def read(self, indices: Sequence[int]) -> list[Example]:
        return [self.examples[i] for i in indices]


def measure_feed(
    source: Source,
    data: DataConfig,
    *,
    num_classes: int,
    num_threads: int | None,
    num_workers: int | None,
    seconds: float,
) -> Rate:
    """Measures the batches of the training loader for some seconds, after the first batches.

    The threads are those of each process; 0 workers: no further processes.
    """
    size = data.global_batch_size
    data = data.replace(num_threads=num_threads, num_workers=num_workers)
    spec = batch_spec(data, size, range(size))
    transform = make_train_transform(data.image_size, data.augment)
    preprocessing = labelled_image(transform, data.image_size, num_classes)
    source = cached(source, data.cache_mb)
    if isinstance(source, DecodedSource):
        source.read(range(len(source)))  # Only the first epoch decodes.
    batches = train_batches(source, preprocessing, spec, seed=0, start_step=0, end_step=10**6)
    with batches:
        for _ in range(2 + spec.prefetch):  # Batches that were prefetched before the clock starts.
            next(batches)
        begin, cpu, count = time.perf_counter(), time.process_time(), 0
        while count == 0 or time.perf_counter() - begin < seconds:
            count += len(next(batches)["label"])
        wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    threads = f"{num_threads} thread{'s' if num_threads != 1 else ''}"
    name = f"{num_workers} processes of {threads}" if num_workers else threads
    return Rate(name, count / wall, None if num_workers else cpu / count * 1e3)


def measure_bucket(data: DataConfig, seconds: float) -> tuple[Rate, Rate]:
    """Measures how fast the training loader gets encoded images from a bucket, without decoding.

    It reads in the order of training for some seconds, at most one epoch, with an empty cache of
    the config's size, and then the same images again. Returns both rates.
    """
    place = data_cache(data).folder
    assert place is not None
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot write data.cache_dir {place}: {error.strerror}",
            "a writable folder",
            "choose another",
        ) from None
    with tempfile.TemporaryDirectory(dir=place, prefix="bench-") as folder:
        source = open_training_data(data.replace(cache_dir=folder)).source
        size = data.global_batch_size
        spec = batch_spec(data, size, range(size))
        steps = max(1, len(source) // size)
        rates = []
        for name in ("nothing cached", "cached"):
            begin, cpu, done = time.perf_counter(), time.process_time(), 0
            with train_batches(
                source, bytes_only, spec, seed=0, start_step=0, end_step=steps
            ) as feed:
                for _ in feed:
                    done += 1
                    if not rates and time.perf_counter() - begin > seconds:
                        break
            wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
            steps = done  # The second time reads what the first has left in the cache.
            rates.append(Rate(name, done * size / wall, cpu / (done * size) * 1e3))
    return rates[0], rates[1]


def bottleneck(rates: Mapping[str, float]) -> str:
    """Returns a clause that names the slowest part, e.g. of "bucket", "decoding" and "device".

    >>> bottleneck({"bucket": 900.0, "decoding": 1500.0})
    'the limit is the bucket (images/s: bucket 900, decoding 1,500)'
    """
    slowest = min(rates, key=lambda name: rates[name])
    shown = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    named = "decoding" if slowest == "decoding" else f"the {slowest}"
    return f"the limit is {named} (images/s: {shown})"
