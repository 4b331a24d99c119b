"""Times the data loader in turn with tf.data: decode and crop, resize, flip, from memory.

    python -m experiments.speed.tf_feed --source=PHOTOS
    python -m experiments.speed.tf_feed --source=clothing_small --data_dir=DATA --rounds=5

Both decode the same JPEGs with an inception crop and resize bilinearly without antialiasing, as
big_vision does. tf.data runs in a process of its own, which is idle while our loader is timed. The
third figure is our loader with antialiasing, which tf.data's resize does not have. Needs
`pip install tensorflow-cpu`.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from vit_jax.data.sources.base import Source

MIN_AREA = 0.08
CORES = os.cpu_count() or 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Times both loaders and prints their images/s."""
    parser = argparse.ArgumentParser(prog="python -m experiments.speed.tf_feed")
    parser.add_argument("--source", required=True, help="folder of images, or TFDS name of JPEGs")
    parser.add_argument("--data_dir", help="TFDS folder")
    parser.add_argument("--split", default="train")
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3, help="the figures are medians over them")
    parser.add_argument("--seconds", type=float, default=4.0, help="per measurement")
    args = parser.parse_args(arguments)

    from vit_jax.bench.feed import measure_feed
    from vit_jax.config.data import DataConfig
    from vit_jax.data.augment import augment_class
    from vit_jax.data.crops.inception import Inception
    from vit_jax.data.sources import class_count, open_source

    is_folder = Path(args.source).is_dir()
    data = DataConfig(
        source="folder" if is_folder else "tfds",
        name=Path(args.source).name,
        data_dir=args.source if is_folder else args.data_dir,
        image_size=args.image_size,
        global_batch_size=args.batch_size,
        cache_mb=0,
        antialias=False,
        augment=augment_class({})(crop=Inception(min_area=MIN_AREA)),
    )
    source = open_source(data, args.split)
    memory, classes = MemorySource(source), class_count(source, None)
    antialiased = data.replace(antialias=True)

    def ours(data: DataConfig) -> float:
        return measure_feed(
            memory,
            data,
            num_classes=classes,
            num_threads=CORES,
            num_workers=0,
            seconds=args.seconds,
        ).images_per_second

    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        encoded = [example.image for example in memory.examples]
        pool.submit(_build, encoded, args.image_size, args.batch_size).result()

        def theirs() -> float:
            return pool.submit(_measure, args.seconds, args.batch_size).result()

        rounds = [(ours(data), theirs(), ours(antialiased)) for _ in range(args.rounds)]
    names = ("vit_jax", "tf.data", "vit_jax, antialiased")
    for name, speeds in zip(names, zip(*rounds, strict=True), strict=True):
        print(f"{name:24}{statistics.median(speeds):10,.0f} images/s on {CORES} cores")
    # The ratio is taken within a round, because other load on the machine slows both down.
    ratio = statistics.median(first / second for first, second, _ in rounds)
    print(f"vit_jax is {ratio:.2f}x as fast")


class MemorySource(Source):
    """At most 512 examples of a source, spread over it, kept encoded in memory."""

    def __init__(self, source: Any):
        count = min(512, len(source))
        self.examples = source.read(
            [i * (len(source) - 1) // max(count - 1, 1) for i in range(count)]
        )
        self.name, self.class_names = f"{source.name} in memory", source.class_names
        self.fingerprint = source.fingerprint

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Any:
        return self.examples[index]


# What follows runs in the process of TensorFlow. Its batches, once built.
_batches: Any = None


def _build(examples: list[bytes], image_size: int, batch_size: int) -> None:
    global _batches
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import tensorflow as tf

    def load(encoded: Any) -> Any:
        shape = tf.io.extract_jpeg_shape(encoded)
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            shape,
            tf.zeros([0, 0, 4], tf.float32),
            area_range=(MIN_AREA, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
            min_object_covered=0.0,
            use_image_if_no_bounding_boxes=True,
        )
        top, left, _ = tf.unstack(begin)
        height, width, _ = tf.unstack(extent)
        box = tf.stack([top, left, height, width])
        image = tf.io.decode_and_crop_jpeg(encoded, box, channels=3)
        image = tf.image.resize(image, (image_size, image_size), "bilinear")
        image = tf.image.random_flip_left_right(image)
        return tf.cast(image, tf.uint8)

    data = tf.data.Dataset.from_tensor_slices(examples).repeat()
    data = data.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    options = tf.data.Options()
    options.threading.private_threadpool_size = CORES
    _batches = data.batch(batch_size).prefetch(4).with_options(options).as_numpy_iterator()
    next(_batches)


def _measure(seconds: float, batch_size: int) -> float:
    """Returns images/s."""
    for _ in range(4):  # Batches that were prefetched before the clock starts.
        next(_batches)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        next(_batches)
        count += batch_size
    return count / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
