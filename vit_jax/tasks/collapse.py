"""Notices collapse: a model without labels can learn to give all images the same features."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vit_jax.evaluation.loop import Totals

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


def direction_sums(
    features: Float[Array, "B D"], mask: Bool[Array, " B"]
) -> dict[str, Float[Array, "..."] | Int[Array, ""]]:
    """Returns the sums over the valid rows of a batch that `DirectionTotals` adds up."""
    counted = jnp.where(mask[:, None], _directions(features), 0)
    return {"directions": jnp.sum(counted, axis=0), "examples": jnp.sum(mask)}


class DirectionTotals(Totals):
    """Computes `feature_std` over all examples of a split."""

    def __init__(self):
        self._sum: float | np.ndarray = 0.0
        self._examples = 0

    def add(self, outputs: Mapping[str, np.ndarray]) -> None:
        self._sum = self._sum + outputs["directions"].astype(np.float64)
        self._examples += outputs["examples"].item()

    def metrics(self) -> dict[str, float]:
        # The mean square of directions is 1.
        variance = 1 - float(np.sum(np.square(self._sum / self._examples)))
        return {METRIC: max(variance, 0.0) ** 0.5, "examples": self._examples}
