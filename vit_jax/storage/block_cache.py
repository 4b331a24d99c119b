"""Reads parts of objects in buckets ahead of time and keeps them in a cache on the local disk.

An object is divided into blocks of 1 MiB. If all data fits into the cache, each block is read once,
by one request, and kept as a file; later reads, of any process and after a restart, come from that
file. A block is named by `StoredObject.key` and its number, so a new version of an object has new
blocks.

If the data does not fit, a fixed share of the blocks, chosen by the hash, is kept and stays. The
other parts are read into memory exactly as they are asked for, neighbours in one request. A cache
that drops what was used longest ago would never find anything: a shuffled epoch comes back to a
record after it has read all others.

Requests run in the background, many at a time, so that a store with a long latency is as fast as
one nearby.
"""

import contextlib
import errno
import functools
import logging
import mmap
import os
import queue
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import filelock

from vit_jax.errors import UserError
from vit_jax.storage.bucket_path import StoredObject
from vit_jax.storage.files import json_text, read_json, write_atomically
from vit_jax.storage.paths import cache_dir

log = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
DEFAULT_LIMIT_GB = 50.0
# Requests at a time.
_THREADS = 48
# Parts of an object that are this close are read by one request of up to this size.
_MAX_GAP_BYTES = 1 << 16
_MAX_REQUEST_BYTES = 8 << 20
# Parts that were read ahead and not yet used; the oldest are dropped first.
_MAX_HELD_BYTES = 2 << 30
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


class Part(NamedTuple):
    """Bytes `start` to `stop` (not included) of an object."""

    object: StoredObject
    start: int
    stop: int


