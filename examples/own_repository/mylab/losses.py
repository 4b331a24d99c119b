"""The focal loss."""

import jax
import jax.numpy as jnp

import vit_jax


@vit_jax.register_loss
def focal(logits: jax.Array, targets: jax.Array, *, gamma: float = 2.0) -> jax.Array:
    """Cross-entropy in which examples that are classified well count less.

    Source: arXiv:1708.02002, equation 4.

    Args:
        logits: f32[B, C].
        targets: share of each class f32[B, C].
        gamma: the factor of a class with probability p is (1 - p) ** gamma; 0: cross-entropy.

    Returns:
        The loss of each example f32[B].
    """
    log_p = jax.nn.log_softmax(logits)
    return -(targets * (1 - jnp.exp(log_p)) ** gamma * log_p).sum(axis=-1)
