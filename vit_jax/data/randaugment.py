"""RandAugment, random chains of simple image operations, in the paper's flavour.

Source: arXiv:1909.13719, with the sixteen operations and strengths of its authors' code, which the
ViT recipes used. There a larger magnitude weakens posterize and solarize: from magnitudes 20 and 10
on they have no effect. At magnitude 5 color, contrast, brightness and sharpness have no effect.
Unlike that code, this module does not assume an image width of 224 pixels.

Differences from that code and from torchvision (`data.randaugment_torchvision`) at magnitude m:

|               | authors' code (TensorFlow)     | here                | torchvision             |
|---------------|--------------------------------|---------------------|-------------------------|
| operations    | 16                             | the same            | 14: no invert, cutout,  |
|               |                                |                     | solarize_add; identity  |
| scale         | to 10; beyond extrapolates     | the same            | to 30                   |
| contrast      | around pixels / 256: 196 at    | around the mean     | as here                 |
|               | 224 x 224, whatever the image  | gray                |                         |
| color etc.    | factor 0.1 + 0.18 m: 1 at 5    | the same            | 1 +- 0.03 m             |
| solarize      | from 25.6 m on, of 8 bits: all | from 25.6 m on:     | from 255 - 8.5 m on     |
|               | at 10 and 20, by overflow      | none from 10 on     |                         |
| posterize     | 0.4 m bits                     | the same            | 8 - 4 m / 30 bits       |
| translate     | 10 m pixels                    | of 224              | 5 m, of 331             |
| cutout        | 4 m pixels each way            | of 224              | none                    |
| shear         | 0.03 m                         | the same            | 0.01 m, pixel centres   |
| rotate        | 3 m degrees                    | the same            | m degrees               |
| fill colour   | gray, 128                      | the same            | black                   |

An independent replication of arXiv:2205.01580 found no measurable effect of using the true mean in
contrast (ImageNet top-1 of ViT-S/16 within 0.2 %), and 0.4 % more with the authors' flavour than
with torchvision's (one run each).
"""

from collections.abc import Callable

import numpy as np
from PIL import Image

from vit_jax.data import image_ops

_GRAY = (128, 128, 128)
_SCALE_END = 10.0

Operation = Callable[[Image.Image, float, np.random.Generator], Image.Image]


def randaugment(
    image: Image.Image, layers: int, magnitude: float, rng: np.random.Generator
) -> Image.Image:
    """Applies `layers` operations drawn with replacement, all at one strength.

    Args:
        image: RGB.
        layers: number of operations.
        magnitude: strength; the published scale ends at 10, larger values extrapolate.
        rng: source of randomness.

    Returns:
        An RGB image of the same size.
    """
    names = list(OPERATIONS)
    for i in rng.integers(len(names), size=layers):
        image = OPERATIONS[names[i]](image, magnitude / _SCALE_END, rng)
    return image


def _random_sign(rng: np.random.Generator) -> int:
    return 1 if rng.integers(2) else -1


def _enhance(kind: Callable[[Image.Image, float], Image.Image]) -> Operation:
    """Returns an enhancement by the factor 0.1 + 1.8 * level. A factor of 1 has no effect."""
    return lambda image, level, rng: kind(image, 0.1 + 1.8 * level)


def _rotate(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    return image_ops.rotate(image, _random_sign(rng) * 30 * level, _GRAY)


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


OPERATIONS: dict[str, Operation] = {
    "auto_contrast": lambda image, level, rng: image_ops.auto_contrast(image),
    "equalize": lambda image, level, rng: image_ops.equalize(image),
    "invert": lambda image, level, rng: image_ops.invert(image),
    "rotate": _rotate,
    # Keeps int(4 * level) bits: level 0 gives black, from level 2 on nothing changes.
    "posterize": lambda image, level, rng: image_ops.posterize(image, min(int(4 * level), 8)),
    # Threshold int(256 * level): level 0 inverts all values, from level 1 on nothing changes.
    "solarize": lambda image, level, rng: image_ops.solarize(image, int(256 * level)),
    # Level 1 adds 110.
    "solarize_add": lambda image, level, rng: image_ops.solarize_add(image, int(110 * level)),
    "color": _enhance(image_ops.color),
    "contrast": _enhance(image_ops.contrast),
    "brightness": _enhance(image_ops.brightness),
    "sharpness": _enhance(image_ops.sharpness),
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "cutout": _cutout,
}
