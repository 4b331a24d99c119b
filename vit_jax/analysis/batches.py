"""Applies a model to many images in batches, and other helpers of the analyses."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.errors import DataError, ModelError
from vit_jax.models.family import ImageModel, as_images


def map_batches(
    function: Callable[[Any, jax.Array, jax.Array], Any],
    model: nnx.Module,
    images: Float[np.ndarray, "M H W 3"],
    batch_size: int,
) -> Any:
    """Applies a jitted function to all images and concatenates the results along their first axis.

    The last batch is padded with copies of its first image, so that only one shape is compiled. The
    results of the copies are dropped. The function gets the model, images [B, H, W, 3] in [-1, 1]
    and their indices i32[B], and returns a tree of arrays with a leading axis B; the result has M.
    """
    if not len(images):
        raise DataError("0 images", "at least one image", "pass at least one image")
    graphdef, state = nnx.split(model)

    @jax.jit
    def run(state: Any, images: jax.Array, indices: jax.Array) -> Any:
        return function(nnx.merge(graphdef, state), images, indices)

    size = min(batch_size, len(images))
    parts = []
    for start in range(0, len(images), size):
        indices = np.arange(start, start + size)
        indices[indices >= len(images)] = start
        batch = jnp.asarray(images[indices], jnp.float32)
        found = jax.device_get(run(state, batch, jnp.asarray(indices, jnp.int32)))
        real = min(size, len(images) - start)
        parts.append(jax.tree.map(lambda leaf, real=real: leaf[:real], found))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def map_attention(
    model: Any, images: Float[Array, "B H W 3"], function: Callable[[jax.Array], jax.Array]
) -> tuple[Array, Float[Array, "B N D"]]:
    """Applies a function to each layer's attention weights f32[B, H, N, N], one after the other.

    Returns:
        The function's values with a leading axis over the layers, and the encoded tokens.
    """
    x, values = model.embed(model.embed_patches(as_images(images, model.image_size))), []
    for layer in range(model.num_layers):
        x, found = model.encode(x, span=(layer, layer + 1), capture=("attention_weights",))
        values.append(function(found["attention_weights"][0]))
    return jnp.stack(values), model.final_norm(x)


def check_attention(model: ImageModel, analysis: str) -> None:
    """Raises ModelError unless every block of a model has attention weights between all tokens."""
    if model.num_heads is None:
        raise ModelError(
            f"{analysis} of a {type(model).__name__}, which has no attention",
            "a ViT or a hybrid",
            "choose filters",
        )


def pixels_per_patch(model: ImageModel) -> tuple[int, int]:
    """Returns the distance between neighbouring patches in pixels, down and across."""
    return model.image_size[0] // model.grid[0], model.image_size[1] // model.grid[1]


def submodules(model: nnx.Module, kind: type) -> list[Any]:
    """Returns the submodules of a class, sorted by path."""
    return [part for _, part in nnx.iter_modules(model) if isinstance(part, kind)]
