"""The Poly-1 loss."""

import jax
import jax.numpy as jnp

import vit_jax


@vit_jax.register_loss
def poly(logits: jax.Array, targets: jax.Array, *, epsilon: float = 1.0) -> jax.Array:
    """Cross-entropy plus the probability that is not on the true class, times epsilon.

    Source: arXiv:2204.12511, Poly-1.

    Args:
        logits: f32[B, C].
        targets: share of each class f32[B, C].
        epsilon: weight of the second term; 0: cross-entropy.

    Returns:
        The loss of each example f32[B].
    """
    log_p = jax.nn.log_softmax(logits)
    return (targets * (epsilon * (1 - jnp.exp(log_p)) - log_p)).sum(axis=-1)