class BlockCache:
    """Reads parts of objects. Thread-safe; several processes may share the folder.

    Without a folder, nothing is kept. `limit_bytes` is the size that the folder may have. Each
    process that writes may exceed it by 2 %, and the space of a deleted block is free when the
    processes that use it have ended.
    """

    def __init__(self, folder: Path | None, limit_bytes: int):
        self._folder, self._limit = folder, limit_bytes if folder is not None else 0
        self._totals: dict[str, int] = {}
        self._share = 1.0 if self._limit else 0.0
        self._writable = bool(self._limit)
        self._unchecked = self._limit  # The first block that is written leads to a check.
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[tuple[Future[bytes], Callable[[], bytes]]] | None = None
        self._present: set[str] = set()  # Names of blocks that were seen on the disk.
        self._maps: dict[str, mmap.mmap] = {}  # Name of a block -> its file.
        self._fetching: dict[str, Future[bytes]] = {}  # Name of a block -> its content.
        # Part outside of kept blocks -> answer that holds it, and the part's position in there.
        self._held: dict[Part, tuple[Future[bytes], int]] = {}
        self._held_bytes = 0

    def __reduce__(self):
        return _restore, (self._folder, self._limit, self._totals)

    def add_data(self, name: str, num_bytes: int) -> None:
        """Tells the cache how large a dataset is that will be read, so that it knows what fits.

        A second call with the same name replaces the number.
        """
        with self._lock:
            self._totals[name] = num_bytes
            fits = sum(self._totals.values()) <= self._limit * _FILL
            self._share = 1.0 if fits else self._limit * _FILL / sum(self._totals.values())

    @property
    def folder(self) -> Path | None:
        return self._folder

    @property
    def share(self) -> float:
        """Fraction of the blocks that are kept on disk."""
        return self._share

    def read_ahead(self, parts: Sequence[Part]) -> None:
        """Starts to read what is not on the disk. Returns at once; errors come up in `read`."""
        with self._lock:
            self._start([piece for part in parts for piece in self._pieces(part)])

    def read(self, parts: Sequence[Part]) -> list[bytes]:
        """Returns the content of parts of objects."""
        with self._lock:
            divided = [self._pieces(part) for part in parts]
            self._start([piece for pieces in divided for piece in pieces])
            answers = [[self._answer(*piece) for piece in pieces] for pieces in divided]
        contents = []
        for pieces, found in zip(divided, answers, strict=True):
            held = [self._content(*p, *a) for p, a in zip(pieces, found, strict=True)]
            contents.append(held[0] if len(held) == 1 else b"".join(held))
        return contents

    def remembered(self, name: str, compute: Callable[[], list[Any]]) -> list[Any]:
        """Returns what was computed before and kept in the folder, or computes and keeps it.

        The file's `name` must change when the result does, which is JSON.
        """
        if self._folder is None or not self._limit:
            return compute()
        path = self._folder / "lists" / f"{name}.json"
        with contextlib.suppress(UserError):
            return read_json(path, list)
        found = compute()
        with contextlib.suppress(OSError):
            write_atomically(path, json_text(found, what=name))
        return found

    def _start(self, pieces: Sequence[tuple[Part, str | None]]) -> None:
        """Starts to read pieces that are neither on the disk nor being read."""
        exact = []
        for piece, name in pieces:
            if name is not None:
                self._fetch_block(piece, name)
            elif piece not in self._held:
                exact.append(piece)
        for first, last, members in _merged(exact):
            whole = Part(members[0].object, first, last)
            answer = self._submit(functools.partial(_request, whole))
            for piece in members:
                self._hold(piece, answer, piece.start - first)

    def _answer(self, piece: Part, name: str | None) -> tuple["Future[bytes] | None", int]:
        """Returns the answer that holds a piece (None: it is on the disk) and where in it."""
        if name is not None:
            return self._fetching.get(name), piece.start % BLOCK_BYTES
        answer, offset = self._held.pop(piece, (None, 0))
        self._held_bytes -= 0 if answer is None else piece.stop - piece.start
        return answer, offset

    def _content(
        self, piece: Part, name: str | None, answer: "Future[bytes] | None", start: int
    ) -> bytes:
        stop = start + piece.stop - piece.start
        if answer is not None:
            return answer.result()[start:stop]
        if name is not None:
            block = self._maps.get(name) or self._map(_block_of(piece), name)
            if block is not None:
                return block[start:stop]
            with self._lock:  # Another process has deleted it, or it is damaged.
                self._present.discard(name)
            with contextlib.suppress(OSError):
                Path(self._file(name)).unlink()
        return _request(piece)

    def _map(self, block: Part, name: str) -> mmap.mmap | None:
        """Maps the file of a block into memory; None: it does not exist, or is too short.

        To read a mapped file takes no system call. After each call a thread would wait until the
        others give the interpreter's lock back, which halves the speed of small records.
        """
        try:
            with open(self._file(name), "rb") as file:  # noqa: PTH123
                found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # An empty file is a ValueError.
            return None
        if len(found) != block.stop - block.start:
            return None
        with self._lock:
            if len(self._maps) >= _MAX_MAPPED:
                del self._maps[next(iter(self._maps))]
            self._maps[name] = found
        return found

    def _pieces(self, part: Part) -> list[tuple[Part, str | None]]:
        """Divides a part: pieces of kept blocks with the block's name, and others with None."""
        pieces: list[tuple[Part, str | None]] = []
        for number in range(part.start // BLOCK_BYTES, -(-part.stop // BLOCK_BYTES)):
            start = max(part.start, number * BLOCK_BYTES)
            stop = min(part.stop, (number + 1) * BLOCK_BYTES)
            name = self._kept_name(part.object, number)
            if name is None and pieces and pieces[-1][1] is None:
                pieces[-1] = (pieces[-1][0]._replace(stop=stop), None)
            else:
                pieces.append((Part(part.object, start, stop), name))
        return pieces or [(part, None)]

    def _kept_name(self, found: StoredObject, number: int) -> str | None:
        """Returns the name of a block if it is kept on disk."""
        name = f"{found.key}-{number:06}"
        if zlib.crc32(name.encode()) >= self._share * 2**32:
            return None
        return name if self._writable or self._is_present(name) else None

    def _is_present(self, name: str) -> bool:
        if name not in self._present and Path(self._file(name)).exists():
            self._present.add(name)
        return name in self._present

    def _file(self, name: str) -> str:
        return f"{self._folder}/{name[:2]}/{name}"

    def _fetch_block(self, piece: Part, name: str) -> None:
        """Starts to read the block of a piece, unless it is on disk."""
        if name in self._fetching or self._is_present(name):
            return
        load = functools.partial(self._load_block, _block_of(piece), name)
        self._fetching[name] = self._submit(load)

    def _load_block(self, block: Part, name: str) -> bytes:
        """Reads a block from the bucket and writes it to the disk."""
        stored = False
        try:
            with self._only_process(name):
                # Another process may just have read it.
                content = _read_file(self._file(name), block.stop - block.start)
                stored = content is not None
                if content is None:
                    content = _request(block)
                    stored = self._store(Path(self._file(name)), content)
            return content
        finally:
            with self._lock:
                if stored:
                    self._present.add(name)
                del self._fetching[name]

    @contextlib.contextmanager
    def _only_process(self, name: str) -> Iterator[None]:
        """Lets one of several processes fetch a block while the others wait."""
        assert self._folder is not None
        with contextlib.ExitStack() as stack:
            # Without locks, or in a folder that cannot be written, each process reads it.
            with contextlib.suppress(OSError, NotImplementedError):
                path = self._folder / "locks" / name[:3]
                path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(filelock.FileLock(path, poll_interval=0.01))
            yield

    def _store(self, path: Path, content: bytes) -> bool:
        """Writes a block, whole or not at all. Returns whether it is there."""
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
            if self._writable:
                self._writable = False
                log.warning("cannot cache data in %s: %s", self._folder, error.strerror or error)
            return False
        return True

    def _check_size(self, num_bytes: int) -> None:
        """Deletes the oldest blocks if the folder exceeds its limit."""
        with self._lock:
            self._unchecked += num_bytes
            if self._unchecked < self._limit * _CHECK_FRACTION:
                return
        assert self._folder is not None
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

    def _submit(self, call: Callable[[], bytes]) -> "Future[bytes]":
        if self._work is None:
            self._work = queue.SimpleQueue()
            for number in range(_THREADS):
                # Daemons, so that the program does not wait for what it no longer needs.
                threading.Thread(
                    target=_serve, args=(self._work,), name=f"bucket-{number}", daemon=True
                ).start()
        answer: Future[bytes] = Future()
        self._work.put((answer, call))
        return answer

    def _hold(self, piece: Part, answer: "Future[bytes]", offset: int) -> None:
        self._held[piece] = answer, offset
        self._held_bytes += piece.stop - piece.start
        while self._held_bytes > _MAX_HELD_BYTES and len(self._held) > 1:
            oldest = next(iter(self._held))
            del self._held[oldest]
            self._held_bytes -= oldest.stop - oldest.start


@functools.lru_cache(maxsize=8)
def block_cache(folder: Path | None = None, limit_gb: float = DEFAULT_LIMIT_GB) -> BlockCache:
    """Returns the cache of this process for a folder, by default in the user's cache folder."""
    return BlockCache(folder or cache_dir() / "blocks", round(limit_gb * 1e9))


def _restore(folder: Path | None, limit_bytes: int, totals: Mapping[str, int]) -> BlockCache:
    """Returns the cache in another process."""
    cache = block_cache(folder, limit_bytes / 1e9)
    for name, num_bytes in totals.items():
        cache.add_data(name, num_bytes)
    return cache


def _serve(work: "queue.SimpleQueue[tuple[Future[bytes], Callable[[], bytes]]]") -> None:
    while True:
        answer, call = work.get()
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)
        del answer, call  # Not kept in memory until the next request.


