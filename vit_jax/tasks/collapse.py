"""Notices collapse: a model without labels can learn to give all images the same features."""

import logging
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

log = logging.getLogger(__name__)

METRIC = "feature_std"
"""Name of the metric, after "train/"."""

COLLAPSED = 0.02
"""A run with a smaller `feature_std` has collapsed. Source: ours, measured on CIFAR-10; see
experiments/no_labels/README.md.
"""


def feature_std(features: Float[Array, "B D"]) -> Float[Array, ""]:
    """Returns how far the directions of the features of a batch differ, from 0 to 1.

    Features are scaled to length 1. The result is the root mean square, over the D features, of
    their standard deviation over the batch, times sqrt(D): 1 if the directions cancel out, 0 if all
    are the same.

    Args:
        features: one row per image.

    Source: arXiv:2011.10566, section 4.1, scaled so that the limit does not depend on D.

    >>> opposite = jnp.array([[1.0, 0.0], [-2.0, 0.0]])
    >>> float(feature_std(opposite)), float(feature_std(jnp.ones((3, 4))))
    (1.0, 0.0)
    """
    features = jax.lax.stop_gradient(features.astype(jnp.float32))
    unit = features / jnp.maximum(jnp.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    return jnp.sqrt(jnp.sum(jnp.var(unit, axis=0)))


class CollapseWarning:
    """Logs one warning when the features of a run have collapsed."""

    def __init__(self):
        self._warned = False

    def check(self, step: int, metrics: Mapping[str, float]) -> None:
        """Looks at the metrics of a step.

        Args:
            step: number of updates made.
            metrics: metrics by their full name.
        """
        value = metrics.get(f"train/{METRIC}")
        if value is None or value >= COLLAPSED or self._warned:
            return
        self._warned = True
        log.warning(
            "train/%s is %.3g at step %d, below %g: the features of all images are nearly the same"
            " (collapse); lower the learning rate, or look at the temperatures and the centring",
            METRIC,
            value,
            step,
            COLLAPSED,
        )
