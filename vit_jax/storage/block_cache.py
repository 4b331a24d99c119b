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

import functools
import queue
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.storage.block_files import BlockFiles
from vit_jax.storage.bucket_path import StoredObject
from vit_jax.storage.paths import cache_dir

BLOCK_BYTES = 1 << 20
DEFAULT_LIMIT_GB = 50.0
# Requests at a time.
_THREADS = 48
# Parts of an object that are this close are read by one request of up to this size.
_MAX_GAP_BYTES = 1 << 16
_MAX_REQUEST_BYTES = 8 << 20
# Parts that were read ahead and not yet used; the oldest are dropped first.
_MAX_HELD_BYTES = 2 << 30


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
        self.folder, self._limit = folder, limit_bytes
        self._files = None if folder is None or not limit_bytes else BlockFiles(folder, limit_bytes)
        self._totals: dict[str, int] = {}
        self._share = 1.0 if self._files else 0.0
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[tuple[Future[bytes], Callable[[], bytes]]] | None = None
        self._fetching: dict[str, Future[bytes]] = {}  # Name of a block -> its content.
        # Part outside of kept blocks -> answer that holds it, and the part's position in there.
        self._held: dict[Part, tuple[Future[bytes], int]] = {}
        self._held_bytes = 0

    def __reduce__(self):
        return _restore, (self.folder, self._limit, self._totals)

    def add_data(self, name: str, num_bytes: int) -> None:
        """Tells the cache how large a dataset is that will be read, so that it knows what fits.

        A second call with the same name replaces the number.
        """
        with self._lock:
            self._totals[name] = num_bytes
            if self._files is not None:
                total = max(1, sum(self._totals.values()))
                self._share = min(1.0, self._files.capacity / total)

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
        """Returns what `BlockFiles.remembered` does; without a folder, it is always computed."""
        return compute() if self._files is None else self._files.remembered(name, compute)

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
        if name is not None and self._files is not None:
            block = _block_of(piece)
            kept = self._files.open(name, block.stop - block.start)
            if kept is not None:
                return kept[start:stop]
        return _request(piece)

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
        files = self._files
        return name if files is not None and (files.writable or files.has(name)) else None

    def _fetch_block(self, piece: Part, name: str) -> None:
        """Starts to read the block of a piece and to keep it, unless it is on the disk."""
        assert self._files is not None
        if name not in self._fetching and not self._files.has(name):
            load = functools.partial(self._load_block, self._files, _block_of(piece), name)
            self._fetching[name] = self._submit(load)

    def _load_block(self, files: BlockFiles, block: Part, name: str) -> bytes:
        try:
            return files.get(name, block.stop - block.start, lambda: _request(block))
        finally:
            with self._lock:
                del self._fetching[name]

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
