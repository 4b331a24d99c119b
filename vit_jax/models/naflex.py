"""Images of any aspect ratio as padded sequences of patches (NaFlex).

An image is resized so that its patches fit a sequence length, and keep about its aspect ratio. The
sequence is padded to that length. Which patches are real follows from the grid: a batch therefore
carries no separate mask that could contradict it.

Source: arXiv:2502.14786 (SigLIP 2), section 2.4; arXiv:2307.06304 (NaViT).
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# The search for the scale of an image ends at this precision. Source: big_vision, transformers.
_PRECISION = 1e-5
_LARGEST_SCALE = 100.0


class Patches(NamedTuple):
    """A batch of images as sequences of patches, for a ViT's call.

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


def interpolated_positions(
    table: Float[Array, "G H D"], grid: Int[Array, "B 2"], length: int
) -> Float[Array, "B N D"]:
    """Returns position embeddings of each image, for a table that is resized to its grid.

    Bilinear with antialiasing, as `jax.image.resize(table, grid, "linear")`, which cannot do it for
    a traced grid. Padding up to `length` gets the embeddings of places beyond the last row.
    """
    grid = jnp.maximum(grid, 1)
    place = jnp.arange(length)
    row, column = place[None] // grid[:, 1:], place[None] % grid[:, 1:]
    by_row = _resize_weights(row, grid[:, :1], table.shape[0])
    by_column = _resize_weights(column, grid[:, 1:], table.shape[1])
    weights = by_row[..., :, None] * by_column[..., None, :]
    flat = table.reshape(-1, table.shape[-1])
    return jnp.matmul(weights.reshape(*row.shape, -1), flat, precision="highest")


def _resize_weights(
    index: Int[Array, "B N"], size: Int[Array, "B 1"], stored: int
) -> Float[Array, "B N S"]:
    """Returns the weights of the stored places along one axis for some places of the new axis."""
    step = stored / size.astype(jnp.float32)
    centre = (index.astype(jnp.float32) + 0.5) * step - 0.5
    distance = jnp.abs(centre[..., None] - jnp.arange(stored, dtype=jnp.float32)[None, None])
    weights = jnp.maximum(0.0, 1 - distance / jnp.maximum(step, 1.0)[..., None])
    return weights / jnp.maximum(weights.sum(-1, keepdims=True), 1e-6)
