"""Notices collapse: a model without labels can learn to give all images the same features."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from vit_jax.evaluation.metrics import Metric, Sums

METRIC = "feature_std"
"""Name of the metric, after "train/"."""


def feature_std(features: Float[Array, "B D"]) -> Float[Array, ""]:
    """Returns how far the directions of the features of a batch differ, from 0 to 1.

    Features are scaled to length 1. The result is the root mean square, over the D features, of
    their standard deviation over the batch, times sqrt(D): 1 if the directions cancel out, 0 if all
    are the same.

    Source: arXiv:2011.10566, section 4.1, scaled so that the limit does not depend on D.

    >>> opposite = jnp.array([[1.0, 0.0], [-2.0, 0.0]])
    >>> float(feature_std(opposite)), float(feature_std(jnp.ones((3, 4))))
    (1.0, 0.0)
    """
    return jnp.sqrt(jnp.sum(jnp.var(_directions(features), axis=0)))


def _directions(features: Float[Array, "B D"]) -> Float[Array, "B D"]:
    features = jax.lax.stop_gradient(features.astype(jnp.float32))
    return features / jnp.maximum(jnp.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def direction_sums(features: Float[Array, "B D"], mask: Bool[Array, " B"]) -> Sums:
    """Returns what the valid rows of a batch add to `FeatureStd`."""
    counted = jnp.where(mask[:, None], _directions(features), 0)
    return {"directions": jnp.sum(counted, axis=0), "examples": jnp.sum(mask)}


class FeatureStd(Metric):
    """`feature_std` over all examples of a split."""

    def value(self, totals: Mapping[str, Any]) -> float:
        # The mean square of directions is 1.
        variance = 1 - float(np.sum(np.square(totals["directions"] / totals["examples"])))
        return max(variance, 0.0) ** 0.5
