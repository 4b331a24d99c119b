"""Write weights in the format of another project.

Each model family has its own formats, e.g. vision_transformer, transformers and timm for ViTs.
`orbax` is ours and holds every model. The error for an unknown format lists all names.

python -m vit_jax convert runs/b16 b16.npz --format=vision_transformer
python -m vit_jax convert B_16.npz vit-b16 --format=transformers --image_size=384
"""

import argparse

from vit_jax.commands.load_options import add_load_arguments, load_model
from vit_jax.storage.paths import user_path

OVERRIDES = "--model."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("source", help="weights: file, folder, run folder; hf://, gs://, s3://")
    parser.add_argument("destination", type=user_path, help="new .npz file or folder")
    parser.add_argument("--format", required=True, help="format to write, see above")
    add_load_arguments(parser)


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from vit_jax.interop.save import check_format, check_new_path, save

    check_format(args.format)
    check_new_path(args.destination)
    loaded = load_model(args.source, args, overrides)
    save(loaded, args.destination, args.format)
    print(f"{loaded.options.name} written to {args.destination} as {args.format}")
    return 0
