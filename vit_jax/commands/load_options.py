"""Command-line arguments of the commands that load weights."""

import argparse
from typing import TYPE_CHECKING, Any

from vit_jax.commands.arguments import non_negative_int, positive_int
from vit_jax.errors import ConfigError, WeightsError
from vit_jax.interop.normalization import NORMALIZATIONS
from vit_jax.models.image_families import any_image_config
from vit_jax.schema import parse_override

if TYPE_CHECKING:
    from vit_jax.interop.load import Loaded


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that `load_arguments` reads."""
    group = parser.add_argument_group("loading")
    add = group.add_argument
    add(
        "--image_size",
        type=_size,
        help="side, or HEIGHTxWIDTH, in pixels; resamples the position table",
    )
    add("--patch_size", type=positive_int, help="resamples the patch embedding to this patch size")
    add("--num_classes", type=non_negative_int, help="number of classes of a new head; 0: no head")
    add("--new_head", action="store_true", help="replace the head by one that starts at zero")
    add("--grid", type=_size, help="ROWSxCOLUMNS of the file's position table; default: square")
    add(
        "--normalization",
        choices=tuple(NORMALIZATIONS),
        help="image normalisation that the weights expect, if no config.json has it",
    )
    add(
        "--position_resize",
        choices=("zoom", "bilinear", "bicubic"),
        default="zoom",
        help="how to resample the position table (zoom, as in the ViT paper)",
    )
    for name, kind in (("missing", "parameters"), ("unexpected", "tensors")):
        add(
            f"--allow_{name}",
            action="append",
            default=[],
            metavar="PATTERN",
            help=f"regular expression of {kind} that may be {name}; repeatable",
        )


# Argument of `load` -> the flag that sets it.
_FLAGS = {
    **{
        name: f"--{name}"
        for name in (
            "image_size", "patch_size", "num_classes", "grid", "normalization", "allow_missing",
            "allow_unexpected", "position_resize",
        )
    },
    "keep_head": "--new_head",
    "num_heads": "--model.num_heads",
}  # fmt: skip


def load_model(
    address: str,
    args: argparse.Namespace,
    overrides: list[str],
    *,
    seed: int = 0,
    quiet: bool = False,
) -> "Loaded":
    """Loads weights with the arguments of the command line, and prints the report.

    Args:
        address: the weights.
        args: parsed arguments of `add_load_arguments`.
        overrides: "KEY=VALUE" of the model section.
        seed: for parameters that the file does not contain.
        quiet: do not print the report.

    Raises:
        WeightsError: see `load`. It names the flag that would fix it.
    """
    from vit_jax.interop.load import load

    try:
        loaded = load(address, seed=seed, **load_arguments(args, overrides))
    except WeightsError as error:
        raise error.renamed(_FLAGS) from None
    if not quiet:
        loaded.report.print(brief=True)
    return loaded


def load_arguments(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    """Returns the keyword arguments of `load` that the command line gives.

    Args:
        args: parsed arguments of `add_load_arguments`.
        overrides: "KEY=VALUE" of the model section, for options that the file does not determine.
    """
    options = model_overrides(overrides)
    return {
        "image_size": args.image_size,
        "patch_size": args.patch_size,
        "num_classes": args.num_classes,
        "keep_head": False if args.new_head else None,
        "grid": (args.grid, args.grid) if isinstance(args.grid, int) else args.grid,
        "normalization": NORMALIZATIONS.get(args.normalization),
        "position_resize": args.position_resize,
        "allow_missing": tuple(args.allow_missing),
        "allow_unexpected": tuple(args.allow_unexpected),
        **options,
    }


def model_overrides(overrides: list[str]) -> dict[str, Any]:
    """Returns the options of the model section that a command line sets."""
    options = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"argument '--model.{text}'", "--model.KEY=VALUE", "correct it")
        options[key] = parse_override(any_image_config(), key, value)
    return options


def _size(text: str) -> int | tuple[int, int]:
    sides = [int(side) for side in text.split("x")]
    if len(sides) > 2 or min(sides) < 1:
        raise argparse.ArgumentTypeError("a side, or HEIGHTxWIDTH")
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])
