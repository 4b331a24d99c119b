"""RandAugment as DeiT, DeiT III and MAE's fine-tuning use it: `rand-m9-mstd0.5-inc1` of timm.

Fifteen operations, each stronger at larger magnitudes. Every drawn operation is applied with
probability 1/2, so two layers leave a quarter of the images unchanged. Its magnitude is drawn from
a normal distribution around the chosen one and clipped to 0 to 10. New pixels have ImageNet's mean
colour; geometry is interpolated bicubically, as in those recipes.

Source: the behaviour of timm 0.3.2, which these recipes pin, and 1.0; arXiv:2012.12877, Table 9.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image

from vit_jax.data import image_ops

_PROBABILITY = 0.5
_DEVIATION = 0.5  # Of the magnitude.
_LAST = 10.0
_FILL = (124, 116, 104)  # 255 times ImageNet's mean.
_BICUBIC = Image.Resampling.BICUBIC

# (image, level) -> image. The level is sign * magnitude / 10, from -1 to 1.
Operation = Callable[[Image.Image, float], Image.Image]


def randaugment_timm(
    image: Image.Image, layers: int, magnitude: float, rng: np.random.Generator
) -> Image.Image:
    """Draws `layers` operations with replacement and applies each with probability 1/2.

    The magnitude is the mean strength, 0 to 10.
    """
    names = list(OPERATIONS)
    for i in rng.integers(len(names), size=layers):
        if rng.random() < _PROBABILITY:
            operation, signed = OPERATIONS[names[i]]
            level = min(max(rng.normal(magnitude, _DEVIATION), 0.0), _LAST) / _LAST
            image = operation(image, -level if signed and rng.integers(2) else level)
    return image


def _enhance(kind: Callable[[Image.Image, float], Image.Image]) -> Operation:
    """Returns an enhancement by the factor 1 + 0.9 * level, between 0.1 and 1.9."""
    return lambda image, level: kind(image, 1 + 0.9 * level)


def _affine(a: float, b: float, c: float, d: float, e: float, f: float) -> Operation:
    """Returns an affine map: level * (b, d), and level * (c, f) of width and height."""
    return lambda image, level: image_ops.affine(
        image,
        (a, b * level, c * level * image.width, d * level, e, f * level * image.height),
        _FILL,
        _BICUBIC,
    )


# Name -> (operation, whether its level has a random sign).
OPERATIONS: dict[str, tuple[Operation, bool]] = {
    "auto_contrast": (lambda image, level: image_ops.auto_contrast(image), False),
    "equalize": (lambda image, level: image_ops.equalize(image), False),
    "invert": (lambda image, level: image_ops.invert(image), False),
    "rotate": (lambda image, level: image.rotate(30 * level, _BICUBIC, fillcolor=_FILL), True),
    # Keeps 4 bits at level 0, 1 at 0.9, none at 1.
    "posterize": (lambda image, level: image_ops.posterize(image, 4 - int(4 * level)), False),
    # From 256 on at level 0, all values at level 1.
    "solarize": (lambda image, level: image_ops.solarize(image, 256 - int(256 * level)), False),
    "solarize_add": (lambda image, level: image_ops.solarize_add(image, int(110 * level)), False),
    "color": (_enhance(image_ops.color), True),
    "contrast": (_enhance(image_ops.contrast), True),
    "brightness": (_enhance(image_ops.brightness), True),
    "sharpness": (_enhance(image_ops.sharpness), True),
    "shear_x": (_affine(1, 0.3, 0, 0, 1, 0), True),
    "shear_y": (_affine(1, 0, 0, 0.3, 1, 0), True),
    "translate_x": (_affine(1, 0, 0.45, 0, 1, 0), True),
    "translate_y": (_affine(1, 0, 0, 0, 1, 0.45), True),
}
