"""List the models, their sizes and costs.

    python -m vit_jax models
    python -m vit_jax models ViT-B/16 --image_size=384 --model.num_registers=4
    python -m vit_jax models ViT-B/16 R50+ViT-B/16 BiT-R50x1 Mixer-B/16 --dtype=bfloat16
    python -m vit_jax models ViT-B/16 --complexity

The figures are computed from the code, without training, downloading or running anything, and are
the same on every machine. `--complexity` compares one layer of self-attention, convolution and
recurrence at a model's size.
"""

import argparse
import dataclasses
import math
import os
import sys
from typing import TYPE_CHECKING

from vit_jax.commands.arguments import non_negative_int, positive_int
from vit_jax.commands.load_options import model_overrides
from vit_jax.errors import ConfigError
from vit_jax.models.options import ModelConfig
from vit_jax.shown_log import without_info_log
from vit_jax.tables import plain_table, wide_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vit_jax.models.costs import Cost
    from vit_jax.models.summary import Summary

OVERRIDES = "--model."
# More models than this take long enough to say so before.
_SOON = 10

_UNITS = (
    "1 GFLOP = 1e9 floating-point operations; 1 GMAC = 1e9 multiply-accumulates = 2 GFLOPs. Both"
    " count the matmuls and convolutions in the forward pass of one image. Papers mix the two."
)
_ACTIVATIONS = (
    "Activations: what a training step keeps per image from the forward to the backward pass,"
    " without parameters and the image; 1 MB = 1e6 bytes. Attention is computed as on a CPU; flash"
    " attention on a GPU keeps no attention weights."
)
_MEASURED = (
    "Parameters: counted in the modules.",
    "MACs: multiply-accumulates of one image, counted in the traced programs; 2 operations each.",
    "Steps wait for each other. Path: applications of the layer or cell until the last token"
    " depends on the first.",
    "Recurrence: h' = tanh(Wx + b + Uh); a GRU costs 3 times as much, an LSTM 4 times.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="e.g. ViT-B/16, any patch size; default: all"
    )
    parser.add_argument(
        "--image_size",
        type=positive_int,
        help="in pixels; default: 224, or 32 for Mini, Micro, Nano and Pico",
    )
    parser.add_argument(
        "--num_classes",
        type=non_negative_int,
        default=1000,
        help="of the head; 0: no head; default: 1000",
    )
    parser.add_argument(
        "--dtype", default="float32", choices=["float32", "bfloat16"], help="of the activations"
    )
    parser.add_argument(
        "--complexity",
        action="store_true",
        help="compare kinds of layers, as in arXiv:1706.03762, Table 1; default NAME: ViT-B/16",
    )


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    # Only shapes are computed, so accelerators stay free for training.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from vit_jax.models.registry import list_models
    from vit_jax.models.summary import summarize

    names = args.names or (["ViT-B/16"] if args.complexity else list_models())
    chosen, left_out = _choose(args, names, model_overrides(overrides))
    console = wide_console()
    if args.complexity:
        for options, image_size in chosen:
            _show_complexity(console, options, image_size)
        return 0
    title = f"{args.num_classes:,} classes, {chosen[0][0].dtype}"
    with without_info_log():
        if len(args.names) == 1:
            ((options, image_size),) = chosen
            classes = _classes(args, options)
            one = summarize(options, num_classes=classes, image_size=image_size)
            _show_one(console, title, options, one)
        else:
            _show_all(console, title, _costs(args, chosen), by_family=not args.names)
    if left_out:
        console.print(f"Left out: {len(left_out)} models without these options.")
    return 0


def _classes(args: argparse.Namespace, options: ModelConfig) -> int:
    from vit_jax.models.registry import family_of

    return args.num_classes if family_of(options.name).has_classes else 0


def _costs(args: argparse.Namespace, chosen: list[tuple[ModelConfig, int]]) -> "list[Cost]":
    """Returns the costs of the models: from the table of all models, or computed."""
    from vit_jax.models.costs import compute_cost, known_cost

    sizes = [
        (options, {"num_classes": _classes(args, options), "image_size": image_size})
        for options, image_size in chosen
    ]
    known = [known_cost(options, **size) for options, size in sizes]
    if (missing := known.count(None)) > _SOON:
        print(f"computing {missing} models, about {missing} s", file=sys.stderr)
    rows = zip(known, sizes, strict=True)
    return [cost or compute_cost(options, **size) for cost, (options, size) in rows]


