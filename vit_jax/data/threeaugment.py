"""ThreeAugment (grayscale, solarize or blur) and colour jitter.

Source: DeiT III, arXiv:2204.07118, section 3 and figure 2, which uses a colour jitter of 0.3.
"""

import cv2
import numpy as np
from PIL import Image

from vit_jax.data import image_ops

_SOLARIZE_FROM = 128
# Standard deviation of the blur, in pixels of the model's image.
_SIGMAS = (0.1, 2.0)


def three_augment(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Makes an RGB image gray, solarizes it or blurs it, each with probability 1/3."""
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


def color_jitter(image: Image.Image, strength: float, rng: np.random.Generator) -> Image.Image:
    """Multiplies brightness, contrast and saturation, in random order.

    The factors are uniform in [1 - strength, 1 + strength]; the strength is at most 1.
    """
    factors = 1 + strength * (2 * rng.random(3) - 1)
    kinds = (image_ops.brightness, image_ops.contrast, image_ops.color)
    for i in rng.permutation(3):
        image = kinds[i](image, float(factors[i]))
    return image
