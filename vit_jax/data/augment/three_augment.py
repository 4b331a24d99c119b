"""ThreeAugment: grayscale, solarize or blur."""

import cv2
import numpy as np
from PIL import Image

from vit_jax.data import image_ops
from vit_jax.data.augment import AUGMENTATIONS, Operation

_SOLARIZE_FROM = 128
# Standard deviation of the blur, in pixels of the model's image.
_SIGMAS = (0.1, 2.0)


@AUGMENTATIONS.register
class ThreeAugment(Operation):
    """Makes an image gray, solarizes it or blurs it, each with probability 1/3.

    Source: DeiT III, arXiv:2204.07118, section 3 and figure 2, with a colour jitter of 0.3.
    """

    stage = "host"
    place = 1

    def __call__(self, image: Image.Image, rng: np.random.Generator) -> Image.Image:
        choice = rng.integers(3)
        if choice == 0:
            return image.convert("L").convert("RGB")
        if choice == 1:
            return image_ops.solarize(image, _SOLARIZE_FROM)
        return blur(image, _SIGMAS[0] + (_SIGMAS[1] - _SIGMAS[0]) * rng.random())


def blur(image: Image.Image, sigma: float) -> Image.Image:
    """Blurs an image with a Gaussian; border pixels are repeated."""
    side = 2 * int(np.ceil(3 * sigma)) + 1
    pixels = cv2.GaussianBlur(
        np.asarray(image), (side, side), sigma, borderType=cv2.BORDER_REPLICATE
    )
    return Image.fromarray(pixels)
