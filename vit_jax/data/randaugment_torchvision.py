"""RandAugment with the operations and strengths of torchvision's `RandAugment` on Pillow images.

Source: the behaviour of torchvision 0.11 to 0.28. Magnitudes are 0 to 30; here they need not be
integers. `data.randaugment` compares this flavour with the paper's.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image

from vit_jax.data import image_ops

_LAST = 30
_BLACK = (0, 0, 0)

# (image, level) -> image. The level is sign * magnitude / 30, from -1 to 1.
Operation = Callable[[Image.Image, float], Image.Image]


def randaugment_torchvision(
    image: Image.Image, layers: int, magnitude: float, rng: np.random.Generator
) -> Image.Image:
    """Applies `layers` operations drawn with replacement, all at one strength.

    Args:
        image: RGB.
        layers: number of operations.
        magnitude: strength, 0 to 30.
        rng: source of randomness.

    Returns:
        An RGB image of the same size.
    """
    names = list(OPERATIONS)
    for _ in range(layers):
        name = names[int(rng.integers(len(names)))]
        operation, signed = OPERATIONS[name]
        sign = -1 if signed and rng.integers(2) else 1
        image = operation(image, sign * magnitude / _LAST)
    return image


def _enhance(kind: Callable[[Image.Image, float], Image.Image]) -> Operation:
    """Returns an enhancement by the factor 1 + 0.9 * level, between 0.1 and 1.9."""
    return lambda image, level: kind(image, 1 + 0.9 * level)


def _shear_x(image: Image.Image, level: float) -> Image.Image:
    return image_ops.affine(image, (1, 0.3 * level, 0, 0, 1, 0), _BLACK)


def _shear_y(image: Image.Image, level: float) -> Image.Image:
    return image_ops.affine(image, (1, 0, 0, 0.3 * level, 1, 0), _BLACK)


# The published 150 pixels are for a width of 331; torchvision scales them to any size and rounds to
# integers. Positive levels move right and down.
def _translate_x(image: Image.Image, level: float) -> Image.Image:
    return image_ops.affine(image, (1, 0, -int(150 / 331 * image.width * level), 0, 1, 0), _BLACK)


def _translate_y(image: Image.Image, level: float) -> Image.Image:
    return image_ops.affine(image, (1, 0, 0, 0, 1, -int(150 / 331 * image.height * level)), _BLACK)


# Name -> (operation, whether its level has a random sign).
OPERATIONS: dict[str, tuple[Operation, bool]] = {
    "identity": (lambda image, level: image, False),
    "shear_x": (_shear_x, True),
    "shear_y": (_shear_y, True),
    "translate_x": (_translate_x, True),
    "translate_y": (_translate_y, True),
    # Up to 30 degrees.
    "rotate": (lambda image, level: image_ops.rotate(image, 30 * level, _BLACK), True),
    "brightness": (_enhance(image_ops.brightness), True),
    "color": (_enhance(image_ops.color), True),
    "contrast": (_enhance(image_ops.contrast), True),
    "sharpness": (_enhance(image_ops.sharpness), True),
    # Keeps 8 bits at level 0 and 4 bits at level 1.
    "posterize": (lambda image, level: image_ops.posterize(image, 8 - round(4 * level)), False),
    # Level 0 inverts only white, level 1 all values.
    "solarize": (lambda image, level: image_ops.solarize(image, 255 * (1 - level)), False),
    "auto_contrast": (lambda image, level: image_ops.auto_contrast(image), False),
    "equalize": (lambda image, level: image_ops.equalize(image), False),
}
