"""Area under the ROC curve."""

import logging
from collections.abc import Mapping

import numpy as np
from jaxtyping import Array

from vit_jax.config.evaluation import METRICS
from vit_jax.evaluation.metrics import MetricKind, OfAll, Predictions

log = logging.getLogger(__name__)


@METRICS.register
class RocAuc(OfAll):
    """The area under the ROC curve of two classes, by the difference of their logits."""

    kind = MetricKind("area under the ROC curve", bounds=(0.0, 1.0))

    def applies(self, num_classes: int) -> bool:
        return num_classes == 2

    def rows(self, predictions: Predictions) -> Mapping[str, Array]:
        scores = (predictions.logits[:, 1] - predictions.logits[:, 0]).astype("float32")
        return {"scores": scores, "labels": predictions.labels}

    def of_all(self, rows: Mapping[str, np.ndarray]) -> float | None:
        from sklearn.metrics import roc_auc_score

        scores, labels = rows["scores"], rows["labels"]
        if len(set(labels.tolist())) < 2 or not np.isfinite(scores).all():
            log.warning("no area under the ROC curve: one class only, or scores not finite")
            return None
        return float(roc_auc_score(labels, scores))
