"""Blocks of objects as files of a folder with a limited size, which several processes share."""

import contextlib
import errno
import logging
import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock

from vit_jax.errors import UserError
from vit_jax.storage.files import json_text, read_json, write_atomically

log = logging.getLogger(__name__)

# Files that a process maps; Linux allows 65,530.
_MAX_MAPPED = 1 << 14
# How full the cache may be, as a fraction of its limit, if the data does not fit into it.
_FILL = 0.9
# A process looks after the size of the cache when it has written this fraction of the limit.
_CHECK_FRACTION = 0.02
# Fraction of the disk that is left free for others.
_MIN_FREE_FRACTION = 0.05
# Age at which the unfinished file of a killed process is deleted.
_LEFTOVER_S = 3600.0


class BlockFiles:
    """Keeps blocks by name. Thread-safe; several processes may share the folder.

    `limit_bytes` is the size that the folder may have. `writable` is False after a block could not
    be written.
    """

    def __init__(self, folder: Path, limit_bytes: int):
        self._folder, self._limit = folder, limit_bytes
        self.writable = True
        self._unchecked = limit_bytes  # The first block that is written leads to a check.
        self._lock = threading.Lock()
        self._present: set[str] = set()  # Names of blocks that were seen on the disk.
        self._maps: dict[str, mmap.mmap] = {}  # Name of a block -> its file.

    @property
    def capacity(self) -> float:
        """Bytes of data that fit."""
        return self._limit * _FILL

    def has(self, name: str) -> bool:
        """Whether a block was seen on the disk."""
        if name not in self._present and self._path(name).exists():
            self._present.add(name)
        return name in self._present

    def open(self, name: str, size: int) -> mmap.mmap | None:
        """Maps the file of a block into memory; None: it does not exist, or has another size.

        To read a mapped file takes no system call. After each call a thread would wait until the
        others give the interpreter's lock back, which halves the speed of small records.
        """
        if (found := self._maps.get(name)) is not None:
            return found
        try:
            with self._path(name).open("rb") as file:
                found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # An empty file is a ValueError.
            found = None
        if found is None or len(found) != size:
            self._present.discard(name)  # Another process has deleted it, or it is damaged.
            with contextlib.suppress(OSError):
                self._path(name).unlink()
            return None
        with self._lock:
            if len(self._maps) >= _MAX_MAPPED:
                del self._maps[next(iter(self._maps))]
            self._maps[name] = found
        return found

    def get(self, name: str, size: int, request: Callable[[], bytes]) -> bytes:
        """Returns a block from the disk, or requests and keeps it."""
        with self._only_process(name):
            try:  # Another process may just have read it.
                content = self._path(name).read_bytes()
            except OSError:
                content = b""
            if len(content) == size or self._store(name, content := request()):
                self._present.add(name)
            return content

    def remembered(self, name: str, compute: Callable[[], list[Any]]) -> list[Any]:
        """Returns the list kept under `name`, or computes it. A new list has a new name."""
        path = self._folder / "lists" / f"{name}.json"
        with contextlib.suppress(UserError):
            return read_json(path, list)
        found = compute()
        with contextlib.suppress(OSError):
            write_atomically(path, json_text(found, what=name))
        return found

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name

    @contextlib.contextmanager
    def _only_process(self, name: str) -> Iterator[None]:
        """Lets one of several processes fetch a block while the others wait."""
        with contextlib.ExitStack() as stack:
            # Without locks, or in a folder that cannot be written, each process reads it.
            with contextlib.suppress(OSError, NotImplementedError):
                path = self._folder / "locks" / name[:3]
                path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(filelock.FileLock(path, poll_interval=0.01))
            yield

    def _store(self, name: str, content: bytes) -> bool:
        """Writes a block, whole or not at all. Returns whether it is there."""
        path = self._path(name)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            self._check_size(len(content))
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # A crash of the machine must not leave a file of zeros.
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            if self.writable:
                self.writable = False
                log.warning("cannot cache data in %s: %s", self._folder, error.strerror or error)
            return False
        return True

    def _check_size(self, num_bytes: int) -> None:
        """Deletes the oldest blocks if the folder exceeds its limit."""
        with self._lock:
            self._unchecked += num_bytes
            if self._unchecked < self._limit * _CHECK_FRACTION:
                return
        self._folder.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(self._folder)
        if disk.free < _MIN_FREE_FRACTION * disk.total:
            raise OSError(errno.ENOSPC, f"less than {_MIN_FREE_FRACTION:.0%} of the disk is free")
        with self._lock:
            self._unchecked = 0
        with (
            contextlib.suppress(filelock.Timeout, NotImplementedError),  # Another one does it.
            filelock.FileLock(self._folder / "size.lock", timeout=0),
        ):
            _shrink(self._folder, self._limit)


def _shrink(folder: Path, limit: int) -> None:
    """Deletes the oldest blocks until the folder is below its limit, and what killed ones left."""
    blocks, total, now = [], 0, time.time()
    for group in [entry for entry in os.scandir(folder) if len(entry.name) == 2]:
        for entry in os.scandir(group):
            with contextlib.suppress(FileNotFoundError):
                facts = entry.stat()
                if entry.name.startswith("."):
                    if now - facts.st_mtime > _LEFTOVER_S:
                        Path(entry).unlink()
                    continue
                blocks.append((facts.st_mtime, facts.st_size, entry.path))
                total += facts.st_size
    if total <= limit:
        return
    for _, size, path in sorted(blocks):
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()
        total -= size
        if total <= limit * _FILL:
            return
