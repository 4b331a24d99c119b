"""Top-1 accuracy."""

from jaxtyping import Array, Bool

from vit_jax.config.evaluation import METRICS
from vit_jax.evaluation.metrics import Mean, MetricKind, Predictions


@METRICS.register
class AccuracyTop1(Mean):
    """The share of predictions whose label has the largest logit."""

    kind = MetricKind("top-1 accuracy", bounds=(0.0, 1.0), unit="%", images="mean")

    def of_each(self, predictions: Predictions) -> Bool[Array, " M"]:
        return predictions.ranks < 1
