"""Batches as named arrays. A task defines which arrays an example has and how to make them.

The loader, the reader processes and the padding of evaluation batches use only names, shapes and
dtypes. Besides the task's arrays every batch has `mask`, which is False in padding rows.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

import jax
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from vit_jax.data.sources.base import Example
from vit_jax.data.transforms import Transform
from vit_jax.errors import DataError


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """One named array of a batch."""

    shape: tuple[int, ...]  # Of one example, without the batch dimension.
    dtype: DTypeLike  # On the host; the array is copied to the device unchanged.
    padding: float = 0  # Value in the padding rows of an evaluation batch.

    @property
    def num_bytes(self) -> int:
        """Bytes of one example."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """How the host turns an example of a source into one row of a batch.

    The loader reserves the names "mask", "index" and "skipped". `make_row` draws everything random
    from its generator, so that a batch depends only on (seed, step), and raises DataError for an
    example that cannot be used.
    """

    arrays: Mapping[str, ArraySpec]
    make_row: Callable[[Example, np.random.Generator], Mapping[str, ArrayLike]]


def labelled_image_arrays(image_size: int) -> dict[str, ArraySpec]:
    """Returns the arrays of a labelled image of height and width `image_size`."""
    return {
        "image": ArraySpec((image_size, image_size, 3), np.uint8),
        "label": ArraySpec((), np.int32),
    }


def labelled_image(transform: Transform, image_size: int, num_classes: int) -> Preprocessing:
    """Returns the preprocessing of a labelled image: `image` u8[H, W, 3] and `label` i32."""

    def make_row(example: Example, rng: np.random.Generator) -> dict[str, ArrayLike]:
        label = _checked_label(example, num_classes)
        return {"image": transform(example.image, rng), "label": label}

    return Preprocessing(labelled_image_arrays(image_size), make_row)


def _checked_label(example: Example, num_classes: int) -> int:
    if not 0 <= example.label < num_classes:
        raise DataError(
            f"label {example.label}",
            f"0 to {num_classes - 1}",
            "repair the dataset, or correct the number of classes: its class_names or"
            " data.num_classes",
        )
    return example.label


def labelled_patches(
    transform: Transform, patch_size: int, length: int, num_classes: int, *, flip: bool
) -> Preprocessing:
    """Returns the preprocessing of a labelled image as a padded sequence of patches of P pixels.

    Its arrays are `patches` u8[N, P * P * 3], padded with zeros, `grid` i32[2], the rows and
    columns of patches, and `label` i32. The transform must return sides divisible by P, and at most
    N = `length` patches. `flip` mirrors an image left to right with probability 1/2.
    """
    p = patch_size

    def make_row(example: Example, rng: np.random.Generator) -> dict[str, ArrayLike]:
        label = _checked_label(example, num_classes)
        pixels = transform(example.image, rng)
        if flip and rng.random() < 0.5:
            pixels = pixels[:, ::-1]
        rows, columns = pixels.shape[0] // p, pixels.shape[1] // p
        cut = pixels.reshape(rows, p, columns, p, 3).swapaxes(1, 2).reshape(rows * columns, -1)
        patches = np.zeros((length, p * p * 3), np.uint8)
        patches[: len(cut)] = cut
        return {"patches": patches, "grid": np.array([rows, columns], np.int32), "label": label}

    arrays = {
        "patches": ArraySpec((length, p * p * 3), np.uint8),
        "grid": ArraySpec((2,), np.int32, padding=1),
        "label": ArraySpec((), np.int32),
    }
    return Preprocessing(arrays, make_row)


def batch_shapes(
    arrays: Mapping[str, ArraySpec], batch_size: int, sharding: jax.sharding.Sharding | None = None
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of a batch on the device, including `mask`, for tracing a program."""
    return {
        name: jax.ShapeDtypeStruct((batch_size, *array.shape), array.dtype, sharding=sharding)
        for name, array in {**arrays, "mask": ArraySpec((), np.bool_)}.items()
    }
