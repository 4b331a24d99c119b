"""Attention rollout: how much of each input patch reaches the output (Figures 6 and 14)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.analysis.batches import map_batches, with_attention
from vit_jax.models.resnet import ResNet
from vit_jax.models.vit import ViT

# pooling: whose view of the image the map is.
VIEW = {
    "token": "class token",
    "gap": "mean of the patches",
    "map": "probe that pools",
    "flatten": "mean of the patches",
}


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Attention followed from the output back to the patches.

    Attributes:
        matrices: f32[M, N, N]: at [m, i, j] how much of input token j is in output token i; class
            token and registers first; rows sum to 1.
        maps: f32[M, R, C] over the grid of patches: the same for the vector that is classified;
            sums to at most 1, the rest is that of class token and registers.
        view: whose row the maps are, one of the values of VIEW.
    """

    matrices: Float[np.ndarray, "M N N"]
    maps: Float[np.ndarray, "M R C"]
    view: str


def rollout(
    weights: Float[Array, "L B N N"] | Float[np.ndarray, "L B N N"],
) -> Float[Array, "B N N"]:
    """Returns the product over the layers of (attention + identity) / 2.

    The identity stands for the residual connection, without which the result would be that of a
    network that forgets its input at every layer.

    Args:
        weights: attention weights, query by key, mean over heads; first layer first.

    Source: arXiv:2005.00928, section 3; with heads averaged as in arXiv:2010.11929, D.8.
    """
    weights = jnp.asarray(weights)
    identity = jnp.eye(weights.shape[-1], dtype=weights.dtype)

    def step(product: jax.Array, layer: jax.Array) -> tuple[jax.Array, None]:
        mixed = 0.5 * layer + 0.5 * identity[None]
        return jnp.matmul(mixed, product, precision="highest"), None

    start = jnp.broadcast_to(identity, weights.shape[1:])
    return jax.lax.scan(step, start, weights)[0]


def attention_rollout(
    model: ViT | ResNet, images: Float[np.ndarray, "M H W 3"], *, batch_size: int = 8
) -> Rollout:
    """Returns the attention rollout of images.

    The map of an image is the row of what the head classifies: of the class token, where that is
    pooled; the mean over the patches' rows for "gap" and "flatten" (which gives each patch weights
    of its own in the head, that attention knows nothing of); the mean of the patches' rows weighted
    by the probe's attention (mean over heads) for "map". Columns of class token and registers are
    left out of the map.

    Args:
        model: ViT or hybrid.
        images: in [-1, 1], of the model's size.
        batch_size: images at once; heads are averaged inside the loop over the layers, [L, B, N, N]
            are held.

    Raises:
        ModelError: a ResNet, or images of another size.
        DataError: no images.
    """
    vit = with_attention(model, "rollout")

    def heads_mean(weights: jax.Array) -> jax.Array:
        return weights.mean(1)

    def follow(model: ViT, images: jax.Array, places: jax.Array) -> tuple[jax.Array, jax.Array]:
        del places
        _, found = model(
            images,
            return_intermediates=("attention_weights", "encoded"),
            reduce={"attention_weights": heads_mean},
        )
        matrices = rollout(found["attention_weights"])
        return matrices, _pooled_row(model, matrices, found["encoded"])

    matrices, rows = map_batches(follow, vit, images, batch_size)
    maps = rows[:, vit.num_prefix :].reshape(-1, *vit.grid)
    return Rollout(matrices, maps, VIEW[vit.pooling])


def _pooled_row(
    model: ViT, matrices: Float[Array, "B N N"], encoded: Float[Array, "B N D"]
) -> Float[Array, "B N"]:
    """Returns the row of the vector that is classified."""
    if model.pooling == "token":
        return matrices[:, 0]
    rows = matrices[:, model.num_prefix :]
    if model.attention_pooling is None:
        return rows.mean(1)
    probe = model.attention_pooling.weights(encoded[:, model.num_prefix :]).mean(1)
    return jnp.einsum("bn,bnm->bm", probe, rows, precision="highest")
