"""The order of training examples: a function of (seed, position) only."""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt64

from vit_jax.rng import generator, splitmix64

# Largest dataset whose permutation of an epoch is kept in memory: 8 MB.
_MAX_IN_MEMORY = 1 << 21
# Version of the computed order, in checkpoints.
_COMPUTED_ORDER = 2


class ExampleOrder:
    """The order of training examples: positions -> indices. Position p is in epoch p // N.

    Each epoch has its own permutation. For datasets up to ImageNet's size the whole permutation is
    in memory, which is faster. For larger datasets each index is computed in constant memory.
    """

    def __init__(self, num_examples: int, seed: int):
        self._size, self._seed = num_examples, seed
        self._epochs: dict[int, np.ndarray] = {}

    def __call__(self, positions: Sequence[int]) -> list[int]:
        if self._size > _MAX_IN_MEMORY:
            return self._compute(positions)
        return [self._look_up(*divmod(p, self._size)) for p in positions]

    def _look_up(self, epoch: int, place: int) -> int:
        order = self._epochs.get(epoch)
        if order is None:  # Two threads may draw the same epoch; the results are equal.
            numbers = np.arange(self._size, dtype=np.uint32)
            order = generator(self._seed, "order", epoch).permutation(numbers)
            before = {e: o for e, o in self._epochs.items() if e == epoch - 1}
            self._epochs = {**before, epoch: order}
        return int(order[place])

    def _compute(self, positions: Sequence[int]) -> list[int]:
        epochs, places = np.divmod(np.array(positions, np.uint64), np.uint64(self._size))
        indices = np.empty_like(places)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            indices[chosen] = permute(places[chosen], self._size, self._seed, int(epoch))
        return indices.tolist()


def permute(places: UInt64[np.ndarray, "N"], size: int, seed: int, epoch: int) -> np.ndarray:
    """Returns where a permutation of 0, ..., size - 1 puts these places, as u64[N].

    It is a Feistel network of eight rounds. It permutes the numbers below the smallest square that
    is at least `size`. A result outside the range is permuted again until it is inside (cycle
    walking). Only hashes and integer arithmetic are used, so no library's version changes it.

    Source: Black and Rogaway, CT-RSA 2002, doi:10.1007/3-540-45760-7_9.
    """
    side = np.uint64(math.isqrt(size - 1) + 1)
    digest = hashlib.blake2b(f"order {seed} {epoch}".encode(), digest_size=64).digest()
    keys = np.frombuffer(digest, "<u8").astype(np.uint64)

    def permute_domain(numbers: np.ndarray) -> np.ndarray:
        left, right = np.divmod(numbers, side)
        for key in keys:  # Half of a hash, so that the sum does not overflow.
            left, right = right, (left + (splitmix64(right ^ key) >> np.uint64(1))) % side
        return left * side + right

    found = permute_domain(places)
    while len(outside := np.flatnonzero(found >= size)):
        found[outside] = permute_domain(found[outside])
    return found


def order_version(num_examples: int) -> dict[str, int]:
    """Returns what a checkpoint holds about the order: its version, if the order is computed."""
    return {"order": _COMPUTED_ORDER} if num_examples > _MAX_IN_MEMORY else {}
