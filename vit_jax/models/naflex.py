"""Images of any aspect ratio as padded sequences of patches (NaFlex).

An image is resized so that its patches fit a sequence length, and keep about its aspect ratio. The
sequence is padded to that length. Which patches are real follows from the grid: a batch therefore
carries no separate mask that could contradict it.

Source: arXiv:2502.14786 (SigLIP 2), section 2.4; arXiv:2307.06304 (NaViT).
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vit_jax.errors import ModelError
from vit_jax.models.distilled_vit import DistilledViT
from vit_jax.models.embedding import Learned1d
from vit_jax.models.vit import ViT

# The search for the scale of an image ends at this precision. Source: big_vision, transformers.
_PRECISION = 1e-5
_LARGEST_SCALE = 100.0


class Patches(NamedTuple):
    """A batch of images as sequences of patches, for `apply`.

    The patches are in [-1, 1], in raster order, each with its rows, columns, then colours. Padding
    comes last. The grid has at least 1 row and column of patches for each image.
    """

    patches: Float[Array, "B N F"]
    grid: Int[Array, "B 2"]

    @property
    def lengths(self) -> Int[Array, " B"]:
        """Number of patches of each image."""
        return jnp.prod(jnp.maximum(self.grid, 1), axis=1)

    @property
    def mask(self) -> Bool[Array, "B N"]:
        """True where there is a patch, False in the padding."""
        return jnp.arange(self.patches.shape[1])[None] < self.lengths[:, None]


def apply(model: ViT, images: Patches, *, key: jax.Array | None = None) -> Float[Array, "B C"]:
    """Returns the logits of images of any size, f32; a key turns dropout on.

    Raises:
        ModelError: the model cannot have sequences of patches as its input.
    """
    _check(model, images)
    keys = (None, None) if key is None else tuple(jax.random.split(key))
    positions = None
    if isinstance(model.position_embedding, Learned1d):
        positions = model.position_embedding.of_grids(images.grid, images.patches.shape[1])
    x = model.embed(model.patch_embedding.of_patches(images.patches), positions, key=keys[0])
    x, _ = model.encoder(x, num_valid=model.num_prefix + images.lengths, key=keys[1])
    encoded = model.final_norm(x)
    patches = encoded[:, model.num_prefix :]
    if model.attention_pooling is not None:
        features = model.attention_pooling(patches, images.lengths)
    elif model.pooling == "gap":
        real = jnp.where(images.mask[..., None], patches, 0)
        total, count = real.sum(1, dtype=jnp.float32), images.mask.sum(1, dtype=jnp.float32)
        features = (total / count[:, None]).astype(encoded.dtype)
    else:
        features = encoded[:, 0]
    if model.norm_after_pooling:
        features = model.norm(features)
    return model.head(features)[0]


def _check(model: ViT, images: Patches) -> None:
    """Raises ModelError unless a model can have these sequences of patches as its input."""
    options: Any = model.config
    size = 3 * model.patch_embedding.patch_size**2
    if options.position_embedding not in ("learned_1d", "none"):
        problem = "a position embedding other than learned_1d or none"
    elif options.position_placement != "stem":
        problem = f"position_placement {options.position_placement}"
    elif model.stem is not None:
        problem = "a stem"
    elif options.pooling == "flatten" or isinstance(model, DistilledViT):
        problem = "pooling flatten" if options.pooling == "flatten" else "a register head"
    elif images.patches.shape[-1] != size:
        problem = f"patches of {images.patches.shape[-1]} values instead of {size}"
    else:
        return
    raise ModelError(
        f"sequences of patches for a ViT with {problem}",
        "a plain ViT with position_embedding learned_1d, and patches of its size",
        "change the options of the model",
    )


def fit_grid(height: int, width: int, patch_size: int, length: int) -> tuple[int, int]:
    """Returns the largest (rows, columns) of patches for an image, with at most `length` patches.

    Both sides, in pixels, are scaled by the same factor and rounded up to whole patches.

    Source: `resize_to_sequence` of big_vision; transformers does the same for SigLIP 2.

    >>> fit_grid(480, 640, 16, 256), fit_grid(100, 100, 16, 256), fit_grid(10, 5000, 16, 16)
    ((14, 18), (16, 16), (1, 16))
    """

    def sides(scale: float) -> tuple[int, int]:
        rows, columns = (max(math.ceil(side * scale / patch_size), 1) for side in (height, width))
        return rows, columns

    low, high = _PRECISION / 10, _LARGEST_SCALE
    while high - low >= _PRECISION:
        middle = (low + high) / 2
        if math.prod(sides(middle)) <= length:
            low = middle
        else:
            high = middle
    return sides(low)
