"""Verify that all arrays of checkpoints are as saved.

    python -m vit_jax checkpoint verify runs/quickstart
    python -m vit_jax checkpoint verify runs/quickstart/checkpoints/1000

The path is a run folder, its checkpoints folder, or the folder of one step. No accelerator is used.
"""

import argparse
import os
from functools import partial
from pathlib import Path

from vit_jax.errors import ConfigError, DamagedError, first_few
from vit_jax.storage.paths import user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    what = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    verify = what.add_parser("verify", help="compare all arrays with the checksums of the save")
    verify.add_argument(
        "path", type=user_path, help="run folder, its checkpoints folder or one step"
    )


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    if overrides:
        raise ConfigError(
            f"argument '--config.{overrides[0]}'",
            "the arguments of python -m vit_jax checkpoint",
            "see python -m vit_jax checkpoint --help",
        )
    # Only files are read. An accelerator may be in use by a training run.
    os.environ["JAX_PLATFORMS"] = "cpu"
    return _verify(args.path)


def _verify(path: Path) -> int:
    """Raises DamagedError after all checkpoints are read, if one of them is damaged."""
    from vit_jax.run.verify import checkpoints_of, verify_checkpoint

    places = checkpoints_of(path)
    damage = {at: verify_checkpoint(at, partial(print, flush=True)) for at in places}
    damaged = [f"{at.name} ({first_few(found, 3)})" for at, found in damage.items() if found]
    if damaged:
        raise DamagedError(
            f"{len(damaged)} of {len(places)} checkpoints in {places[0].parent} are damaged:"
            f" step {first_few(damaged, 4, '; step ')}",
            "the content that was saved",
            "use another step, or restore the folders from a copy",
        )
    print(f"no damage found in {len(places)} checkpoint{'s' if len(places) != 1 else ''}")
    return 0
