"""Records of ArrayRecord files in buckets.

The package array_record opens local files and gs://, there with one request at a time for each
record. Here the positions of the records are read from the end of each file, so that records can be
read ahead through a `BlockCache`.

An ArrayRecord file is a Riegeli file. Every 64 KiB it has a block header of 24 bytes, which is
skipped. The rest is a sequence of chunks: a header of 40 bytes (hash, size of the data, hash of the
data, type and number of records, size after decompression), then the data. The data of a chunk of
records are a compression type, the compressed sizes of the records, and the compressed records. The
last 64 KiB say where the footer is, a chunk with the position of each chunk of records. The hashes
are not verified; `data check` compares the checksums of whole files where a dataset has them.

Source: https://github.com/google/riegeli/blob/master/doc/riegeli_records_file_format.md and
https://github.com/google/array_record/blob/main/cpp/layout.proto.
"""

import bisect
import itertools
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import zstandard

from vit_jax.errors import DataError
from vit_jax.storage.block_cache import BlockCache, Part
from vit_jax.storage.bucket_path import StoredObject

_BLOCK, _BLOCK_HEADER = 1 << 16, 24
_CHUNK_HEADER = struct.Struct("<QQQQQ")
_SIMPLE = ord("r")
_MAGIC = 0x71930E704FDAE05E
_THREADS = 16


class Shard(NamedTuple):
    """Records `start` to `stop` (not included) of a file."""

    file: StoredObject
    start: int
    stop: int


class _Index(NamedTuple):
    """Where the C chunks of records of a file are."""

    offsets: np.ndarray  # i64[C + 1], start of each chunk, and of the footer.
    first: np.ndarray  # i64[C + 1], number of each chunk's first record, and of all records.


class BucketRecords:
    """The records of some ArrayRecord files, in the interface that TFDS expects of a reader."""

    def __init__(self, shards: Sequence[Shard], cache: BlockCache):
        self._shards, self._cache = list(shards), cache
        self._ends = list(itertools.accumulate(shard.stop - shard.start for shard in shards))
        self._indexes: dict[int, _Index] = {}

    def __reduce__(self):
        return BucketRecords, (self._shards, self._cache)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, key: int) -> bytes:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[int]) -> list[bytes]:
        """Returns several records. Raises OSError if a file cannot be read."""
        places = [self._place(int(key)) for key in keys]
        chunks = self._cache.read([part for part, _ in places])
        return [
            _decode_chunk(chunk, part)[row]
            for chunk, (part, row) in zip(chunks, places, strict=True)
        ]

    def read_ahead(self, keys: Sequence[int]) -> None:
        shards = {self._shard_of(int(key)) for key in keys}
        missing = [shard for shard in shards if shard not in self._indexes]
        if len(missing) > 1:
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(self._index, missing))
        self._cache.read_ahead([self._place(int(key))[0] for key in keys])

    def _shard_of(self, key: int) -> int:
        return bisect.bisect_right(self._ends, key)

    def _place(self, key: int) -> tuple[Part, int]:
        """Returns the chunk that holds a record and the record's number in it."""
        number = self._shard_of(key)
        shard, index = self._shards[number], self._index(number)
        record = shard.stop - (self._ends[number] - key)
        chunk = int(np.searchsorted(index.first, record, side="right")) - 1
        start, stop = int(index.offsets[chunk]), int(index.offsets[chunk + 1])
        return Part(shard.file, start, stop), record - int(index.first[chunk])

    def _index(self, number: int) -> _Index:
        index = self._indexes.get(number)
        if index is None:  # Two threads may read the same one; the results are equal.
            shard = self._shards[number]
            index = _read_index(shard.file, self._cache)
            if index.first[-1] < shard.stop:
                raise _damaged(shard.file, f"{index.first[-1]} records, not {shard.stop}")
            self._indexes[number] = index
        return index


