"""Compares the training feed from a bucket with that from a local disk.

    python -m experiments.buckets.feed --data_dir=DATA --source=clothing_small

The bucket is the server of GCS's or S3's protocol that the tests use, on this machine. The script
copies the dataset into it, measures the first epoch (reading only) while each request takes
`--latency_ms` longer, and then what is in the cache against the local disk, in alternating rounds:
with decoding, as in training, and reading only.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from vit_jax.bench.feed import measure_feed
from vit_jax.config.data import DataConfig
from vit_jax.data.arrays import ArraySpec, Preprocessing
from vit_jax.data.loader import batch_spec, train_batches
from vit_jax.data.sources import Source, open_training_data
from vit_jax.storage.bucket_path import BucketPath

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from buckets.servers import Server  # noqa: E402

# Reads an image and does nothing with it.
_BYTES_ONLY = Preprocessing(
    {"bytes": ArraySpec((), np.int64)}, lambda example, rng: {"bytes": len(example.image)}
)


def main() -> None:
    """Prints the rates and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data_dir", type=Path, required=True, help="folder of TFDS datasets")
    parser.add_argument("--source", required=True, help="name of a TFDS dataset in it")
    parser.add_argument("--protocol", choices=("gs", "s3"), default="gs")
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--latency_ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    args = parser.parse_args()
    with Server(args.protocol) as server, tempfile.TemporaryDirectory() as cache:
        os.environ.update(server.env)
        bucket = BucketPath(f"{server.make_bucket()}/data")
        for path in (args.data_dir / args.source).rglob("*"):
            if path.is_file():
                (bucket / path.relative_to(args.data_dir)).write_bytes(path.read_bytes())
        local = DataConfig(
            source="tfds",
            name=args.source,
            data_dir=str(args.data_dir),
            image_size=args.image_size,
            global_batch_size=64,
            cache_mb=0,
        )
        remote = local.replace(data_dir=str(bucket), cache_dir=cache)
        server.faults(latency_s=args.latency_ms / 1e3)
        server.clear()
        sources = [open_training_data(data).source for data in (remote, local)]
        first = _read(sources[0], local)  # All blocks are in the cache from now on.
        print(
            f"first epoch, {args.latency_ms:g} ms a request, reading only: "
            f"{first:,.0f} images/s, {server.requests('read')} requests"
        )
        server.faults()
        server.clear()
        rates = {"with decoding": [], "reading only": []}
        for _ in range(args.rounds):
            rates["with decoding"].append(
                [
                    measure_feed(
                        source,
                        data,
                        num_classes=1000,
                        num_threads=None,
                        num_workers=0,
                        seconds=args.seconds,
                    ).images_per_second
                    for source, data in zip(sources, (remote, local), strict=True)
                ]
            )
            rates["reading only"].append([_read(source, local) for source in sources])
        print(f"requests while everything is cached: {server.requests('read')}")
    for name, pairs in rates.items():
        ratios = sorted(cached / disk for cached, disk in pairs)
        cached, disk = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"{name}: cached {cached:,.0f} images/s, local disk {disk:,.0f} images/s, ratio "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def _read(source: Source, data: DataConfig) -> float:
    """Reads one epoch without decoding and returns images per second."""
    size = data.global_batch_size
    spec = batch_spec(data, size, range(size))
    steps = len(source) // size
    begin = time.perf_counter()
    with train_batches(source, _BYTES_ONLY, spec, seed=0, start_step=0, end_step=steps) as feed:
        for _ in feed:
            pass
    return steps * size / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
