"""Copies of the training state on the hosts' own disks, between the checkpoints in the run folder.

A copy costs no network: each process writes what its devices hold to a file on its disk. A run that
starts again takes the newest step that all processes still have, if it is newer than the newest
checkpoint. So a host that has lost its disk sends the run back to the checkpoint, and so does
another number of processes or another mesh.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import uuid
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vit_jax.named_tree import named_leaves
from vit_jax.parallel.processes import gather, on_first_host
from vit_jax.run.checkpoints import ARRAYS
from vit_jax.run.restore import Restored
from vit_jax.storage.files import json_text, read_json, remove_tree, write_json

log = logging.getLogger(__name__)

# Copies that are kept. A process may die while it writes the newest.
_KEEP = 2
_DESCRIPTION = "description"


def run_id(run_folder: Path) -> str:
    """Returns the id of a run, equal on all processes; the first start makes it.

    A new run in the folder of a deleted one has another id, so that it does not take its copies.
    """

    def read_or_make() -> str:
        path = run_folder / "run_id.json"
        if not path.exists():
            write_json(path, {"id": uuid.uuid4().hex})
        return read_json(path)["id"]

    return on_first_host("read the id of the run", read_or_make)


class LocalTier:
    """The copies of one run on this process's disk.

    If a copy cannot be written, a warning is logged and the run goes on.

    Args:
        folder: folder on a local disk; several runs may share it.
        run: id of the run.
        abstract: item name -> tree of `jax.ShapeDtypeStruct` with shardings.
    """

    def __init__(self, folder: Path, run: str, abstract: dict[str, Any]):
        place = f"process-{jax.process_index()}-of-{jax.process_count()}"
        self._run_folder = folder / run
        self._folder, self._abstract = self._run_folder / place, abstract
        self._layout = _hash_of_layout(abstract)
        with contextlib.suppress(OSError):
            self._unfinished.unlink()  # A killed process has left it.
        self._pool = ThreadPoolExecutor(1, "local tier")
        self._writing: Future[None] | None = None

    @property
    def _unfinished(self) -> Path:
        return self._folder / ".tmp"

    def newest(self) -> int | None:
        """Returns the newest step that all processes have; None: there is none."""
        self.wait()
        steps = gather("compare local copies", sorted(self._files()))
        common = set(steps[0]).intersection(*steps[1:])
        return max(common, default=None)

    def save(self, step: int, state: Any, data: dict[str, Any], config: dict[str, Any]) -> None:
        """Copies the state off the devices, then writes it in the background.

        Args:
            step: number of updates made.
            state: the training state.
            data: position in the example order, JSON.
            config: the run's config, JSON.
        """
        self.wait()
        arrays = {}
        for key, array in _leaves({i: getattr(state, ARRAYS[i]) for i in self._abstract}):
            for shard in array.addressable_shards:
                name = f"{key}@{_text(shard.index, array.shape)}"
                if name not in arrays:  # The others are replicas.
                    # On a CPU, numpy would share the memory that the next step overwrites.
                    arrays[name] = np.array(shard.data, copy=True)
        about = {"step": step, "data": data, "config": config}
        description = json_text(about, what="the description of a copy").encode()
        arrays[_DESCRIPTION] = np.frombuffer(description, np.uint8)
        self._writing = self._pool.submit(self._write, step, arrays)

    def wait(self) -> None:
        """Waits until the last copy is written."""
        if self._writing is not None:
            try:
                self._writing.result()
            except OSError as error:
                log.warning("no copy of the state in %s: %s", self._folder, error)
            self._writing = None

    def restore(self, step: int) -> Restored | None:
        """Reads a copy; returns None on all processes if one of them cannot read its file.

        Args:
            step: a step that all processes have.
        """
        self.wait()
        try:
            found = self._read(step)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            log.warning("the copy of step %d in %s is damaged: %s", step, self._folder, error)
            found = None
        return found if all(gather("read local copies", found is not None)) else None

    def _read(self, step: int) -> Restored:
        with np.load(self._files()[step], allow_pickle=False) as file:
            description = json.loads(file[_DESCRIPTION].tobytes())

            def read(key: str, leaf: jax.ShapeDtypeStruct) -> jax.Array:
                assert leaf.sharding is not None
                return jax.make_array_from_callback(
                    leaf.shape,
                    leaf.sharding,
                    # numpy reads a type that it does not know as bytes.
                    lambda index: file[f"{key}@{_text(index or (), leaf.shape)}"].view(leaf.dtype),
                )

            found = [read(key, leaf) for key, leaf in _leaves(self._abstract)]
        arrays = jax.tree.unflatten(jax.tree.structure(self._abstract), found)
        return Restored(step, arrays, description["data"], description["config"])

    def remove(self) -> None:
        """Deletes all copies of the run on this disk."""
        self.wait()
        remove_tree(self._folder)
        with contextlib.suppress(OSError):  # Another process of this host has copies there.
            self._run_folder.rmdir()

    def close(self) -> None:
        """Waits until the last copy is written, and ends the thread."""
        self.wait()
        self._pool.shutdown()

    def _files(self) -> dict[int, Path]:
        """Returns the complete copies with the layout of this run: step -> file."""
        found = self._folder.glob(f"*-{self._layout}.npz") if self._folder.is_dir() else ()
        return {int(p.name.partition("-")[0]): p for p in found if re.match(r"\d+-", p.name)}

    def _write(self, step: int, arrays: dict[str, np.ndarray]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._unfinished
        try:
            with temporary.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._folder / f"{step}-{self._layout}.npz")
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        files = self._files()
        for old in sorted(files)[:-_KEEP]:
            files[old].unlink()
        self._remove_others()

    def _remove_others(self) -> None:
        """Deletes copies that were cut in another way, or for another number of processes."""
        for path in self._folder.glob("*.npz"):
            if not path.name.endswith(f"-{self._layout}.npz"):
                path.unlink(missing_ok=True)
        for folder in self._run_folder.iterdir():
            if not folder.name.endswith(f"-of-{jax.process_count()}"):
                shutil.rmtree(folder, ignore_errors=True)


def _leaves(items: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields ("ITEM/NAME", leaf) in the order of `jax.tree.leaves`."""
    for item in sorted(items):
        for name, leaf in named_leaves(items[item]).items():
            yield f"{item}/{name}", leaf


def _text(index: tuple[slice, ...], shape: tuple[int, ...]) -> str:
    """Returns the text of a part of an array.

    >>> _text((slice(0, 2), slice(None)), (4, 3))
    '0:2,0:3'
    """
    bounds = [part.indices(size) for part, size in zip(index, shape, strict=True)]
    return ",".join(f"{start}:{stop}" for start, stop, _ in bounds)


def _hash_of_layout(abstract: dict[str, Any]) -> str:
    """Returns a hash of the names, shapes, types and parts of arrays that this process holds."""
    rows = []
    for key, leaf in _leaves(abstract):
        parts = leaf.sharding.addressable_devices_indices_map(leaf.shape).values()
        rows.append([key, str(leaf.dtype), leaf.shape, sorted(_text(p, leaf.shape) for p in parts)])
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:12]