def _request(part: Part) -> bytes:
    if part.stop <= part.start:
        return b""
    return part.object.path.read_range(part.start, part.stop)


def _merged(pieces: list[Part]) -> Iterator[tuple[int, int, list[Part]]]:
    """Yields (start, stop, pieces) of requests that read pieces close to each other at once."""
    group: list[Part] = []
    first = last = 0
    for piece in sorted(set(pieces), key=lambda p: (str(p.object.path), p.start)):
        near = group and group[0].object == piece.object and piece.start - last <= _MAX_GAP_BYTES
        if near and piece.stop - first <= _MAX_REQUEST_BYTES:
            group.append(piece)
            last = max(last, piece.stop)
            continue
        if group:
            yield first, last, group
        group, first, last = [piece], piece.start, piece.stop
    if group:
        yield first, last, group


def _block_of(piece: Part) -> Part:
    """Returns the block that a piece is in."""
    start = piece.start - piece.start % BLOCK_BYTES
    return Part(piece.object, start, min(start + BLOCK_BYTES, piece.object.size))


def _read_file(path: str, size: int) -> bytes | None:
    """Returns the content of a file; None: it does not exist, or has another size."""
    try:
        content = Path(path).read_bytes()
    except OSError:
        return None
    return content if len(content) == size else None


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
