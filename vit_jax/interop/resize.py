"""Position tables at other grids, patch kernels at other sizes."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import scipy.ndimage
from jaxtyping import Float

Grid = tuple[int, int]
Method = Literal["zoom", "bilinear", "bicubic"]


def resample_table(
    table: Float[np.ndarray, "1 R D"], old: Grid, new: Grid, method: Method = "zoom"
) -> Float[np.ndarray, "1 S D"]:
    """Returns a position table at another grid; vectors before the patches stay as they are.

    Args:
        table: vectors of the tokens before the patches, then of the patches in raster order.
        old: patches down and across that the table is for.
        new: patches down and across wanted.
        method: "zoom": linear between the corner vectors, which stay the corners, as in the ViT
            paper's code (`scipy.ndimage.zoom` of order 1); "bilinear" and "bicubic": by the
            patches' centres, antialiased where the grid shrinks.

    Source: arXiv:2010.11929, section 3.2.
    """
    if old == new:
        return table
    patches = old[0] * old[1]
    prefix, grid = table[:, :-patches], table[0, -patches:].reshape(*old, -1)
    if method == "zoom":
        factors = (new[0] / old[0], new[1] / old[1], 1)
        resized = np.asarray(scipy.ndimage.zoom(grid, factors, order=1))
    else:
        shape = (*new, grid.shape[2])
        kind = "linear" if method == "bilinear" else "cubic"
        resized = np.asarray(jax.image.resize(jnp.asarray(grid), shape, kind, antialias=True))
    return np.concatenate([prefix, resized.reshape(1, new[0] * new[1], -1)], axis=1)


def resample_axis(vectors: Float[np.ndarray, "n D"], size: int) -> Float[np.ndarray, "m D"]:
    """Returns the row or column vectors of a 2-D embedding for another number of them."""
    if len(vectors) == size:
        return vectors
    return np.asarray(scipy.ndimage.zoom(vectors, (size / len(vectors), 1), order=1))


def resample_kernel(
    kernel: Float[np.ndarray, "P P C D"], size: int
) -> Float[np.ndarray, "Q Q C D"]:
    """Returns a patch-embedding kernel for another patch size by pseudo-inverse resize.

    Patches resized bilinearly to `size` and embedded with the new kernel give what the patches
    gave with the old one: exactly where `size` is larger, as nearly as possible where smaller.

    Source: arXiv:2212.08013 (FlexiViT), section 3.4.
    """
    old = kernel.shape[0]
    if old == size:
        return kernel
    resize = resize_matrix(old, size)
    # <resize x, w'> = <x, w> for all x: w' solves resize^T w' = w, in least squares.
    flat = kernel.reshape(old * old, -1).astype(np.float64)
    new = np.linalg.pinv(resize.T) @ flat
    return new.reshape(size, size, *kernel.shape[2:]).astype(np.float32)


def resize_matrix(old: int, new: int) -> Float[np.ndarray, "n o"]:
    """Returns the matrix, f64[new**2, old**2], of bilinear resizing without antialiasing."""
    with jax.enable_x64(True):
        basis = jnp.eye(old * old, dtype=jnp.float64).reshape(old * old, old, old)
        shape = (old * old, new, new)
        resized = jax.image.resize(basis, shape, "linear", antialias=False)
        return np.asarray(resized).reshape(old * old, new * new).T
