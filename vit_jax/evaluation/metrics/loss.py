"""The loss."""

import math

from jaxtyping import Array, Float

from vit_jax.config.evaluation import METRICS
from vit_jax.evaluation.metrics import Mean, MetricKind, Predictions


@METRICS.register
class Loss(Mean):
    """The mean loss, also that of training."""

    kind = MetricKind(lower=True, bounds=(0.0, math.inf))

    def of_each(self, predictions: Predictions) -> Float[Array, " M"]:
        return predictions.losses
