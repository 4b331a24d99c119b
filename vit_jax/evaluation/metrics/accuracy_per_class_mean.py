"""Mean accuracy per class, also known as balanced accuracy."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.config.evaluation import METRICS
from vit_jax.evaluation.metrics import Metric, MetricKind, Predictions, Sums


@METRICS.register
class AccuracyPerClassMean(Metric):
    """The mean of the accuracies of the classes that have examples."""

    kind = MetricKind("mean accuracy per class", bounds=(0.0, 1.0), unit="%", images="class mean")

    def sums(self, predictions: Predictions) -> Sums:
        labels = jnp.where(predictions.mask, predictions.labels, -1)  # No class.
        of_class = jax.nn.one_hot(labels, predictions.num_classes, dtype=jnp.int32)
        right = predictions.classes == predictions.labels
        return {"right": of_class.sum(0, where=right[:, None]), "examples": of_class.sum(0)}

    def value(self, totals: Mapping[str, Any]) -> float:
        pairs = zip(totals["right"].tolist(), totals["examples"].tolist(), strict=True)
        shares = [right / examples for right, examples in pairs if examples]
        return sum(shares) / max(len(shares), 1)
