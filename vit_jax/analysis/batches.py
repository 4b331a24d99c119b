"""Running a model over many images, a batch at a time."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from vit_jax.errors import DataError, ModelError
from vit_jax.models.resnet import ResNet
from vit_jax.models.vit import ViT


def map_batches(
    function: Callable[[Any, jax.Array, jax.Array], Any],
    model: nnx.Module,
    images: Float[np.ndarray, "M H W 3"],
    batch_size: int,
) -> Any:
    """Returns a jitted function's results over all images, joined along their first axis.

    The last batch is filled up with copies of its first image, whose results are dropped, so that
    only one shape is compiled.

    Args:
        function: (model, images [B, H, W, 3], their places in `images` i32[B]) -> tree of arrays
            with a leading axis B.
        model: any.
        images: in [-1, 1].
        batch_size: B, images at once.

    Returns:
        The tree, its leaves NumPy arrays with a leading axis M.

    Raises:
        DataError: no images.
    """
    if not len(images):
        raise DataError("0 images", "at least one to look at", "give some")
    graphdef, state = nnx.split(model)

    @jax.jit
    def run(state: Any, images: jax.Array, places: jax.Array) -> Any:
        return function(nnx.merge(graphdef, state), images, places)

    size = min(batch_size, len(images))
    parts = []
    for start in range(0, len(images), size):
        places = np.arange(start, start + size)
        places[places >= len(images)] = start
        batch = jnp.asarray(images[places], jnp.float32)
        found = jax.device_get(run(state, batch, jnp.asarray(places, jnp.int32)))
        real = min(size, len(images) - start)
        parts.append(jax.tree.map(lambda leaf, real=real: leaf[:real], found))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def with_attention(model: ViT | ResNet, what: str) -> ViT:
    """Returns the model if it has attention.

    Args:
        model: any.
        what: the analysis, for the message.

    Raises:
        ModelError: a ResNet.
    """
    if isinstance(model, ResNet):
        raise ModelError(
            f"{what} of a ResNet, which has no attention", "a ViT or a hybrid",
            "ask for filters or receptive_field",
        )  # fmt: skip
    return model


def pixels_per_patch(model: ViT) -> tuple[int, int]:
    """Returns the distance in pixels from a token to the next, down and across."""
    return model.image_size[0] // model.grid[0], model.image_size[1] // model.grid[1]
