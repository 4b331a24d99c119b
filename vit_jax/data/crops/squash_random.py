"""Random parts of a squashed image."""

import numpy as np

from vit_jax.data.boxes import Box, random_position
from vit_jax.data.crops import CROPS, Crop, CropName
from vit_jax.schema import option


@CROPS.register
class SquashRandom(Crop):
    """A box with a fraction of the image's width and height, at a random place.

    Resizing it equals resizing the image to a square and then cropping a smaller square at random.
    Source: arXiv:1912.11370, section 3.3.
    """

    name: CropName = option("squash_random")
    """Squash to a square, then crop a smaller one at a random place."""
    fraction: float = option(0.875, above=0, at_most=1)
    """Width and height as a fraction of the image's: 0.8 is 128 of 160 (arXiv:1912.11370)."""

    def box(self, size: tuple[int, int], rng: np.random.Generator) -> Box:
        w, h = (max(round(self.fraction * side), 1) for side in size)
        return random_position(*size, w, h, rng)
