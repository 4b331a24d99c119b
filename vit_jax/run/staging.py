"""Checkpoints on s3://: Orbax writes them to a local disk, from where whole ones are uploaded.

Orbax 0.12 writes arrays to local disks and gs:// only. So a process copies the checkpoints of its
run to a folder of its own in the user's cache folder. The folder on s3:// has the same objects as
one on gs://; the last one that is written is the commit file.
"""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from vit_jax.run.about import COMMIT_FILE, ORBAX_FILE, saved_steps
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import files_below, remove_tree
from vit_jax.storage.lock import is_locked, locked
from vit_jax.storage.paths import cache_dir

# Objects that are transferred at the same time.
_TRANSFERS = 16


class StagedFolder:
    """A checkpoints folder on s3:// and this process's copy of it, which `close` deletes.

    Args:
        remote: the folder.

    Attributes:
        local: the copy.

    Raises:
        OSError: the copy cannot be made.
    """

    def __init__(self, remote: BucketPath):
        copies = cache_dir() / "checkpoints"
        self._own = copies / uuid.uuid4().hex
        self.remote, self.local, self._links = remote, self._own / "steps", self._own / "links"
        self._push: Future[None] | None = None
        self._pushed: list[int] = []
        self._held = contextlib.ExitStack()
        self._held.enter_context(locked(_lock_of(self._own)))
        self.local.mkdir(parents=True)
        for other in copies.iterdir():
            if other.is_dir() and not is_locked(_lock_of(other)):  # Its process was killed.
                _remove(other)
        self._pool = ThreadPoolExecutor(1, "upload checkpoints")

    def pull(self, steps: Iterable[int] | None = None) -> None:
        """Downloads complete checkpoints that the copy lacks.

        Args:
            steps: steps to download; None: all.

        Raises:
            OSError: an object cannot be read.
        """
        for step in saved_steps(self.remote) if steps is None else steps:
            if not (self.local / str(step)).exists():
                self._download(step)

    def push_behind(self) -> None:
        """Starts to upload new checkpoints, unless an upload is under way or none is new.

        Nothing may be saving or deleting checkpoints in the copy when this is called. What is
        deleted after that is uploaded all the same.

        Raises:
            OSError: the last upload failed.
        """
        if self._push is not None:
            if not self._push.done():
                return
            done, self._push = self._push, None
            done.result()
        if saved_steps(self.local) != self._pushed:
            self._push = self._pool.submit(self._push_all, self._link_steps())

    def push(self) -> None:
        """Uploads new checkpoints, and deletes those that the run no longer keeps.

        Raises:
            OSError: an object cannot be written.
        """
        if self._push is not None:
            done, self._push = self._push, None
            done.result()
        self._push_all(self._link_steps())

    def close(self) -> None:
        """Waits for the upload that is under way and deletes the copy."""
        self._pool.shutdown()
        with contextlib.suppress(OSError):  # The next process deletes it.
            _remove(self._own)
        self._held.close()

    def _link_steps(self) -> list[int]:
        """Makes hard links to all new checkpoints and returns the steps of all checkpoints."""
        steps = saved_steps(self.local)
        for step in steps:
            if step not in self._pushed:
                links = self._links / str(step)
                remove_tree(links)
                shutil.copytree(self.local / str(step), links, copy_function=_link)
        return steps

    def _push_all(self, steps: list[int]) -> None:
        """Uploads the steps that are missing, then deletes older ones that are not among them."""
        there = saved_steps(self.remote)
        for step in steps:
            if step not in there:
                self._upload(step)
            remove_tree(self._links / str(step))
        for step in there:
            if step not in steps and step < max(steps, default=0):
                # Without its commit file a checkpoint is incomplete.
                (self.remote / str(step) / COMMIT_FILE).unlink(missing_ok=True)
                remove_tree(self.remote / str(step))
        self._pushed = steps

    def _upload(self, step: int) -> None:
        source, target = self._links / str(step), self.remote / str(step)
        remove_tree(target)
        files = [path for path in files_below(source) if path.name != COMMIT_FILE]
        if source / ORBAX_FILE not in files:
            raise FileNotFoundError(f"checkpoint {source} is not complete")
        with ThreadPoolExecutor(_TRANSFERS) as pool:
            list(pool.map(lambda p: (target / p.relative_to(source)).upload(p), files))
        (target / COMMIT_FILE).write_text("")

    def _download(self, step: int) -> None:
        source, target = self.remote / str(step), self.local / str(step)
        part = target.with_name(f"{step}.part")

        def fetch(path: BucketPath) -> None:
            place = part / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.download(place)

        with ThreadPoolExecutor(_TRANSFERS) as pool:
            list(pool.map(fetch, [path for path, _ in source.find()]))
        part.rename(target)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # The file system has no hard links.
        shutil.copyfile(source, target)


def _lock_of(copy: Path) -> Path:
    """Returns the lock that the process of a copy holds."""
    return copy.with_name(f"{copy.name}.lock")


def _remove(copy: Path) -> None:
    remove_tree(copy)
    _lock_of(copy).unlink(missing_ok=True)
