"""RandAugment: random chains of simple image operations, with Pillow.

Source: arXiv:1909.13719, with the sixteen operations and strengths of its authors' code, which the
ViT recipes used: a larger magnitude weakens posterize and solarize (none is left from 20 and 10
on), and color, contrast, brightness and sharpness leave the image as it is at 5. Other than there,
nothing depends on an image being 224 pixels wide.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

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
        magnitude: strength; 10 is the end of the published scale, larger values extrapolate.
        rng: source of randomness.

    Returns:
        An RGB image of the same size.
    """
    for name in rng.choice(list(OPERATIONS), size=layers):
        image = OPERATIONS[name](image, magnitude / _SCALE_END, rng)
    return image


def _sign(rng: np.random.Generator) -> int:
    return 1 if rng.integers(2) else -1


def _enhance(kind: Callable) -> Operation:
    """Returns an enhancement by the factor 0.1 + 1.8 * level: 1 leaves the image as it is."""
    return lambda image, level, rng: kind(image).enhance(0.1 + 1.8 * level)


def _affine(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=_GRAY
    )


def _rotate(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    return image.rotate(_sign(rng) * 30 * level, Image.Resampling.NEAREST, fillcolor=_GRAY)


def _shear_x(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    return _affine(image, (1, _sign(rng) * 0.3 * level, 0, 0, 1, 0))


def _shear_y(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    return _affine(image, (1, 0, 0, _sign(rng) * 0.3 * level, 1, 0))


# The published 100 pixels are of 224; as a share they suit any size.
def _translate_x(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    return _affine(image, (1, 0, _sign(rng) * level * image.width * 100 / 224, 0, 1, 0))


def _translate_y(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    return _affine(image, (1, 0, 0, 0, 1, _sign(rng) * level * image.height * 100 / 224))


def _cutout(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    """Grays out a square of 80 of 224 pixels (level 1) around a random centre."""
    half = round(level * min(image.size) * 40 / 224)
    x, y = int(rng.integers(image.width)), int(rng.integers(image.height))
    image = image.copy()
    image.paste(_GRAY, (max(x - half, 0), max(y - half, 0), x + half, y + half))
    return image


def _posterize(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    """Keeps int(4 * level) bits a channel: none, black, at 0; all from level 2 on."""
    kept = 0xFF << max(8 - int(4 * level), 0) & 0xFF
    return image.point([v & kept for v in range(256)] * 3)


def _solarize(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    """Inverts the pixels from int(256 * level) on: all at 0; none from level 1 on."""
    return ImageOps.solarize(image, int(256 * level))


def _solarize_add(image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    """Adds up to 110 (level 1) to the pixels below 128."""
    amount = int(110 * level)
    return image.point([min(255, v + amount) if v < 128 else v for v in range(256)] * 3)


OPERATIONS: dict[str, Operation] = {
    "auto_contrast": lambda image, level, rng: ImageOps.autocontrast(image),
    "equalize": lambda image, level, rng: ImageOps.equalize(image),
    "invert": lambda image, level, rng: ImageOps.invert(image),
    "rotate": _rotate,
    "posterize": _posterize,
    "solarize": _solarize,
    "solarize_add": _solarize_add,
    "color": _enhance(ImageEnhance.Color),
    "contrast": _enhance(ImageEnhance.Contrast),
    "brightness": _enhance(ImageEnhance.Brightness),
    "sharpness": _enhance(ImageEnhance.Sharpness),
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "cutout": _cutout,
}
