"""Measure the speed of the training step, of data loading or of single layers on this machine.

python -m vit_jax bench step --model=ViT-Ti/16 --batch_size=32
python -m vit_jax bench feed --config.data.name=cifar10 --config.data.data_dir=DATA --stages
python -m vit_jax bench layers --tokens=64,256,1024,4096 --widths=64,256 --backward
"""

import argparse

from vit_jax.commands import bench_feed, bench_layers, bench_step

_PARTS = {"step": bench_step, "feed": bench_feed, "layers": bench_layers}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parts = parser.add_subparsers(dest="what", metavar="step|feed|layers", required=True)
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
