"""Targets and losses of self-distillation."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

_SINKHORN_STEPS = 3


def centred_targets(
    logits: Float[Array, "B *N K"], centre: Float[Array, " K"], temperature: Float[Array, ""]
) -> Float[Array, "B *N K"]:
    """Returns softmax((logits - centre) / temperature). Source: arXiv:2104.14294, equation 4."""
    centre = centre.reshape((1,) * (logits.ndim - 1) + centre.shape)
    return jax.nn.softmax((logits - centre) / temperature)


def sinkhorn_targets(
    logits: Float[Array, "M K"],
    temperature: Float[Array, ""],
    counted: Bool[Array, " M"] | None = None,
) -> Float[Array, "M K"]:
    """Returns probabilities whose mean over the rows is nearly the same for all prototypes.

    Three times, exp(logits / temperature) is scaled to equal sums over the rows, then to sums of 1
    over the prototypes. It is computed with logarithms, so that no value overflows. The rows are
    all views of the whole batch, or all masked patches; only those in `counted` count.

    Source: arXiv:2006.09882, section 3.1 and listing 1; in DINO: arXiv:2304.07193, section 4.
    """
    scaled = logits / temperature
    counted = jnp.ones(len(logits), bool) if counted is None else counted
    for _ in range(_SINKHORN_STEPS):
        rows = jnp.where(counted[:, None], scaled, -jnp.inf)
        total = jax.nn.logsumexp(rows, axis=0, keepdims=True)
        # Not finite if no row counts.
        scaled = scaled - jnp.where(jnp.isfinite(total), total, 0)
        scaled = scaled - jax.nn.logsumexp(scaled, axis=1, keepdims=True)
    return jnp.exp(scaled)


def view_losses(
    targets: Float[Array, "B T K"], logits: Float[Array, "B S K"], temperature: float
) -> Float[Array, " B"]:
    """Returns each image's mean cross-entropy over the pairs of different views.

    The first T of the student's S views are the teacher's. Source: arXiv:2104.14294, equation 3.
    """
    log_probs = jax.nn.log_softmax(logits / temperature)
    pairs = -jnp.einsum("btk,bsk->bts", targets, log_probs, precision="highest")
    others = ~jnp.eye(targets.shape[1], logits.shape[1], dtype=bool)
    return jnp.sum(jnp.where(others[None], pairs, 0), axis=(1, 2)) / others.sum()


def patch_losses(
    targets: Float[Array, "M P K"],
    logits: Float[Array, "M P K"],
    masked: Bool[Array, "M P"],
    temperature: float,
) -> Float[Array, " M"]:
    """Returns each crop's mean cross-entropy over its masked patches; 0 if it has none.

    Source: arXiv:2111.07832, equation 3, averaged over all crops as in arXiv:2304.07193's code.
    """
    log_probs = jax.nn.log_softmax(logits / temperature)
    losses = -jnp.sum(targets * log_probs, axis=-1)
    total = jnp.sum(jnp.where(masked, losses, 0), axis=1)
    return total / jnp.maximum(jnp.sum(masked, axis=1), 1)


def entropy(probabilities: Float[Array, "B *N K"]) -> Float[Array, ""]:
    """Returns the mean entropy, in nats: log K if uniform, 0 if one prototype has everything."""
    logs = jnp.log(jnp.maximum(probabilities, 1e-30))
    return -jnp.mean(jnp.sum(probabilities * logs, axis=-1))
