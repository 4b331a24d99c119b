"""Top-5 accuracy."""

from jaxtyping import Array, Bool

from vit_jax.config.evaluation import METRICS
from vit_jax.evaluation.metrics import Mean, MetricKind, Predictions


@METRICS.register
class AccuracyTop5(Mean):
    """The share of predictions whose label has one of the five largest logits."""

    kind = MetricKind("top-5 accuracy", bounds=(0.0, 1.0), unit="%", images="mean")

    def applies(self, num_classes: int) -> bool:
        return num_classes > 5  # Otherwise every prediction is correct.

    def of_each(self, predictions: Predictions) -> Bool[Array, " M"]:
        return predictions.ranks < 5
