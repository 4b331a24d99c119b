"""Resizes uint8 images with the same filter in training and evaluation.

With antialiasing, every output pixel is a weighted mean of the input pixels around it. The weights
fall linearly to 0 at a distance of one output pixel. This is the triangle filter, which PyTorch and
TensorFlow call antialiased bilinear. It is approximated by three steps that OpenCV vectorizes:
halving by the mean of 2 x 2 pixels while the image is at least 4 times too large, a small Gaussian
blur, and bilinear interpolation. The variance of the blur is the triangle's variance minus that of
the other two steps. This takes a third of the time of Pillow's triangle filter. On photos the mean
difference from Pillow is half a level, on the most detailed photos up to 1.6 levels. Shrinking in
the JPEG decoder (fewer DCT coefficients) counts as halving.

The bicubic filter is Pillow's: antialiased, with a = -0.5. It takes about three times as long as
the steps above. Here too the decoder first shrinks what is at least 4 times too large.

Without antialiasing, an output pixel depends only on the nearest 2 x 2 input pixels, however large
the input is, as in `tf.image.resize` by default.
"""

import math
from typing import Literal

import cv2
import numpy as np
from jaxtyping import UInt8
from PIL import Image

Interpolation = Literal["bilinear", "bicubic"]

# The loader already uses many threads.
cv2.setNumThreads(1)

# Images that are at least this many times too large are halved first.
_HALVE_FROM = 4
# Variances in square pixels. Blurs below the first are skipped; up to the second, a kernel of three
# pixels is enough.
_SMALLEST, _THREE_PIXELS = 0.01, 0.6


def resize(
    pixels: UInt8[np.ndarray, "h w 3"],
    size: int | tuple[int, int],
    *,
    antialias: bool = True,
    shrunk: int = 1,
    interpolation: Interpolation = "bilinear",
) -> UInt8[np.ndarray, "rows columns 3"]:
    """Resizes an image, ignoring its aspect ratio; border pixels are repeated.

    `size` is a side or (height, width). `shrunk` is the factor 1, 2, 4 or 8 by which the decoder
    already shrank the image. Bicubic interpolation is always antialiased.
    """
    height, width = pixels.shape[:2]
    target = (size, size) if isinstance(size, int) else size
    if interpolation == "bicubic":
        return np.asarray(
            Image.fromarray(pixels).resize((target[1], target[0]), Image.Resampling.BICUBIC)
        )
    if antialias:
        steps = [
            _halvings(length * shrunk, side, shrunk)
            for length, side in zip((height, width), target, strict=True)
        ]
        if max(steps) > shrunk:
            height, width = (
                max(length * shrunk // step, 1)
                for length, step in zip((height, width), steps, strict=True)
            )
            pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
        blurs = [
            _blur_variance(length / side, step)
            for length, side, step in zip((height, width), target, steps, strict=True)
        ]
        if max(blurs) > _SMALLEST:
            (y, sigma_y), (x, sigma_x) = map(_kernel, blurs)
            pixels = cv2.GaussianBlur(
                pixels, (x, y), sigma_x, sigmaY=sigma_y, borderType=cv2.BORDER_REPLICATE
            )
    if (height, width) == target:
        return np.ascontiguousarray(pixels)
    return cv2.resize(pixels, target[::-1], interpolation=cv2.INTER_LINEAR)


def decoding_shrink(width: int, height: int, size: int) -> int:
    """Returns the factor (1, 2, 4 or 8) by which the decoder may shrink a JPEG before `resize`."""
    return min(_halvings(min(width, height), size, 1), 8)


def _halvings(length: int, size: int, step: int) -> int:
    """Returns the smallest power of two >= step after which the image is < 4 times too large."""
    while length >= _HALVE_FROM * size * step:
        step *= 2
    return step


def _blur_variance(scale: float, step: int) -> float:
    """Returns the variance, in square pixels, that a blur must add to an image shrunk by `step`.

    A triangle of half-width s (`scale`, in pixels of the shrunk image) has variance s^2 / 6. Linear
    interpolation contributes 1 / 6 on average, and the mean over step x step pixels contributed
    (1 - 1 / step^2) / 12.
    """
    return max((scale**2 - 1) / 6 - (1 - 1 / step**2) / 12, 0.0)


def _kernel(variance: float) -> tuple[int, float]:
    """Returns width and sigma of a sampled Gaussian with the given variance."""
    if variance <= _SMALLEST:
        return 1, 1.0
    if variance <= _THREE_PIXELS:  # The samples are (e, 1, e).
        edge = variance / (2 * (1 - variance))
        return 3, math.sqrt(-0.5 / math.log(edge))
    sigma = math.sqrt(variance)
    return 2 * math.ceil(2.5 * sigma) + 1, sigma
