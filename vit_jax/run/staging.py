"""Checkpoints on s3://: Orbax writes them to a local disk, from where whole ones are uploaded.

Orbax 0.12 writes arrays to local disks and gs:// only. So a run of one process keeps a copy of its
checkpoints in the user's cache folder. Its checkpoints folder on s3:// has the same objects as one
on gs://; the last one that is written is the commit file.
"""

import hashlib
import logging
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from vit_jax.run.about import COMMIT_FILE, ORBAX_FILE, saved_steps
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import files_below, remove_tree
from vit_jax.storage.paths import cache_dir

log = logging.getLogger(__name__)

# Objects that are transferred at the same time.
_TRANSFERS = 16


class StagedFolder:
    """A checkpoints folder on s3:// and its copy on the local disk.

    Args:
        remote: the folder.

    Attributes:
        local: the copy.
    """

    def __init__(self, remote: BucketPath):
        name = hashlib.sha256(str(remote).encode()).hexdigest()[:16]
        self.remote, self.local = remote, cache_dir() / "checkpoints" / name
        self._push: Future[None] | None = None
        self._pushed: list[int] = []
        self._uploading: list[int] = []
        self._pool = ThreadPoolExecutor(1, "upload checkpoints")

    def pull(self, steps: Iterable[int] | None = None) -> None:
        """Downloads complete checkpoints that the copy lacks; deletes what is only in the copy.

        If objects of a checkpoint are missing that the copy has, it is uploaded again.

        Args:
            steps: steps to download; None: all.

        Raises:
            OSError: an object cannot be read.
        """
        there = saved_steps(self.remote)
        self.local.mkdir(parents=True, exist_ok=True)
        for path in self.local.iterdir():
            if not (path.name.isdigit() and int(path.name) in there and self._is_same(path)):
                remove_tree(path)
        for step in there if steps is None else steps:
            if not (self.local / str(step)).exists():
                self._download(step)
            elif missing := self._missing(step):
                log.warning("%s/%d lacks %s: uploaded again", self.remote, step, missing[0])
                self._upload(step)

    def uploading(self) -> list[int]:
        """Returns the steps that an upload may be reading."""
        return [] if self._push is None or self._push.done() else self._uploading

    def push_behind(self) -> None:
        """Starts to upload new checkpoints, unless an upload is under way or none is new.

        Nothing may be saving or deleting checkpoints in the copy when this is called. What is
        saved after that must leave the steps of `uploading` alone.

        Raises:
            OSError: the last upload failed.
        """
        if self._push is not None:
            if not self._push.done():
                return
            done, self._push = self._push, None
            done.result()
        steps = saved_steps(self.local)
        if steps != self._pushed:
            self._uploading = steps
            self._push = self._pool.submit(self._push_all, steps)

    def push(self) -> None:
        """Uploads new checkpoints, and deletes those that the run no longer keeps.

        Raises:
            OSError: an object cannot be written.
        """
        if self._push is not None:
            done, self._push = self._push, None
            done.result()
        self._push_all(saved_steps(self.local))

    def close(self) -> None:
        """Ends the thread."""
        self._pool.shutdown()

    def _push_all(self, steps: list[int]) -> None:
        """Uploads the steps that are missing, and deletes all others."""
        there = saved_steps(self.remote)
        for step in steps:
            if step not in there:
                remove_tree(self.remote / str(step))
                self._upload(step)
        for step in there:
            if step not in steps:
                # Without its commit file a checkpoint is incomplete.
                (self.remote / str(step) / COMMIT_FILE).unlink(missing_ok=True)
                remove_tree(self.remote / str(step))
        self._pushed = steps

    def _is_same(self, path: Path) -> bool:
        """Whether a checkpoint of the copy is whole and not that of another run.

        Another run may have had the same folder. Orbax's file holds the time of the save.
        """
        here, there = path / ORBAX_FILE, self.remote / path.name / ORBAX_FILE
        return here.exists() and (not there.exists() or here.read_bytes() == there.read_bytes())

    def _missing(self, step: int) -> list[str]:
        """Returns the names of files of the copy that the remote checkpoint lacks."""
        source, target = self.local / str(step), self.remote / str(step)
        there = {path.relative_to(target).as_posix() for path, _ in target.find()}
        here = {path.relative_to(source).as_posix() for path in files_below(source)}
        return sorted(here - there)

    def _upload(self, step: int) -> None:
        source, target = self.local / str(step), self.remote / str(step)
        files = [path for path in files_below(source) if path.name != COMMIT_FILE]
        with ThreadPoolExecutor(_TRANSFERS) as pool:
            list(pool.map(lambda p: (target / p.relative_to(source)).upload(p), files))
        (target / COMMIT_FILE).write_text(f"{len(files)} objects")

    def _download(self, step: int) -> None:
        source, target = self.remote / str(step), self.local / str(step)
        part = target.with_name(f"{step}.part")
        remove_tree(part)

        def fetch(path: BucketPath) -> None:
            place = part / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.download(place)

        with ThreadPoolExecutor(_TRANSFERS) as pool:
            list(pool.map(fetch, [path for path, _ in source.find()]))
        part.rename(target)
