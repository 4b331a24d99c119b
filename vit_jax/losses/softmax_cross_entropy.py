"""Softmax cross-entropy."""

import optax
from jaxtyping import Array, Float

from vit_jax.losses import LOSSES, LabelLoss


@LOSSES.register
class SoftmaxCrossEntropy(LabelLoss):
    """-sum_c targets_c log softmax(logits)_c.

    >>> import jax.numpy as jnp
    >>> SoftmaxCrossEntropy()(jnp.zeros((1, 4)), jnp.array([1])).round(4)  # log 4
    Array([1.3863], dtype=float32)
    """

    kind = "softmax cross-entropy"

    def per_example(
        self, logits: Float[Array, "B C"], targets: Float[Array, "B C"]
    ) -> Float[Array, " B"]:
        return optax.losses.softmax_cross_entropy(logits, targets)
