"""Resamples position tables and patch-embedding kernels to other image and patch sizes."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from vit_jax.errors import ARGUMENT, WeightsError
from vit_jax.models.embedding import kernel_resize_matrix
from vit_jax.models.heads import is_head

Grid = tuple[int, int]
Method = Literal["zoom", "bilinear", "bicubic"]

# Names or suffixes of the parameters that can be resampled, in every model family: tables with one
# vector per position, tables with one vector per row or column, and the patch-embedding kernel.
_TABLE = "position_embedding/table"
_AXES = ("position_embedding/by_row", "position_embedding/by_column")
_PATCH_KERNEL = "patch_embedding/kernel"


@dataclasses.dataclass(frozen=True)
class Target:
    """The sizes that parameters are resampled to."""

    shapes: Mapping[str, tuple[int, ...]]
    old_grid: Grid | None  # Rows and columns of patches.
    new_grid: Grid | None  # None: the model has no patches.
    image_size: tuple[int, int]  # (height, width) in pixels of the new model.
    method: Method  # For position tables.


def is_table(name: str) -> bool:
    """Whether a parameter is a position table with one vector per patch."""
    return name.endswith(_TABLE)


def fit_parameter(
    name: str, array: np.ndarray, target: Target, label: str | None = None
) -> np.ndarray:
    """Resamples a parameter to the model's shape. Returns the same array if the shapes match.

    Raises WeightsError, which calls the parameter `label`, if it cannot be resampled.
    """
    shape = target.shapes[name]
    fitted = array
    if is_table(name):
        fitted = _fit_table(array, shape, target)
    elif name.endswith(_AXES) and array.shape != shape:
        fitted = _each_layer(array, 2, lambda a: resample_axis(a, shape[-2]))
    elif name.endswith(_PATCH_KERNEL) and array.shape != shape and array.shape[2:] == shape[2:]:
        fitted = resample_kernel(array, shape[0])
    if fitted.shape != shape:
        raise _shape_error(name, label or repr(name), array.shape, target, shape)
    return fitted


def _shape_error(
    name: str, label: str, old: tuple[int, ...], target: Target, new: tuple[int, ...]
) -> WeightsError:
    if not _follows_patches(old, new, target):
        return WeightsError(
            f"{label} of shape {old}",
            f"{new}",
            "load with the original options and image size of the weights",
        )
    assert target.old_grid is not None
    assert target.new_grid is not None
    rows, columns = target.old_grid
    height = rows * target.image_size[0] // target.new_grid[0]
    width = columns * target.image_size[1] // target.new_grid[1]
    return WeightsError(
        f"{label} for a grid of {rows}x{columns} patches, in a model with"
        f" {target.new_grid[0]}x{target.new_grid[1]} patches",
        "the same number, because the size of this parameter depends on it",
        f"set {ARGUMENT} to {height if height == width else (height, width)}"
        + (", or ask for a new head (keep_head=False or --new_head)" if is_head(name) else ""),
        argument="image_size",
    )


def _follows_patches(old: tuple[int, ...], new: tuple[int, ...], target: Target) -> bool:
    """Whether the number of patches explains how two shapes differ.

    It does if every axis that differs has k patches + c entries, with the same k and c in both:
    k is 1 for an MLP over tokens, 2 for relative positions, the width for "flatten" pooling.
    """
    if target.old_grid is None or target.new_grid is None or len(old) != len(new):
        return False
    more = math.prod(target.new_grid) - math.prod(target.old_grid)
    differences = [b - a for a, b in zip(old, new, strict=True) if a != b]
    return more != 0 and all(d % more == 0 and d // more > 0 for d in differences)


def _fit_table(array: np.ndarray, shape: tuple[int, ...], target: Target) -> np.ndarray:
    if target.old_grid is None or target.new_grid is None:
        return array
    old, new = target.old_grid, target.new_grid
    if array.shape[-2] - old[0] * old[1] not in (0, 1):  # With or without a class token.
        raise WeightsError(
            f"a position table of {array.shape[-2]} vectors for a grid of {old[0]}x{old[1]}",
            "one vector per patch",
            f"correct the image size in config.json, or give {ARGUMENT}=",
            argument="grid",
        )
    table = _each_layer(array, 3, lambda a: resample_table(a, old, new, target.method))
    extra = shape[-2] - table.shape[-2]
    if extra < 0:  # The model has no class token, but the file has a vector for it.
        return table[..., -extra:, :]
    # Prefix tokens without a vector in the file get zeros, which have no effect.
    zeros = np.zeros((*table.shape[:-2], extra, table.shape[-1]), np.float32)
    return np.concatenate([zeros, table], axis=-2) if extra else table


def _each_layer(
    array: np.ndarray, rank: int, function: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Applies a function to an array of this rank, or to each layer of a stacked array."""
    if array.ndim == rank:
        return function(array)
    return np.stack([function(layer) for layer in array])


def resample_table(
    table: Float[np.ndarray, "1 R D"], old: Grid, new: Grid, method: Method = "zoom"
) -> Float[np.ndarray, "1 S D"]:
    """Resamples a position table to another grid. Vectors of prefix tokens stay the same.

    The table has the vectors of the prefix tokens, then of the patches in raster order. "zoom" is
    linear interpolation that keeps the corner vectors at the corners, as in the ViT paper's code
    (`scipy.ndimage.zoom` of order 1). "bilinear" and "bicubic" interpolate between patch centres,
    antialiased where the grid shrinks.

    Source: arXiv:2010.11929, section 3.2.
    """
    if old == new:
        return table
    patches = old[0] * old[1]
    prefix, grid = table[:, :-patches], table[0, -patches:].reshape(*old, -1)
    if method == "zoom":
        factors = (new[0] / old[0], new[1] / old[1], 1)
        resized = _zoom(grid, factors)
    else:
        shape = (*new, grid.shape[2])
        kind = "linear" if method == "bilinear" else "cubic"
        resized = np.asarray(jax.image.resize(jnp.asarray(grid), shape, kind, antialias=True))
    return np.concatenate([prefix, resized.reshape(1, new[0] * new[1], -1)], axis=1)


def _zoom(values: np.ndarray, factors: tuple[float, ...]) -> np.ndarray:
    from scipy import ndimage  # Takes a second; few runs need it.

    return np.asarray(ndimage.zoom(values, factors, order=1))


def resample_axis(vectors: Float[np.ndarray, "n D"], size: int) -> Float[np.ndarray, "m D"]:
    """Resamples the row or column vectors of a 2-D position embedding to `size` vectors."""
    if len(vectors) == size:
        return vectors
    return _zoom(vectors, (size / len(vectors), 1))


def resample_kernel(
    kernel: Float[np.ndarray, "P P C D"], size: int
) -> Float[np.ndarray, "Q Q C D"]:
    """Resamples a patch-embedding kernel to another patch size by pseudo-inverse resize.

    The new kernel applied to bilinearly resized patches gives the same embedding as the old kernel
    applied to the original patches: exactly if `size` is larger, in the least-squares sense if it
    is smaller.

    Source: arXiv:2212.08013 (FlexiViT), section 3.4.
    """
    if kernel.shape[0] == size:
        return kernel
    resize = kernel_resize_matrix(kernel.shape[0], size)
    new = np.einsum("pi,qj,ijcd->pqcd", resize, resize, kernel.astype(np.float64), optimize=True)
    return new.astype(np.float32)
