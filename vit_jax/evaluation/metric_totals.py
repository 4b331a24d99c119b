"""Adds up metrics over the batches of a split."""

from collections.abc import Mapping
from typing import Any

from vit_jax.evaluation.loop import Totals
from vit_jax.evaluation.metrics import Metric


class MetricTotals(Totals):
    """Totals of some metrics and of the examples.

    The evaluation step returns name of a metric -> its sums, and "examples", their number.
    """

    def __init__(self, metrics: Mapping[str, Metric]):
        self._metrics, self._examples = dict(metrics), 0
        self._totals: dict[str, dict[str, Any]] = {name: {} for name in metrics}

    def add(self, outputs: Mapping[str, Any]) -> None:
        self._examples += outputs["examples"].item()
        for name, metric in self._metrics.items():
            self._totals[name] = metric.add(self._totals[name], outputs[name])

    def metrics(self) -> dict[str, float]:
        values = {name: m.value(self._totals[name]) for name, m in self._metrics.items()}
        found = {name: value for name, value in values.items() if value is not None}
        return found | {"examples": self._examples}
