"""Random squares."""

import numpy as np

from vit_jax.data.boxes import Box, random_position
from vit_jax.data.crops import CROPS, Crop, CropName
from vit_jax.schema import option


@CROPS.register
class RandomSquare(Crop):
    """A square as large as the short side, at a random place.

    Resizing it equals resizing the short side and then cropping a square at random, to within half
    a pixel. Source: arXiv:2103.00020, section 2.5.
    """

    name: CropName = option("random_square")
    """A square as large as fits, at a random place."""

    def box(self, size: tuple[int, int], rng: np.random.Generator) -> Box:
        return random_position(*size, min(size), min(size), rng)
