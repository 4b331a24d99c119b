"""Write a model as one StableHLO file that runs at any batch size, without this package.

python -m vit_jax export runs/b16 b16.stablehlo
"""

import argparse

from vit_jax.commands.load_options import add_load_arguments, load_model
from vit_jax.storage.paths import user_path

OVERRIDES = "--model."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("source", help="weights: file, folder, run folder; hf://, gs://, s3://")
    parser.add_argument("destination", type=user_path, help="file to write")
    parser.add_argument("--format", default="stablehlo", choices=("stablehlo",))
    add_load_arguments(parser)


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from vit_jax.interop.export import PLATFORMS, export_stablehlo
    from vit_jax.interop.save import check_new_path

    check_new_path(args.destination)
    loaded = load_model(args.source, args, overrides)
    shape = export_stablehlo(loaded, args.destination)
    size = args.destination.stat().st_size / 1e6
    height, width = loaded.image_size
    print(
        f"{loaded.options.name} written to {args.destination} ({size:.1f} MB):"
        f" f32[batch, {height}, {width}, 3] -> f32[{', '.join(shape)}],"
        f" for {', '.join(PLATFORMS)}"
    )
    return 0
