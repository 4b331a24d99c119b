"""Digests of arrays that do not depend on how the arrays are sharded.

The digest of an array is a sum over its elements, modulo 2**64: the element's bits times the
product of one pseudo-random 64-bit key for each coordinate. So each host can sum over the shards
that it holds, the hosts' sums are added, and the array has the same digest on any mesh. A changed
element always changes the digest; any other damage does with a probability of about 1 - 2**-32.

Source: multilinear hashing, arXiv:1202.4961, with products of keys, ours, so that a shard needs
only the keys of its own coordinates.
"""

import functools
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.named_tree import named_leaves
from vit_jax.parallel.processes import gather, is_first_host, send_to_first_host

# Trailing axes are summed in one product once they have this many elements together.
_BLOCK = 64
# Words that are converted to 64 bits at a time, so that they stay in the processor's cache.
_CHUNK = 1 << 15
_THREADS = 16
_BITS = (1 << 64) - 1
# Bytes of an element, at most 4 -> the integer with its bits.
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
# A factor, then pairs of a shift and a factor: https://prng.di.unimi.it/splitmix64.c
_SPLITMIX64: Any = (0x9E3779B97F4A7C15, (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def array_digest(array: np.ndarray) -> str:
    """Returns the digest of a whole array as 16 hexadecimal digits.

    >>> array_digest(np.arange(6, dtype=np.float32).reshape(2, 3))
    '9dd62235c2e00000'
    """
    return _text(_sum(array, (0,) * array.ndim))


def tree_digests(trees: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Returns item -> array name -> digest, equal on all processes. All must call this together."""
    sums = _start_sums(trees)
    return sums.digests(gather("compare digests of arrays", sums.of_this_process()))


def start_digests(name: str, trees: Mapping[str, Any]) -> Callable[[], dict[str, dict[str, str]]]:
    """Starts to compute digests in the background.

    Returns when the devices may overwrite the arrays.

    The result waits for the digests, as `tree_digests` returns them. All processes must call it, on
    any thread. Only that of the first host knows all shards. `name` must be the same on all
    processes, and of nothing else at the same time.
    """
    sums = _start_sums(trees)
    return lambda: sums.digests(send_to_first_host(name, sums.of_this_process()))


def device_sums(arrays: Mapping[Any, jax.Array]) -> dict[Any, jax.Array]:
    """Returns the u64 sums behind the digests of arrays of integers, booleans or real floats."""
    with jax.enable_x64(True):
        return {at: _device_sum(array) for at, array in arrays.items()}


@jax.jit  # Compiled once for each shape: parameters and their moments share it.
def _device_sum(array: jax.Array) -> jax.Array:
    if array.dtype == bool:
        array = array.astype(jnp.uint8)
    # Elements of 64 bits get another axis of two words.
    words = jax.lax.bitcast_convert_type(array, _WORDS[min(array.dtype.itemsize, 4)])
    total = words.astype(jnp.uint64)
    for axis in reversed(range(words.ndim)):
        keys = jnp.broadcast_to(_keys_on_device(axis, words.shape[axis]), total.shape)
        total = jnp.sum(total * keys, axis=-1)
    return total


def _keys_on_device(axis: int, length: int) -> jax.Array:
    """Returns what `_keys` does."""
    state = jnp.arange(length, dtype=jnp.uint64) + jnp.uint64((axis + 1) << 48)
    state *= jnp.uint64(_SPLITMIX64[0])
    for shift, factor in _SPLITMIX64[1:]:
        state = (state ^ (state >> jnp.uint64(shift))) * jnp.uint64(factor)
    return (state ^ (state >> jnp.uint64(31))) | jnp.uint64(1)


def _is_on_accelerator(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array) or jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return False
    return next(iter(leaf.sharding.device_set)).platform != "cpu"


def combined_digest(digests: Mapping[str, str]) -> str:
    """Returns one digest for named arrays, which does not depend on their order."""
    return json_digest(dict(digests))


def json_digest(content: Any) -> str:
    """Returns the digest of a JSON value, which does not depend on the order of its keys."""
    plain = json.loads(json.dumps(content))  # Tuples become lists, and all keys strings.
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def _text(total: int) -> str:
    return f"{total & _BITS:016x}"


_Name = tuple[str, str]  # Item and array.


class _Sums:
    """Sums of arrays that are being computed.

    Arrays on accelerators are summed where they are, in milliseconds. Arrays on CPUs are summed by
    NumPy, at 3 to 5 GB/s on two cores, because XLA's program for CPUs takes four times as long.
    `on_devices` has sums of whole arrays, and `on_host` of the shards of this process.
    """

    def __init__(
        self,
        items: Iterable[str],
        on_devices: dict[_Name, jax.Array],
        on_host: dict[_Name, list[Future[int]]],
    ):
        self._items, self._on_devices, self._on_host = [*items], on_devices, on_host

    def of_this_process(self) -> list[int]:
        return [sum(part.result() for part in parts) for parts in self._on_host.values()]

    def digests(self, of_processes: list[list[int]]) -> dict[str, dict[str, str]]:
        """Returns item -> array name -> digest from the sums of all processes."""
        totals = dict(zip(self._on_host, map(sum, zip(*of_processes, strict=True)), strict=True))
        totals |= {at: int(total) for at, total in self._on_devices.items()}
        return {
            item: {name: _text(total) for (of, name), total in totals.items() if of == item}
            for item in self._items
        }


def _start_sums(trees: Mapping[str, Any]) -> _Sums:
    leaves = {
        (item, name): leaf
        for item, tree in trees.items()
        for name, leaf in named_leaves(tree).items()
    }
    on_accelerators = {at: leaf for at, leaf in leaves.items() if _is_on_accelerator(leaf)}
    on_devices = device_sums(on_accelerators)
    pool = ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), "digests")
    on_host = {
        # NumPy shares the memory of a shard on a CPU, and JAX does not overwrite it meanwhile. It
        # frees the GIL.
        at: [pool.submit(_sum, np.asarray(part), start) for part, start in _parts(leaf)]
        for at, leaf in leaves.items()
        if at not in on_accelerators
    }
    pool.shutdown(wait=False)
    return _Sums(trees, on_devices, on_host)


def _parts(array: jax.Array | np.ndarray) -> list[tuple[Any, list[int]]]:
    """Returns the parts that this process sums: (part, coordinates of its first element)."""
    if isinstance(array, np.ndarray):  # All processes have the same.
        return [(array, [0] * array.ndim)] if is_first_host() else []
    shards = [shard for shard in array.addressable_shards if shard.replica_id == 0]
    return [(shard.data, [part.start or 0 for part in shard.index]) for shard in shards]


def _sum(part: np.ndarray, start: Iterable[int]) -> int:
    """Returns the sum over a part of an array; `start` has the coordinates of its first element."""
    start = list(start)
    words = np.ascontiguousarray(part).reshape(part.shape)  # It makes scalars 1-dimensional.
    size = words.dtype.itemsize
    if size > 4:  # Two or four words for each element.
        words, start = words[..., None].view(np.uint32), [*start, 0]
    else:
        words = words.view(_WORDS[size])
    if not words.size:
        return 0
    keys = [
        _keys(axis, first + length)[first:]
        for axis, (first, length) in enumerate(zip(start, words.shape, strict=True))
    ]
    split = words.ndim
    while split and math.prod(words.shape[split:]) < _BLOCK:
        split -= 1
    weights = _products(keys[split:])
    rows = words.reshape(-1, weights.size)
    sums = np.empty(len(rows), np.uint64)
    step = max(1, _CHUNK // weights.size)
    for first in range(0, len(rows), step):
        chunk = rows[first : first + step].astype(np.uint64)
        np.dot(chunk, weights, out=sums[first : first + step])
    return int(np.dot(sums, _products(keys[:split])))


def _products(keys: list[np.ndarray]) -> np.ndarray:
    """Returns the products of keys for all combinations of coordinates, modulo 2**64."""
    product = np.ones((), np.uint64)
    for key in keys:
        product = np.multiply.outer(product, key)
    return product.reshape(-1)


@functools.lru_cache(maxsize=256)
def _keys(axis: int, length: int) -> np.ndarray:
    """Returns the keys of the first coordinates on an axis. They are odd, so never lose bits."""
    state = np.arange(length, dtype=np.uint64) + np.uint64((axis + 1) << 48)
    state *= np.uint64(_SPLITMIX64[0])
    for shift, factor in _SPLITMIX64[1:]:
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    return (state ^ (state >> np.uint64(31))) | np.uint64(1)
