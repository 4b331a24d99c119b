"""Measure a full training step (forward, backward, clipping, AdamW) on synthetic images.

    python -m vit_jax bench step --model=ViT-Ti/16 --batch_size=32
    python -m vit_jax bench step --model=ViT-B/16,ViT-L/16 --batch_size=auto --dtype=bfloat16
    python -m vit_jax bench step --model=ViT-B/16 --output=bench.json --profile=FOLDER

A run with several patch sizes or sequence lengths has a row for each, measured in turn.
"""

import argparse
from typing import Any

from vit_jax.commands.arguments import output_file, positive_int
from vit_jax.config.run import Config
from vit_jax.storage.files import write_json
from vit_jax.storage.paths import user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("--model", default="ViT-Ti/16", help="one or more names, comma-separated")
    parser.add_argument(
        "--batch_size",
        default=32,
        type=lambda text: text if text == "auto" else positive_int(text),
        help="global, or auto: the fastest that fits",
    )
    parser.add_argument("--image_size", type=positive_int, help="in pixels; default: the model's")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument(
        "--rounds", type=positive_int, default=5, help="the table shows medians over rounds"
    )
    parser.add_argument("--steps", type=positive_int, default=2, help="steps per round")
    parser.add_argument("--output", type=output_file, help="JSON file for the results")
    parser.add_argument(
        "--profile",
        type=user_path,
        metavar="FOLDER",
        help="write a profiler trace of 2 steps of each model",
    )


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from vit_jax.bench.step import (
        JaxStep,
        fastest_batch_size,
        measure_interleaved,
        synthetic_config,
    )
    from vit_jax.config.flexible import trained_variants
    from vit_jax.models.registry import default_image_size
    from vit_jax.run.compile_cache import use_compile_cache
    from vit_jax.run.environment import environment
    from vit_jax.tasks.task import num_patches

    rows: list[dict[str, Any]] = []
    for model in args.model.split(","):
        config = synthetic_config(
            model,
            batch_size=32 if args.batch_size == "auto" else args.batch_size,
            image_size=args.image_size or default_image_size(model),
            dtype=args.dtype,
            overrides=overrides,
        )
        use_compile_cache(config.compile_cache)
        if args.batch_size == "auto":
            size = fastest_batch_size(
                lambda n, base=config: JaxStep(_with_batch(base, n)), start=32, limit=4096
            )
            config = _with_batch(config, size)
        # The most expensive size comes first; it is the one that is profiled.
        variants = trained_variants(config).items()
        sizes = sorted(variants, key=lambda item: -num_patches(item[1][1]))
        if sizes:
            config = sizes[0][1][1]
        steps = [JaxStep(config, label=sizes[0][0] if sizes else None)]
        steps += [JaxStep(one, shares=steps[0], label=name) for name, (_, one) in sizes[1:]]
        print(f"step: {steps[0].choice}")
        print(f"compiled in {steps[0].measurement.compile_s:.1f} s{steps[0].cache_use}")
        if args.profile is not None:
            steps[0].profile(args.profile)
        measured = measure_interleaved(steps, rounds=args.rounds, steps_per_round=args.steps)
        new = [m.row() for m in measured]
        if sizes:
            mean_ms = sum(
                share * row["step_ms"] for (_, (share, _)), row in zip(sizes, new, strict=True)
            )
            rate = config.data.global_batch_size / mean_ms * 1e3
            print(f"mean over the sizes as drawn: {mean_ms:,.1f} ms per step, {rate:,.1f} images/s")
        _show(new, config)
        rows += new
        del steps
        if args.output is not None:
            content = {"environment": environment(), "rows": rows}
            write_json(args.output, content)
    return 0


def _with_batch(config: Config, batch_size: int) -> Config:
    data = config.data.replace(global_batch_size=batch_size)
    return config.replace(data=data)


def _show(rows: list[dict[str, Any]], config: Config) -> None:
    import jax
    from rich.console import Console
    from rich.table import Table

    device = jax.devices()[0].device_kind
    table = Table(
        title=f"{config.model.name}, {config.data.image_size} px, batch {rows[0]['batch_size']}, "
        f"{config.model.dtype}, {jax.device_count()} x {device}",
        title_justify="left",
    )
    for column in ("step of", "images/s", "ms per step", "(min-max)", "MFU"):
        table.add_column(column, justify="left" if column == "step of" else "right")
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['images_per_second']:,.1f}",
            f"{row['step_ms']:,.1f}",
            f"({row['step_ms_min']:,.0f}-{row['step_ms_max']:,.0f})",
            "-" if row["mfu"] is None else f"{row['mfu']:.1%}",
        )
    Console().print(table)
