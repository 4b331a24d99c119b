"""Measure the data loader's images/s, and compare it with the model's speed.

    python -m vit_jax bench feed --source=cifar10 --data_dir=DATA
    python -m vit_jax bench feed --source=PHOTOS --model=ViT-S/16
    python -m vit_jax bench feed --config=configs/augreg.py:B/16 --data_dir=DATA

--source is a TFDS name, a folder of images or a CSV file of path,label, also in a bucket.
"""

import argparse
import os
import statistics
from typing import Any

from vit_jax.commands.arguments import non_negative_int, output_file, positive_int, positive_number
from vit_jax.config.file import apply_override_texts, load_config
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError
from vit_jax.storage.files import write_json
from vit_jax.storage.paths import user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("--config", help="recipe whose data section to measure")
    parser.add_argument("--source", help="dataset or path; replaces the recipe's")
    parser.add_argument("--data_dir", help="TFDS folder; same as --config.data.data_dir")
    parser.add_argument("--image_size", type=positive_int, default=None)
    parser.add_argument("--seconds", type=positive_number, default=4.0, help="per measurement (4)")
    parser.add_argument("--rounds", type=positive_int, default=3, help="interleaved (3)")
    parser.add_argument(
        "--processes", type=non_negative_int, default=None, help="reader processes; 0: none"
    )
    parser.add_argument(
        "--model", default=None, help="also measure this model on this device and compare"
    )
    parser.add_argument("--output", type=output_file, help="JSON file for the results")


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from vit_jax.bench.feed import Rate, measure_feed
    from vit_jax.data.sources import class_count, open_training_data
    from vit_jax.run.environment import environment

    config = _config(args, overrides)
    data = config.data
    source = open_training_data(data).source
    num_classes = class_count(source, data.num_classes)
    cores = os.cpu_count() or 1
    processes = cores if args.processes is None else args.processes
    settings = [(1, 0), (cores, 0), *([(1, processes)] if processes else [])]
    settings = list(dict.fromkeys(settings))
    found: dict[str, list[Rate]] = {}
    for _ in range(args.rounds):
        for threads, workers in settings:
            rate = measure_feed(
                source,
                data,
                num_classes=num_classes,
                num_threads=threads,
                num_workers=workers,
                seconds=args.seconds,
            )
            found.setdefault(rate.name, []).append(rate)
    rows = [_row(rates) for rates in found.values()]
    _show(f"feed: {source.name}, {data.image_size} px, batch {data.global_batch_size}", rows)
    content: dict[str, Any] = {"environment": environment(), "feed": rows}
    if args.model is not None:
        fastest = max(row["images_per_second"] for row in rows)
        content["verdict"] = verdict(config, fastest, device_rate(config))
        print(content["verdict"])
    if args.output is not None:
        write_json(args.output, content)
    return 0


def _config(args: argparse.Namespace, overrides: list[str]) -> Config:
    if args.data_dir is not None:
        overrides = [f"data.data_dir={args.data_dir}", *overrides]
    if args.source is not None:
        path = user_path(args.source)
        kind = "folder" if path.is_dir() else "csv" if path.is_file() else "tfds"
        if kind != "tfds" and args.data_dir is not None:
            raise ConfigError(
                f"--source={path} is a path, but --data_dir={args.data_dir} is given too",
                "--data_dir only with the name of a dataset",
                "leave --data_dir out",
            )
        where = [] if kind == "tfds" else [f"data.data_dir={path}"]
        name = {"tfds": args.source, "folder": path.name, "csv": path.stem}[kind]
        overrides = [f"data.source={kind}", f"data.name={name}", *where, *overrides]
    if args.image_size is not None:
        overrides = [*overrides, f"data.image_size={args.image_size}"]
    if args.model is not None:
        overrides = [*overrides, f"model.name={args.model}"]
    if args.config is not None:
        return load_config(args.config, overrides)
    mapping: dict[str, Any] = {
        "model": {"name": "ViT-B/16"},
        "data": {"name": "digits", "global_batch_size": 128},
        "optimizer": {"learning_rate": 1e-3},
        "train_steps": 1000,
    }
    apply_override_texts(mapping, overrides)
    return Config.from_mapping(mapping)


def _row(rates: list[Any]) -> dict[str, Any]:
    speeds = [rate.images_per_second for rate in rates]
    times = [rate.cpu_ms_per_image for rate in rates if rate.cpu_ms_per_image is not None]
    return {
        "name": rates[0].name,
        "images_per_second": statistics.median(speeds),
        "least": min(speeds),
        "most": max(speeds),
        "cpu_ms_per_image": statistics.median(times) if times else None,
    }


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in ("what", "images/s", "(min-max)", "CPU ms per image"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for row in rows:
        cpu = row["cpu_ms_per_image"]
        table.add_row(
            row["name"],
            f"{row['images_per_second']:,.0f}",
            f"({row['least']:,.0f}-{row['most']:,.0f})",
            "-" if cpu is None else f"{cpu:.3f}",
        )
    Console().print(table)


def device_rate(config: Config) -> float:
    """Returns the images/s of the training step on this machine's devices."""
    from vit_jax.bench.step import JaxStep, measure_interleaved

    measured = measure_interleaved([JaxStep(config)], rounds=3, steps_per_round=2)
    return measured[0].images_per_second


def verdict(config: Config, feed_rate: float, needed: float) -> str:
    """Returns a sentence that compares the feed's images/s with those that the device needs."""
    import jax

    device = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    waits = 1 - feed_rate / needed
    conclusion = (
        f"the feed is the bottleneck, the device waits {waits:.0%} of the time"
        if waits > 0
        else f"the feed is {feed_rate / needed:.1f} times as fast as the device"
    )
    return (
        f"the feed gives {feed_rate:,.0f} images/s, {config.model.name} on {device} needs"
        f" {needed:,.0f}: {conclusion}"
    )
