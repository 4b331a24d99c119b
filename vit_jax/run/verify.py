"""Reads all arrays of a checkpoint, one at a time, and compares them with their digests."""

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from vit_jax.errors import CheckpointError, DamagedError
from vit_jax.named_tree import leaf_names, named_leaves
from vit_jax.run.about import COMMIT_FILE, choose_checkpoint, incomplete_steps, saved_steps
from vit_jax.run.damage import check_arrays, read_about, read_item
from vit_jax.run.digest import array_digest
from vit_jax.storage.files import local_copy
from vit_jax.storage.paths import is_bucket

# Least time between two lines about the same item.
_PROGRESS_INTERVAL_S = 10.0


def checkpoints_of(path: Path) -> list[Path]:
    """Returns the folders of all checkpoints of a run, or the one that a path names."""
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    steps = saved_steps(folder)
    if not is_bucket(folder):  # There, these are saves that are not complete yet.
        steps = sorted(steps + incomplete_steps(folder))
    return [folder / str(step) for step in steps] or [choose_checkpoint(path)]


def verify_checkpoint(at: Path, show: Callable[[str], None]) -> list[str]:
    """Returns what is damaged in a checkpoint. `show` is called with lines about the progress."""
    show(str(at))
    found: list[str] = []
    try:
        with local_copy(at) as here:
            if not (here / COMMIT_FILE).exists():
                return [f"it has no {COMMIT_FILE}"]
            about = read_about(here)
            for item in ("data", "config"):
                try:
                    read_item(here, item, about)
                except CheckpointError as error:
                    found.append(error.got)
            for item, rows in about["arrays"].items():
                damage = list(_damaged_arrays(here, item, about, show))
                size = sum(_size_bytes(row) for row in rows.values())
                state = f"{len(damage)} damaged" if damage else "good"
                show(f"  {item}: {len(rows)} arrays, {size / 1e6:,.2f} MB, {state}")
                found += damage
    except CheckpointError as error:
        found.append(error.got)
    return found


def restore_numpy(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of an item, given its folder or bucket, in host memory."""
    # A Checkpointer would warn that the item has no metadata of a whole checkpoint.
    handler = ocp.PyTreeCheckpointHandler()
    with local_copy(path) as local, contextlib.closing(handler):
        folder = epath.Path(local.absolute())
        tree = handler.metadata(folder).tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        args = ocp.args.PyTreeRestore(restore_args=as_numpy)
        return named_leaves(handler.restore(folder, args=args))


def unreadable_reason(error: Exception) -> str:
    """Returns one line about an error of Orbax, with the name of the array if the error has it."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    array = re.search(r'Error reading "([^"/]+)/[^"]*" in OCDBT database at .*?/(\w+)/"', line)
    if array is None:
        return f"it cannot be read: {line[:200]}"
    cause = line[array.end() :].strip(": ")
    return f"array '{array[2]}/{array[1].replace('.', '/')}' cannot be read: {cause[:200]}"


def _damaged_arrays(
    at: Path, item: str, about: dict[str, Any], show: Callable[[str], None]
) -> Iterator[str]:
    rows, path, shown = about["arrays"][item], (at / item).absolute(), time.monotonic()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        try:
            tree = checkpointer.metadata(path).item_metadata.tree
            names, leaves = leaf_names(tree), jax.tree.leaves(tree)
        except Exception as error:  # Orbax raises many classes for damaged files.
            yield f"'{item}' cannot be read: {_first_line(error)}"
            return
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        for i, name in enumerate(names):
            only = [leaf if i == k else ocp.PLACEHOLDER for k, leaf in enumerate(leaves)]
            wanted = jax.tree.unflatten(jax.tree.structure(tree), only)
            args = ocp.args.PyTreeRestore(item=wanted, restore_args=as_numpy)
            try:
                array = jax.tree.leaves(checkpointer.restore(path, args=args))[i]
                check_arrays(at, about, {item: {name: array_digest(array)}})
            except DamagedError:
                yield f"array '{item}/{name}' differs from what was saved"
            except Exception as error:
                yield f"array '{item}/{name}' cannot be read: {_first_line(error)}"
            if time.monotonic() > shown + _PROGRESS_INTERVAL_S:
                shown = time.monotonic()
                show(f"  {item}: {i + 1} of {len(names)} arrays read")
        for name in sorted(rows.keys() - set(names)):
            yield f"array '{item}/{name}' is missing"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _size_bytes(row: dict[str, Any]) -> int:
    return math.prod(row["shape"]) * jax.numpy.dtype(row["dtype"]).itemsize
