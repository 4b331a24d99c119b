"""Measure the speed of the training step or of data loading on this machine.

python -m vit_jax bench step --model=ViT-Ti/16 --batch_size=32
python -m vit_jax bench feed --config.data.name=cifar10 --config.data.data_dir=DATA
"""

import argparse

from vit_jax.commands import bench_feed, bench_step

_PARTS = {"step": bench_step, "feed": bench_feed}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parts = parser.add_subparsers(dest="what", metavar="step|feed", required=True)
    for name, module in _PARTS.items():
        part = parts.add_parser(
            name,
            description=module.__doc__,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(part)


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    return _PARTS[args.what].run(args, overrides)