def _read_index(file: StoredObject, cache: BlockCache) -> _Index:
    end = file.size - _BLOCK
    if end < 0 or file.size % _BLOCK:
        raise _damaged(file, f"{file.size} bytes, which is not a multiple of 64 KiB")
    last = Part(file, end, file.size)
    fields = _integers(_decode_chunk(cache.read([last])[0], last)[0])
    start, magic = fields.get(1, [end]), fields.get(2, [0])
    if magic[0] != _MAGIC or not 0 < start[0] < end:
        raise _damaged(file, "no footer of ArrayRecord")
    footer = Part(file, int(start[0]), end)
    # The first entry describes the file, each of the others a chunk.
    entries = _decode_chunk(cache.read([footer])[0], footer)[1:]
    fields = _integers(b"".join(entries))
    offsets, counts = fields.get(1, []), fields.get(3, [])
    if not len(offsets) == len(counts) == len(entries):
        raise _damaged(file, "a footer without all positions")
    return _Index(np.append(offsets, footer.start), np.cumsum([0, *counts]))


def _decode_chunk(content: bytes, part: Part) -> list[bytes]:
    """Returns the records of a chunk; `content` is the file from the chunk's start, at `part`."""
    content = _without_block_headers(content, part.start)
    if len(content) <= _CHUNK_HEADER.size:
        raise _no_chunk(part)
    _, size, _, kind, decoded_size = _CHUNK_HEADER.unpack_from(content)
    count, data = kind >> 8, memoryview(content)[_CHUNK_HEADER.size :]
    if kind & 255 != _SIMPLE or not 0 < size <= len(data) or not count:
        raise _no_chunk(part)
    compression = data[0]
    sizes_bytes, data = _varint(data[1:size])
    values = _decompress(data[sizes_bytes:], compression, part)
    if len(values) != decoded_size:
        raise _no_chunk(part)
    if count == 1:
        return [values]
    ends = _varints(_decompress(data[:sizes_bytes], compression, part)).cumsum().tolist()
    return [values[a:b] for a, b in itertools.pairwise([0, *ends])]


def _without_block_headers(content: bytes, start: int) -> bytes:
    """Returns the bytes of a file from position `start` without the block headers among them."""
    into = start % _BLOCK
    if into >= _BLOCK_HEADER and into + len(content) <= _BLOCK:
        return content
    pieces = []
    for block in range(start - into, start + len(content), _BLOCK):
        first = max(block + _BLOCK_HEADER, start) - start
        pieces.append(content[first : block + _BLOCK - start])
    return b"".join(pieces)


def _decompress(data: memoryview, compression: int, part: Part) -> bytes:
    if compression == 0:
        return bytes(data)
    if compression != ord("z"):
        raise DataError(
            f"{part.object.path} is compressed by {chr(compression)!r}",
            "zstd ('z'), which ArrayRecord uses by default, or no compression",
            "copy the dataset to a local disk, or prepare it again",
        )
    size, data = _varint(data)
    try:
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise _damaged(part.object, f"{error} at byte {part.start}") from None


def _varint(data: memoryview) -> tuple[int, memoryview]:
    """Returns the first number (digits to base 128, the lowest first) and what follows it."""
    value = 0
    for place, byte in enumerate(data):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, data[place + 1 :]
    return value, data[:0]


def _varints(data: bytes) -> np.ndarray:
    """Returns all numbers, i64[N]."""
    digits = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(digits < 128)
    if not len(ends):
        return np.zeros(0, np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    digits = digits[: ends[-1] + 1]
    places = np.arange(len(digits)) - np.repeat(starts, ends - starts + 1)
    return np.add.reduceat((digits & 127).astype(np.int64) << 7 * places, starts)


def _integers(messages: bytes) -> dict[int, np.ndarray]:
    """Returns field -> values, in order, of protocol buffers that hold integers only."""
    numbers = _varints(messages)
    tags, values = numbers[0::2] >> 3, numbers[1::2]
    return {int(tag): values[tags[: len(values)] == tag] for tag in np.unique(tags)}


def _no_chunk(part: Part) -> DataError:
    return _damaged(part.object, f"no chunk of records at byte {part.start}")


def _damaged(file: StoredObject, what: str) -> DataError:
    return DataError(
        f"{file.path} has {what}", "an intact ArrayRecord file", "upload or prepare it again"
    )
