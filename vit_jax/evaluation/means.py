"""Means over the examples of a split, for tasks without predictions of classes."""

from collections.abc import Mapping

import numpy as np

from vit_jax.evaluation.loop import Totals


class MeanTotals(Totals):
    """Adds up the sums that an evaluation step returns, and divides them by the examples.

    Every output is a metric: a sum over the examples, or "examples", their number.
    """

    def __init__(self):
        self._sums: dict[str, float] = {}

    def add(self, outputs: Mapping[str, np.ndarray]) -> None:
        for name, value in outputs.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.item()

    def metrics(self) -> dict[str, float]:
        count = self._sums["examples"]
        means = {name: total / count for name, total in self._sums.items() if name != "examples"}
        return {**means, "examples": count}
