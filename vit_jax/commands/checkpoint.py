"""Inspect a checkpoint without reading its arrays, or verify that all arrays are as saved.

    python -m vit_jax checkpoint inspect runs/quickstart
    python -m vit_jax checkpoint inspect runs/quickstart/checkpoints/1000 --json
    python -m vit_jax checkpoint verify runs/quickstart

The path is a run folder, its checkpoints folder, or the folder of one step. For a run, `inspect`
shows the latest step, or the best step if early stopping ended the run, and `verify` reads all
checkpoints. No accelerator is used.
"""

import argparse
import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit_jax.errors import ConfigError, DamagedError, first_few
from vit_jax.storage.files import json_text
from vit_jax.storage.paths import user_path

if TYPE_CHECKING:
    from vit_jax.run.about import CheckpointInfo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    what = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    inspect = what.add_parser("inspect", help="print arrays, config, step and git revision")
    inspect.add_argument(
        "path", type=user_path, help="run folder, its checkpoints folder or one step"
    )
    verify = what.add_parser("verify", help="compare all arrays with the checksums of the save")
    verify.add_argument(
        "path", type=user_path, help="run folder, its checkpoints folder or one step"
    )
    inspect.add_argument("--json", action="store_true", help="print one JSON object")


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
    if args.what == "verify":
        return _verify(args.path)
    from vit_jax.run.about import read_checkpoint_info

    about = read_checkpoint_info(args.path)
    if args.json:
        content = dataclasses.asdict(about) | {"path": str(about.path)}
        print(json_text(content, what=str(about.path), indent=2))
    else:
        print("\n".join(_lines(about)))
    return 0


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


def _lines(about: "CheckpointInfo") -> Iterator[str]:
    origin = about.environment
    yield f"{about.path}"
    yield f"step            {about.step:,}"
    if about.other_steps:
        yield f"other steps     {', '.join(f'{s:,}' for s in about.other_steps)}"
    yield f"git revision    {origin['git_revision'] or 'unknown: not run from a git checkout'}"
    yield (
        f"written on      {origin['device_count']} {origin['device_kind']},"
        f" {origin['host_count']} host{'s' if origin['host_count'] != 1 else ''}"
    )
    yield f"packages        {', '.join(f'{k} {v}' for k, v in origin['packages'].items())}"
    for key, value in about.data.items():
        yield f"{'data ' + key.replace('_', ' '):15} {value}"
    for item, arrays in about.arrays.items():
        yield from _array_lines(item, arrays)
    yield "\nconfig"
    for key, value in _flat(about.config):
        yield f"  {key} = {json.dumps(value)}"


def _array_lines(item: str, arrays: dict[str, dict[str, Any]]) -> Iterator[str]:
    sizes = {name: math.prod(row["shape"]) for name, row in arrays.items()}
    num_bytes = sum(sizes[name] * _itemsize(row["dtype"]) for name, row in arrays.items())
    yield (
        f"\n{item}: {len(arrays)} arrays, {sum(sizes.values()):,} values, {num_bytes / 1e6:,.2f} MB"
    )
    width = max(map(len, arrays), default=0)
    shapes = {name: "x".join(map(str, row["shape"])) or "scalar" for name, row in arrays.items()}
    widest = max(map(len, shapes.values()), default=0)
    for name, row in arrays.items():
        yield f"  {name:{width}}  {shapes[name]:{widest}}  {row['dtype']}"


def _itemsize(dtype: str) -> int:
    import jax.numpy as jnp

    return jnp.dtype(dtype).itemsize


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
