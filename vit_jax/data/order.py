"""The order of training examples: a function of (seed, position) only."""

from collections.abc import Sequence
from typing import Any

import grain
import numpy as np

from vit_jax.rng import generator, shuffle_seed

# Largest dataset whose permutation of an epoch is kept in memory: 8 MB.
_MAX_IN_MEMORY = 1 << 21


class ExampleOrder:
    """The order of training examples: positions -> indices. Position p is in epoch p // N.

    Each epoch has its own permutation. For datasets up to ImageNet's size the whole permutation is
    in memory, which is faster. For larger datasets each index is computed in constant memory.
    """

    def __init__(self, num_examples: int, seed: int):
        self._size, self._seed = num_examples, seed
        self._epochs: dict[int, np.ndarray] = {}
        # For 4^k + 1 numbers, k >= 8, the shuffle of Grain 0.2.18 repeats one. Use one more number
        # there and skip it.
        self._shuffle_size = num_examples + ((num_examples - 1) in {4**k for k in range(8, 32)})
        shuffled = grain.MapDataset.range(self._shuffle_size).shuffle(seed=shuffle_seed(seed))
        self._shuffled: Any = shuffled.repeat()

    def __call__(self, positions: Sequence[int]) -> list[int]:
        find = self._from_permutation if self._size <= _MAX_IN_MEMORY else self._from_shuffle
        return [find(*divmod(p, self._size)) for p in positions]

    def _from_permutation(self, epoch: int, place: int) -> int:
        order = self._epochs.get(epoch)
        if order is None:  # Two threads may draw the same epoch; the results are equal.
            numbers = np.arange(self._size, dtype=np.uint32)
            order = generator(self._seed, "order", epoch).permutation(numbers)
            before = {e: o for e, o in self._epochs.items() if e == epoch - 1}
            self._epochs = {**before, epoch: order}
        return int(order[place])

    def _from_shuffle(self, epoch: int, place: int) -> int:
        index = place
        while True:
            index = int(self._shuffled[epoch * self._shuffle_size + index])
            if index < self._size:
                return index
