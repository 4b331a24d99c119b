"""The crops of an image on the host, and the masks of their patches."""

import functools
import math
from typing import Any

import numpy as np
from jaxtyping import Bool
from numpy.typing import ArrayLike

from vit_jax.config.data import DataConfig
from vit_jax.config.run import Config
from vit_jax.data.arrays import ArraySpec, Preprocessing
from vit_jax.data.crops.inception import INCEPTION_BOX
from vit_jax.data.sources.base import Example
from vit_jax.data.transforms import DrawBox, make_train_transform
from vit_jax.tasks.dino.config import DinoConfig

GLOBAL_CROPS = ("image", "second_image")
"""Arrays of a batch: the two global crops."""

# Limits of a block of masked patches: number of patches, and height / width (BEiT,
# arXiv:2106.08254, algorithm 1, with the aspect ratios of its code).
_SMALLEST_BLOCK = 4
_LOG_RATIOS = (math.log(0.3), -math.log(0.3))
_BLOCK_TRIES = 10
# Probability that a global crop is masked, and the smallest and largest share of its patches. As in
# iBOT's code.
_MASKED_PROBABILITY, _MASKED_SHARES = 0.5, (0.1, 0.5)


def crop_preprocessing(config: Config, grid: tuple[int, int]) -> Preprocessing:
    """Returns the preprocessing of training images.

    The arrays are `image` and `second_image` u8[S, S, 3], `local_images` u8[k, s, s, 3] unless k is
    0, and with the iBOT term `masked` bool[2, N], the masked patches of the global crops. `grid`
    has the rows and columns of patches of a global crop.
    """
    section = config.task
    assert isinstance(section, DinoConfig)
    side, small, count = config.data.image_size, section.local_size, section.local_crops
    data = config.data
    make_global = make_train_transform(side, data, _draw_box(data, section.global_min_area, 1.0))
    make_local = make_train_transform(
        small, data, _draw_box(data, section.local_min_area, section.local_max_area)
    )
    arrays = {name: ArraySpec((side, side, 3), np.uint8) for name in GLOBAL_CROPS}
    if count:
        arrays["local_images"] = ArraySpec((count, small, small, 3), np.uint8)
    if section.ibot_weight:
        arrays["masked"] = ArraySpec((2, grid[0] * grid[1]), np.bool_)

    def make_row(example: Example, rng: np.random.Generator) -> dict[str, ArrayLike]:
        row: dict[str, ArrayLike] = {name: make_global(example.image, rng) for name in GLOBAL_CROPS}
        if count:
            row["local_images"] = np.stack([make_local(example.image, rng) for _ in range(count)])
        if section.ibot_weight:
            row["masked"] = np.stack([draw_masked(grid, rng).ravel() for _ in range(2)])
        return row

    return Preprocessing(arrays, make_row)


def _draw_box(data: DataConfig, low: float, high: float) -> DrawBox:
    """Returns the function that draws a box, whose area is between fractions of the image's."""
    crop: Any = data.augment.crop
    return functools.partial(INCEPTION_BOX[crop.flavour], min_area=low, max_area=high)


def most_masked(num_patches: int) -> int:
    """Returns the largest number of masked patches of a crop."""
    return max(1, int(_MASKED_SHARES[1] * num_patches))


def draw_masked(grid: tuple[int, int], rng: np.random.Generator) -> Bool[np.ndarray, "R C"]:
    """Draws the masked patches of one crop: none, or a random share of them in blocks."""
    patches = grid[0] * grid[1]
    count = max(1, min(round(rng.uniform(*_MASKED_SHARES) * patches), most_masked(patches)))
    if rng.random() >= _MASKED_PROBABILITY:
        return np.zeros(grid, bool)
    return draw_blocks(grid, count, rng)


def draw_blocks(
    grid: tuple[int, int], count: int, rng: np.random.Generator
) -> Bool[np.ndarray, "R C"]:
    """Masks exactly `count` patches: random rectangles, then single patches for the rest.

    Source: arXiv:2106.08254, algorithm 1. Ours: the last patches are single, so that the number is
    exact.
    """
    masked = np.zeros(grid, bool)
    for _ in range(_BLOCK_TRIES * max(count // _SMALLEST_BLOCK, 1)):
        left = count - int(masked.sum())
        if left < _SMALLEST_BLOCK:
            break
        area = rng.uniform(_SMALLEST_BLOCK, left)
        ratio = math.exp(rng.uniform(*_LOG_RATIOS))
        height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if not (0 < height <= grid[0] and 0 < width <= grid[1]):
            continue
        top, start = rng.integers(grid[0] - height + 1), rng.integers(grid[1] - width + 1)
        block = (slice(top, top + height), slice(start, start + width))
        if np.count_nonzero(~masked[block]) <= left:
            masked[block] = True
    free = np.flatnonzero(~masked)
    single = rng.permutation(free)[: count - int(masked.sum())]
    masked.reshape(-1)[single] = True
    return masked
