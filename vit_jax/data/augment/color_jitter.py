"""Colour jitter."""

import numpy as np
from PIL import Image

from vit_jax.data import image_ops
from vit_jax.data.augment import AUGMENTATIONS, Operation
from vit_jax.schema import option


@AUGMENTATIONS.register
class ColorJitter(Operation):
    """Multiplies brightness, contrast and saturation, in random order."""

    stage = "host"
    place = 2

    strength: float = option(0.3, above=0, at_most=1)
    """The factors are uniform in 1 +- this."""

    @property
    def same_at_any_size(self) -> bool:
        return True

    def __call__(self, image: Image.Image, rng: np.random.Generator) -> Image.Image:
        factors = 1 + self.strength * (2 * rng.random(3) - 1)
        kinds = (image_ops.brightness, image_ops.contrast, image_ops.color)
        for i in rng.permutation(3):
            image = kinds[i](image, float(factors[i]))
        return image
