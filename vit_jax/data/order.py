"""The order of examples in training, a function of (seed, position) alone."""

from collections.abc import Sequence
from typing import Any

import grain
import numpy as np

from vit_jax.rng import generator, shuffle_seed

# Largest dataset whose order is drawn an epoch at a time: 8 MB.
_DRAWN_WHOLE = 1 << 21


class ExampleOrder:
    """The order of examples in training: positions -> indices.

    Each epoch has a permutation of its own. Those of datasets up to ImageNet's size are drawn
    whole, which is faster; larger ones are computed place by place, in constant memory.

    Args:
        num_examples: N; position p is in epoch p // N.
        seed: the run's seed.
    """

    def __init__(self, num_examples: int, seed: int):
        self._size, self._seed = num_examples, seed
        self._epochs: dict[int, np.ndarray] = {}
        # Over 4^k + 1 places, k >= 8, Grain 0.2.18 gives one of them twice: one more is asked for.
        self._places = num_examples + ((num_examples - 1) in {4**k for k in range(8, 32)})
        shuffled = grain.MapDataset.range(self._places).shuffle(seed=shuffle_seed(seed))
        self._shuffled: Any = shuffled.repeat()

    def __call__(self, positions: Sequence[int]) -> list[int]:
        find = self._drawn if self._size <= _DRAWN_WHOLE else self._computed
        return [find(*divmod(p, self._size)) for p in positions]

    def _drawn(self, epoch: int, place: int) -> int:
        order = self._epochs.get(epoch)
        if order is None:  # Two threads may draw the same; either result is right.
            numbers = np.arange(self._size, dtype=np.uint32)
            order = generator(self._seed, "order", epoch).permutation(numbers)
            before = {e: o for e, o in self._epochs.items() if e == epoch - 1}
            self._epochs = {**before, epoch: order}
        return int(order[place])

    def _computed(self, epoch: int, place: int) -> int:
        index = place
        while True:
            index = int(self._shuffled[epoch * self._places + index])
            if index < self._size:
                return index


class BalancedOrder:
    """An order in which every class comes equally often: positions -> indices.

    Of C classes with examples, each stretch of C positions from a multiple of C on holds one
    example of each, in an order of its own. A class goes through its examples in permutations of
    its own, one after the other, however few they are.

    Args:
        labels: i[N]; negative: an example that never comes.
        seed: the run's seed.
    """

    def __init__(self, labels: np.ndarray, seed: int):
        self._seed = seed
        self._classes = np.unique(labels[labels >= 0])
        by_class = np.argsort(labels, kind="stable")
        starts = np.searchsorted(labels[by_class], self._classes, side="left")
        ends = np.searchsorted(labels[by_class], self._classes, side="right")
        self._members = [by_class[a:b] for a, b in zip(starts, ends, strict=True)]
        # What was drawn last, of the stretches and of each class; see `ExampleOrder` on threads.
        self._stretch: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))
        self._rounds: dict[int, tuple[int, np.ndarray]] = {}

    def __call__(self, positions: Sequence[int]) -> list[int]:
        return [self._find(*divmod(p, len(self._classes))) for p in positions]

    def _find(self, stretch: int, place: int) -> int:
        drawn, order = self._stretch
        if drawn != stretch:
            order = generator(self._seed, "balanced", stretch).permutation(len(self._classes))
            self._stretch = stretch, order
        which = int(order[place])
        members = self._members[which]
        number, turn = divmod(stretch, len(members))
        drawn, turns = self._rounds.get(which, (-1, members))
        if drawn != number:
            name = f"balanced/{self._classes[which]}"
            turns = generator(self._seed, name, number).permutation(len(members))
            self._rounds[which] = number, turns
        return int(members[turns[turn]])
