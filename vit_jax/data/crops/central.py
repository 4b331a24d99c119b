"""The crop of evaluation: the central square."""

import numpy as np

from vit_jax.data.boxes import Box, central_box
from vit_jax.data.crops import CROPS, Crop, CropName
from vit_jax.schema import option


@CROPS.register
class Central(Crop):
    """The central square, as in evaluation."""

    name: CropName = option("central")
    """The central square, as in evaluation."""
    fraction: float = option(0.875, above=0, at_most=1)
    """Its side, as a fraction of the image's short side."""

    def box(self, size: tuple[int, int], rng: np.random.Generator) -> Box:
        return central_box(size, self.fraction)
