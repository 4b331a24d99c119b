"""Accuracy of a classifier on images whose patches are in a random order.

    python -m experiments.inside_vit.permutation runs/quickstart [--output=FOLDER]

Each image has an order of its own; the content of a patch is not changed. The patches are the
model's tokens, and for models without tokens, such as a ResNet, an eighth of the image's side; then
patches of twice that side. Where that does not divide the image's side, the next larger size that
does is used. The first row has the images as they are. `change` is the accuracy minus that of the
first row; its interval resamples images, each with its two predictions. `unchanged` is the share of
the images that keep their predicted class. Without labels of the model's classes the table has only
that. Intervals are 95 %.

Source: after arXiv:2105.10497, which shuffles patches of several sizes.
"""

import argparse
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, Int, Num

from experiments.inside_vit.inputs import run
from vit_jax.analysis.batches import map_batches
from vit_jax.analysis.images import Images
from vit_jax.errors import ModelError
from vit_jax.evaluation.intervals import interval, resample_means, wilson_interval
from vit_jax.models.family import ImageModel
from vit_jax.rng import stream

# Patches along each side of the image for models without tokens.
_PATCHES_PER_SIDE = 8

Grid = tuple[int, int]


def permute_patches(
    images: Num[np.ndarray, "M H W C"], grid: Grid, orders: Int[np.ndarray, "M P"]
) -> Num[np.ndarray, "M H W C"]:
    """Returns images with their patches in another order.

    Element [m, k] of `orders` is the patch of image m that is put at place k, both in raster order.

    >>> permute_patches(np.arange(4).reshape(1, 1, 4, 1), (1, 2), np.array([[1, 0]])).ravel()
    array([2, 3, 0, 1])
    """
    count, height, width, channels = images.shape
    rows, columns = grid
    split = (count, rows, height // rows, columns, width // columns, channels)
    patches = images.reshape(split).transpose(0, 1, 3, 2, 4, 5)
    flat = patches.reshape(count, rows * columns, *patches.shape[3:])
    moved = flat[np.arange(count)[:, None], orders].reshape(patches.shape)
    return moved.transpose(0, 1, 3, 2, 4, 5).reshape(images.shape)


def random_orders(seed: int, count: int, grid: Grid) -> Int[np.ndarray, "M P"]:
    """Returns an order of the patches for each image, which depends on the seed and its index."""
    key = stream(seed, "permutation")

    def draw(index: Array) -> Array:
        return jax.random.permutation(jax.random.fold_in(key, index), math.prod(grid))

    return np.asarray(jax.jit(jax.vmap(draw))(jnp.arange(count)))


def permutation_grids(model: ImageModel) -> list[Grid]:
    """Returns the rows and columns of the patches to permute; an image of one patch is left out."""
    height, width = model.image_size
    first = model.grid
    if model.num_tokens is None:
        first = (_divisor(height, _PATCHES_PER_SIDE), _divisor(width, _PATCHES_PER_SIDE))
    second = (_divisor(height, max(1, first[0] // 2)), _divisor(width, max(1, first[1] // 2)))
    return [grid for grid in dict.fromkeys((first, second)) if math.prod(grid) > 1]


def _divisor(side: int, at_most: int) -> int:
    """Returns the largest divisor of a side that is not above a number."""
    return max(n for n in range(1, at_most + 1) if side % n == 0)


def predictions(
    model: ImageModel,
    images: Float[np.ndarray, "M H W 3"],
    grids: Sequence[Grid],
    batch_size: int = 16,
    seed: int = 0,
) -> Int[np.ndarray, "G M"]:
    """Returns the classes of the images as they are, then with permuted patches of each grid."""

    def predict(model: Any, images: Array, indices: Array) -> Array:
        del indices
        return jnp.argmax(model(images), axis=-1).astype(jnp.int32)

    orders = [random_orders(seed, len(images), grid) for grid in grids]
    views = [images, *(permute_patches(images, *pair) for pair in zip(grids, orders, strict=True))]
    found = map_batches(predict, model, np.concatenate(views), batch_size)
    return found.reshape(len(views), -1)


def summarise(
    predicted: Int[np.ndarray, "G M"], labels: Int[np.ndarray, " M"] | None, num_classes: int
) -> pd.DataFrame:
    """Returns a row for each row of the predictions; the first are those without permutation."""
    count = predicted.shape[1]
    rows = []
    for classes in predicted:
        row: dict[str, float] = {"images": count}
        if labels is not None:
            row |= _with_interval("accuracy", float((classes == labels).mean()), count)
            row["chance"] = 1 / num_classes
            change = (classes == labels).astype(np.float32) - (predicted[0] == labels)
            low, high = interval(resample_means(change, "all"))
            row |= {"change": change.mean(), "change_low": low, "change_high": high}
        rows.append(row | _with_interval("unchanged", (classes == predicted[0]).mean(), count))
    return pd.DataFrame(rows)


def _with_interval(name: str, share: float, count: int) -> dict[str, float]:
    low, high = wilson_interval(share, count)
    return {name: share, f"{name}_low": low, f"{name}_high": high}


def measure(model: Any, images: Images, args: argparse.Namespace) -> pd.DataFrame:
    """Returns the table of `summarise` with the sizes of the patches."""
    if model.head.linear is None or not np.any(np.asarray(model.head.linear.kernel[...])):
        raise ModelError(
            "a model that predicts one class, or none", "a trained classifier", "choose another"
        )
    classes = model.head.linear.kernel.shape[-1]
    labels = images.labels if images.num_classes == classes else None
    grids = permutation_grids(model)
    found = predictions(model, images.normalized, grids, args.batch_size, args.seed)
    table = summarise(found, labels, classes)
    height, width = model.image_size
    sizes = [(height, width), *((height // rows, width // columns) for rows, columns in grids)]
    table.insert(0, "patches", [1, *map(math.prod, grids)])
    table.insert(1, "patch_height_px", [size[0] for size in sizes])
    table.insert(2, "patch_width_px", [size[1] for size in sizes])
    return table


if __name__ == "__main__":
    run("permutation", measure)
