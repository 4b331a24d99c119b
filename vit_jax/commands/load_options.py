"""Command-line arguments of the commands that load weights."""

import argparse
from typing import Any

from vit_jax.commands.arguments import positive, whole
from vit_jax.errors import ConfigError
from vit_jax.interop.normalization import NORMALIZATIONS
from vit_jax.models.options import ModelConfig
from vit_jax.schema import parse_override


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares how to load; `load_arguments` reads it."""
    parser.add_argument(
        "--image_size", type=_size, help="side, or HEIGHTxWIDTH; resamples positions"
    )
    parser.add_argument("--patch_size", type=positive, help="resamples the patch embedding")
    parser.add_argument("--num_classes", type=whole, help="of a new head; 0: none")
    parser.add_argument("--new_head", action="store_true", help="one that starts at zero")
    parser.add_argument("--grid", type=_size, help="ROWSxCOLUMNS of the file's position table")
    parser.add_argument(
        "--normalization", choices=tuple(NORMALIZATIONS),
        help="what the weights expect of images, where no config.json beside them says it",
    )  # fmt: skip
    parser.add_argument(
        "--position_resize", choices=("zoom", "bilinear", "bicubic"), default="zoom"
    )  # fmt: skip
    parser.add_argument("--allow_missing", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--allow_unexpected", action="append", default=[], metavar="PATTERN")


def load_arguments(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    """Returns the keyword arguments of `load` that the command line gives.

    Args:
        args: parsed arguments of `add_load_arguments`.
        overrides: "KEY=VALUE" of the model section, for what the file does not tell.
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
    """Returns the keys of the model section that a command line sets."""
    options = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"argument '--model.{text}'", "--model.KEY=VALUE", "correct it")
        options[key] = parse_override(ModelConfig, key, value)
    return options


def _size(text: str) -> int | tuple[int, int]:
    sides = [int(side) for side in text.split("x")]
    if len(sides) > 2 or min(sides) < 1:
        raise argparse.ArgumentTypeError("a side, or HEIGHTxWIDTH")
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])
