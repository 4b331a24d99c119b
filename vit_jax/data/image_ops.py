"""Image operations that the augmentations use, on RGB images.

The results equal those of Pillow's `ImageOps` and `ImageEnhance`. These operations are faster,
because NumPy instead of Python loops computes the lookup tables. They mostly run without the GIL.
"""

from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image, ImageEnhance

_VALUES = np.arange(256)
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


def auto_contrast(image: Image.Image) -> Image.Image:
    """Stretches each channel to 0 to 255."""
    return _apply_lookup_table(image, [_stretch_table(counts) for counts in _histograms(image)])


def equalize(image: Image.Image) -> Image.Image:
    """Equalizes the histogram of each channel."""
    return _apply_lookup_table(image, [_equalize_table(counts) for counts in _histograms(image)])


def invert(image: Image.Image) -> Image.Image:
    """Returns 255 minus the image."""
    return _apply_lookup_table(image, [255 - _VALUES])


def posterize(image: Image.Image, bits: int) -> Image.Image:
    """Keeps the highest `bits` of each channel: 8 keeps all, 0 gives black."""
    return _apply_lookup_table(image, [_VALUES & (0xFF << (8 - bits))])


def solarize(image: Image.Image, threshold: float) -> Image.Image:
    """Inverts values at or above a threshold."""
    return _apply_lookup_table(image, [np.where(threshold <= _VALUES, 255 - _VALUES, _VALUES)])


def solarize_add(image: Image.Image, amount: int) -> Image.Image:
    """Adds `amount` to values below 128."""
    return _apply_lookup_table(
        image, [np.where(_VALUES < 128, np.minimum(_VALUES + amount, 255), _VALUES)]
    )


def brightness(image: Image.Image, factor: float) -> Image.Image:
    """Interpolates between black (0) and the image (1), or extrapolates."""
    return _apply_lookup_table(image, [_blend_table(0, factor)])


def contrast(image: Image.Image, factor: float, gray: int | None = None) -> Image.Image:
    """Interpolates between `gray` (None: the mean gray) and the image (1), or extrapolates."""
    if gray is None:
        counts = np.array(image.convert("L").histogram())
        gray = int(counts @ _VALUES / counts.sum() + 0.5)
    return _apply_lookup_table(image, [_blend_table(gray, factor)])


def color(image: Image.Image, factor: float) -> Image.Image:
    """Interpolates between the gray image (0) and the image (1), or extrapolates."""
    return ImageEnhance.Color(image).enhance(factor)


def sharpness(image: Image.Image, factor: float) -> Image.Image:
    """Interpolates between the smoothed image (0) and the image (1), or extrapolates.

    The outermost pixels are not smoothed.
    """
    pixels = np.asarray(image)
    smooth = pixels.copy()
    smooth[1:-1, 1:-1] = cv2.filter2D(pixels, -1, _SMOOTH)[1:-1, 1:-1]
    return Image.blend(Image.fromarray(smooth), image, factor)


def affine(
    image: Image.Image,
    matrix: tuple[float, ...],
    fill: tuple[int, int, int],
    sampling: Image.Resampling = Image.Resampling.NEAREST,
) -> Image.Image:
    """Sets each pixel (X, Y) to the one at (a X + b Y + c, d X + e Y + f); outside, to `fill`."""
    return image.transform(image.size, Image.Transform.AFFINE, matrix, sampling, fillcolor=fill)


def _apply_lookup_table(image: Image.Image, tables: Sequence[np.ndarray]) -> Image.Image:
    """Replaces values by lookup tables of 256 entries: one for all channels, or one for each."""
    channels = tables if len(tables) == 3 else [tables[0]] * 3
    return image.point(np.concatenate(channels).tolist())


def _histograms(image: Image.Image) -> np.ndarray:
    """Returns the histogram of each channel: [3, 256]."""
    return np.array(image.histogram()).reshape(3, 256)


def _stretch_table(counts: np.ndarray) -> np.ndarray:
    present = np.flatnonzero(counts)
    low, high = int(present[0]), int(present[-1])
    if high == low:
        return _VALUES
    scale = 255 / (high - low)
    return np.clip((_VALUES * scale - low * scale).astype(int), 0, 255)


def _equalize_table(counts: np.ndarray) -> np.ndarray:
    last = np.flatnonzero(counts)[-1]
    step = int(counts.sum() - counts[last]) // 255
    if step == 0:
        return _VALUES
    below = np.cumsum(counts) - counts
    return np.minimum((below + step // 2) // step, 255)


def _blend_table(other: int, factor: float) -> np.ndarray:
    """Returns other + factor * (value - other), clipped to 0 to 255 and rounded down."""
    blended = other + np.float32(factor) * (_VALUES - other).astype(np.float32)
    return np.clip(blended, 0, 255).astype(int)