def _choose(
    args: argparse.Namespace, names: list[str], overrides: dict
) -> tuple[list[tuple[ModelConfig, int]], list[str]]:
    """Returns the models with their image sizes, and the names without the given options."""
    from vit_jax.models.family import check_image_size
    from vit_jax.models.registry import default_image_size, model_options, model_shape
    from vit_jax.models.summary import fitting_image_size

    if "name" in overrides:
        raise ConfigError(
            f"'--model.name={overrides['name']}'",
            "the model's name without an option",
            f"write models {overrides['name']}",
        )
    chosen, left_out = [], []
    for name in names:
        try:
            options = model_options(name, dtype=args.dtype, **overrides)
        except ConfigError as error:
            if args.names:
                raise error.under("model") from None
            left_out.append(name)  # The model's family lacks one of the options.
            continue
        wanted = args.image_size or default_image_size(name)
        multiple = model_shape(options).image_multiple
        # Several models are compared at the next sizes that they support.
        if args.names and (len(args.names) == 1 or wanted < multiple):
            check_image_size((wanted, wanted), multiple, "patch size")
        chosen.append((options, fitting_image_size(options, wanted)))
    return chosen, left_out


def _figure(value: float, decimals: int = 2) -> str:
    """Returns a figure with these decimals, or three digits where they would not show it."""
    return f"{value:,.{decimals}f}" if value >= 0.1 else f"{value:.3g}"


def _show_all(console: "Console", title: str, found: "list[Cost]", *, by_family: bool) -> None:
    from vit_jax.models.registry import family_of

    table = plain_table(
        "model", right=("px", "tokens", "parameters", "GMACs", "GFLOPs", "activations")
    )
    last = None
    for one in found:
        family = family_of(one.name)
        if by_family and last not in (None, family):
            table.add_section()
        last = family
        table.add_row(
            one.name,
            str(one.image_size),
            "-" if one.tokens is None else f"{one.tokens:,}",
            f"{_figure(one.parameters / 1e6, 1)} M",
            _figure(one.macs / 1e9),
            _figure(2 * one.macs / 1e9),
            _megabytes(one.activation_bytes),
        )
    count = f"{len(found)} model{'s' * (len(found) > 1)}"
    _show(console, f"{count}, {title}", table, _UNITS, _ACTIVATIONS)


def _show_one(console: "Console", title: str, options: ModelConfig, one: "Summary") -> None:
    side = one.image_size
    table = plain_table("", right=("",), left="")
    for label, figure, note in one.sizes:
        table.add_row(label, figure, note)
    table.add_section()
    for part, count in one.parts.items():
        table.add_row(part, f"{count:,}", f"{count / one.parameters:.1%}")
    table.add_row("[bold]parameters", f"[bold]{one.parameters:,}", "")
    table.add_section()
    kept, weights = one.activations.total_bytes, one.activations.attention_bytes
    table.add_row("GMACs", _figure(one.macs / 1e9), "")
    table.add_row("GFLOPs", _figure(one.flops / 1e9), "2 x GMACs")
    table.add_row("activations", _megabytes(kept), "per image")
    if weights:
        table.add_row("  attention weights", _megabytes(weights), f"{weights / kept:.1%} of them")
    title = f"{options.name} at {side} x {side} px, {title}"
    _show(console, title, table, _UNITS, _ACTIVATIONS)


def _show_complexity(console: "Console", options: ModelConfig, image_size: int) -> None:
    from vit_jax.models.complexity import KERNEL, comparable_layers, count

    layers = comparable_layers(options, image_size)
    first = layers[0]
    table = plain_table("layer", right=("parameters", "MACs", "steps", "path"))
    for layer in layers:
        figures = dataclasses.astuple(count(layer))
        table.add_row(f"[bold]{layer.kind.name}", *(f"[bold]{n:,}" for n in figures))
        table.add_row("  formula", *layer.kind.formulas, end_section=True)
    title = (
        f"One layer of {options.name} at {image_size} px: N = {first.tokens:,} tokens,"
        f" G = {math.prod(first.grid):,} of them patches, D = {first.width:,}, K = {KERNEL}"
    )
    _show(console, title, table, *_MEASURED)


def _show(console: "Console", title: str, table: "Table", *notes: str) -> None:
    from rich.console import Console

    console.print(title, style="bold", markup=False)
    console.print(table)
    # Notes can be wrapped to the width of a narrow terminal.
    console = Console(highlight=False) if console.is_terminal else console
    for note in notes:
        console.print(note, style="dim", markup=False)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
