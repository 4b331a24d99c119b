"""Measures the speed of the data loader by threads and processes."""

import dataclasses
import time

from vit_jax.config.data import DataConfig
from vit_jax.data.arrays import labelled_image
from vit_jax.data.cache import cached
from vit_jax.data.loader import batch_spec, train_batches
from vit_jax.data.sources import Source
from vit_jax.data.transforms import make_train_transform


@dataclasses.dataclass(frozen=True)
class Rate:
    """One measurement."""

    name: str  # what was measured
    images_per_second: float  # of wall-clock time
    cpu_ms_per_image: float | None = None  # of all threads of this process; None: unknown


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
    transform = make_train_transform(data.image_size, data)
    preprocessing = labelled_image(transform, data.image_size, num_classes)
    source = cached(source, data.cache_mb)
    if source.in_memory:
        source.read(range(len(source)))  # Only the first epoch decodes.
    batches = train_batches(
        source, lambda step: preprocessing, spec, seed=0, start_step=0, end_step=10**6
    )
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
