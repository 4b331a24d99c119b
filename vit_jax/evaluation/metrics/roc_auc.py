"""Area under the ROC curve."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.evaluation.metrics import METRICS, Metric, MetricKind, Predictions, Sums

log = logging.getLogger(__name__)


@METRICS.register
class RocAuc(Metric):
    """The area under the ROC curve of two classes, by the difference of their logits."""

    kind = MetricKind("area under the ROC curve", bounds=(0.0, 1.0))

    def applies(self, num_classes: int) -> bool:
        return num_classes == 2

    def sums(self, predictions: Predictions) -> Sums:
        scores = (predictions.logits[:, 1] - predictions.logits[:, 0]).astype("float32")
        return {"scores": scores, "labels": predictions.labels, "mask": predictions.mask}

    def add(self, totals: Mapping[str, Any], sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Keeps the scores of all examples, because the curve needs their order."""
        kept = {name: sums[name][sums["mask"]] for name in ("scores", "labels")}
        return {name: [*totals.get(name, ()), rows] for name, rows in kept.items()}

    def value(self, totals: Mapping[str, Any]) -> float | None:
        from sklearn.metrics import roc_auc_score

        scores, labels = np.concatenate(totals["scores"]), np.concatenate(totals["labels"])
        if len(set(labels.tolist())) < 2 or not np.isfinite(scores).all():
            log.warning("no area under the ROC curve: one class only, or scores not finite")
            return None
        return float(roc_auc_score(labels, scores))
