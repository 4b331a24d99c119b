"""RandAugment, random chains of simple image operations, in the paper's flavour.

Source: arXiv:1909.13719, with the sixteen operations and strengths of its authors' code, which the
ViT recipes used. Its particulars are kept, because published models were trained with them:
posterize and solarize get weaker up to magnitude 10, thresholds of solarize wrap around at 256, so
that magnitudes 10 and 20 invert everything and 15 inverts from 128 on, and contrast changes around
pixels / 256 instead of the mean gray: 196 for 224 x 224. At magnitude 5 color, contrast, brightness
and sharpness have no effect. Here translations and cutout scale with the image; there they are in
pixels of a 224-pixel image.

`data.randaugment_timm` is the flavour of the PyTorch recipes. An independent replication of
arXiv:2205.01580 found no measurable effect of the true mean in contrast (ImageNet top-1 of ViT-S/16
within 0.2 %, one run each).
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from PIL import Image

from vit_jax.data import image_ops
from vit_jax.data.augment import AUGMENTATIONS, Operation
from vit_jax.data.randaugment_timm import randaugment_timm
from vit_jax.schema import option

_GRAY = (128, 128, 128)
_SCALE_END = 10.0

ImageOperation = Callable[[Image.Image, float, np.random.Generator], Image.Image]


@AUGMENTATIONS.register
class RandAugment(Operation):
    """Applies operations drawn with replacement, all at one strength (arXiv:1909.13719)."""

    stage = "host"
    place = 0

    layers: int = option(2, at_least=1, at_most=100)
    """Number of operations applied to an image."""
    magnitude: float = option(10.0, at_least=0, at_most=30)
    """Their strength. The scale ends at 10; larger values extrapolate in the paper's flavour and
    are clipped in timm's.
    """
    flavour: Literal["paper", "timm"] = option("paper")
    """paper: operations and strengths of the paper's code. timm: rand-mM-mstd0.5-inc1 of timm,
    which applies each operation with probability 1/2 (DeiT, MAE).
    """

    def __call__(self, image: Image.Image, rng: np.random.Generator) -> Image.Image:
        if self.flavour == "timm":
            return randaugment_timm(image, self.layers, self.magnitude, rng)
        names = list(OPERATIONS)
        for i in rng.integers(len(names), size=self.layers):
            image = OPERATIONS[names[i]](image, self.magnitude / _SCALE_END, rng)
        return image


def _random_sign(rng: np.random.Generator) -> int:
    return 1 if rng.integers(2) else -1


def _enhance(kind: Callable[[Image.Image, float], Image.Image]) -> ImageOperation:
    """Returns an enhancement by the factor 0.1 + 1.8 * level. A factor of 1 has no effect."""
    return lambda image, level, rng: kind(image, 0.1 + 1.8 * level)


def _contrast(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    gray = min(image.width * image.height // 256, 255)
    return image_ops.contrast(image, 0.1 + 1.8 * level, gray)


def _rotate(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    return image.rotate(_random_sign(rng) * 30 * level, fillcolor=_GRAY)


# The first row and column stay in place: coordinates start at 0, not at pixel centres.
def _shear_x(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    slope = _random_sign(rng) * 0.3 * level
    return image_ops.affine(image, (1, slope, -slope / 2, 0, 1, 0), _GRAY)


def _shear_y(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    slope = _random_sign(rng) * 0.3 * level
    return image_ops.affine(image, (1, 0, 0, slope, 1, -slope / 2), _GRAY)


# The published 100 pixels are for a width of 224; here they scale with the image.
def _translate_x(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    return image_ops.affine(
        image, (1, 0, _random_sign(rng) * level * image.width * 100 / 224, 0, 1, 0), _GRAY
    )


def _translate_y(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    return image_ops.affine(
        image, (1, 0, 0, 0, 1, _random_sign(rng) * level * image.height * 100 / 224), _GRAY
    )


def _cutout(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    """Fills a square around a random centre with gray: at level 1, 80 pixels of 224."""
    half = round(level * min(image.size) * 40 / 224)
    x, y = int(rng.integers(image.width)), int(rng.integers(image.height))
    image = image.copy()
    image.paste(_GRAY, (max(x - half, 0), max(y - half, 0), x + half, y + half))
    return image


OPERATIONS: dict[str, ImageOperation] = {
    "auto_contrast": lambda image, level, rng: image_ops.auto_contrast(image),
    "equalize": lambda image, level, rng: image_ops.equalize(image),
    "invert": lambda image, level, rng: image_ops.invert(image),
    "rotate": _rotate,
    # Keeps int(4 * level) bits, but at least the highest: TensorFlow shifts by at most 7.
    "posterize": lambda image, level, rng: image_ops.posterize(
        image, min(max(int(4 * level), 1), 8)
    ),
    # The threshold int(256 * level) wraps around in 8 bits: levels 0, 1 and 2 invert all values.
    "solarize": lambda image, level, rng: image_ops.solarize(image, int(256 * level) % 256),
    "solarize_add": lambda image, level, rng: image_ops.solarize_add(image, int(110 * level)),
    "color": _enhance(image_ops.color),
    "contrast": _contrast,
    "brightness": _enhance(image_ops.brightness),
    "sharpness": _enhance(image_ops.sharpness),
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "cutout": _cutout,
}
