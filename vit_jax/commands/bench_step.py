"""Measure a full training step (forward, backward, clipping, AdamW) on synthetic images.

    python -m vit_jax bench step --model=ViT-Ti/16 --batch_size=32
    python -m vit_jax bench step --model=ViT-B/16,ViT-L/16 --batch_size=auto --dtype=bfloat16
    python -m vit_jax bench step --model=ViT-B/16 --compare=timm-compiled --output=bench.json
    python -m vit_jax bench step --model=ViT-B/16 --batch_size=128 --compare=attention

If PyTorch is installed (`pip install torch timm`), it alternates with the same step there.
`--compare=attention` alternates between the attention kernels of the device: the implementations of
`model.attention_implementation`, and on a TPU the kernels "flash" and "splash" that ship with JAX.
"""

import argparse
import os
from typing import Any

from vit_jax.commands.arguments import output_file, positive_int
from vit_jax.config.file import override_key
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError
from vit_jax.schema import parse_override
from vit_jax.storage.files import write_json
from vit_jax.storage.paths import user_path

# Overrides that do not change the model's computation.
_SAME_MATHS = ("model.scan", "model.remat", "model.attention_implementation")
_IN_PYTORCH = ("transformers", "timm", "timm-compiled")
COMPARISONS = (*_IN_PYTORCH, "attention")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("--model", default="ViT-Ti/16", help="one or more names, comma-separated")
    parser.add_argument(
        "--batch_size",
        default=32,
        type=lambda text: text if text == "auto" else positive_int(text),
        help="global, or auto: the fastest that fits",
    )
    parser.add_argument("--image_size", type=positive_int, default=224)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument(
        "--rounds", type=positive_int, default=5, help="alternating rounds; the table shows medians"
    )
    parser.add_argument("--steps", type=positive_int, default=2, help="steps per round")
    parser.add_argument(
        "--compare", default="transformers,timm", help=f"none, or some of {', '.join(COMPARISONS)}"
    )
    parser.add_argument("--output", type=output_file, help="JSON file for the results")
    parser.add_argument(
        "--profile",
        type=user_path,
        metavar="FOLDER",
        help="write a profiler trace of 2 steps of each model",
    )


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    # Leaves GPU memory for PyTorch.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    from vit_jax.bench.step import (
        JaxStep,
        attention_steps,
        fastest_batch_size,
        measure_interleaved,
    )
    from vit_jax.config.flexible import trained_variants
    from vit_jax.run.compile_cache import use_compile_cache
    from vit_jax.run.folder import environment
    from vit_jax.tasks.task import num_patches

    wanted = [] if args.compare == "none" else args.compare.split(",")
    for name in wanted:
        if name not in COMPARISONS:
            raise ConfigError(
                f"--compare={name}", f"none or some of {', '.join(COMPARISONS)}", "choose some"
            )
    changed = [
        o for o in overrides if o.startswith("model.") and o.split("=")[0] not in _SAME_MATHS
    ]
    in_pytorch = [name for name in wanted if name in _IN_PYTORCH]
    if in_pytorch and changed:
        raise ConfigError(
            f"--config.{changed[0]} with --compare",
            "the same model in both libraries",
            "add --compare=none",
        )
    rows: list[dict[str, Any]] = []
    for model in args.model.split(","):
        config = _config(args, model, overrides)
        if "attention" in wanted and not hasattr(config.model, "attention_implementation"):
            raise ConfigError(
                f"--compare=attention with {model}", "a ViT", "choose another comparison"
            )
        use_compile_cache(config.compile_cache, config.compile_cache_mb)
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
        steps: list[Any] = [JaxStep(config, label=sizes[0][0] if sizes else None)]
        steps += [JaxStep(one, shares=steps[0], label=name) for name, (_, one) in sizes[1:]]
        print(f"step: {steps[0].choice}")
        print(f"compiled in {steps[0].measurement.compile_s:.1f} s{steps[0].cache_use}")
        failed = []
        if "attention" in wanted:
            others, failed = attention_steps(config, steps[0])
            choice = steps[0].attention
            print(f"attention of vit_jax: {choice.implementation} ({choice.reason})")
            steps += others
        if args.profile is not None:
            steps[0].profile(args.profile)
        steps += _torch_steps(in_pytorch, config, steps[0].measurement.flops_per_image)
        measured = measure_interleaved(steps, rounds=args.rounds, steps_per_round=args.steps)
        new = [m.row() for m in measured]
        if sizes:
            mean_ms = sum(
                share * row["step_ms"] for (_, (share, _)), row in zip(sizes, new, strict=False)
            )
            rate = config.data.global_batch_size / mean_ms * 1e3
            print(f"mean over the sizes as drawn: {mean_ms:,.1f} ms per step, {rate:,.1f} images/s")
        new += [step.row(model, config.data.global_batch_size) for step in failed]
        _show(new, config)
        rows += new
        del steps
        if args.output is not None:
            content = {"environment": environment(), "rows": rows}
            write_json(args.output, content)
    return 0


def _config(args: argparse.Namespace, model: str, overrides: list[str]) -> Config:
    from vit_jax.models.two_towers import named_options

    batch_size = 32 if args.batch_size == "auto" else args.batch_size
    mapping: dict[str, Any] = {
        "model": {"name": model, "dtype": args.dtype},
        "data": {
            "name": "synthetic",
            "global_batch_size": batch_size,
            "image_size": args.image_size,
            "augment": {"flip": False},
        },
        "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.1, "clip_global_norm": 1.0},
        "train_steps": 1000,
    }
    pair = named_options(model)
    if pair is not None:
        mapping["task"] = "image_text"
        mapping["image_text"] = {"loss": "sigmoid" if "bias_init" in pair else "softmax"}
        mapping["data"]["captions"] = {"tokenizer": "synthetic"}
    for override in overrides:
        key, _, text = override.partition("=")
        override_key(mapping, key, parse_override(Config, key, text, mapping))
    return Config.from_mapping(mapping)


def _with_batch(config: Config, batch_size: int) -> Config:
    data = config.data.replace(global_batch_size=batch_size)
    return config.replace(data=data)


def _torch_steps(wanted: list[str], config: Config, flops_per_image: int) -> list[Any]:
    from vit_jax.bench.step import TorchMissingError, TorchStep

    steps = []
    for name in wanted:
        library, _, compiled = name.partition("-")
        try:
            steps.append(TorchStep(library, config, flops_per_image, compiled=bool(compiled)))
        except TorchMissingError as error:
            print(f"not compared with {name}: {error}")
    return steps


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
    for column in ("step of", "images/s", "ms per step", "(min-max)", "MFU", "vit_jax is"):
        table.add_column(column, justify="left" if column == "step of" else "right")
    for row in rows:
        if "problem" in row:
            table.add_row(row["name"], "-", "-", "", "-", row["problem"])
            continue
        ratio = rows[0]["images_per_second"] / row["images_per_second"]
        table.add_row(
            row["name"],
            f"{row['images_per_second']:,.1f}",
            f"{row['step_ms']:,.1f}",
            f"({row['step_ms_min']:,.0f}-{row['step_ms_max']:,.0f})",
            "-" if row["mfu"] is None else f"{row['mfu']:.1%}",
            "" if row is rows[0] else f"{ratio:.2f}x as fast",
        )
    Console().print(table)
