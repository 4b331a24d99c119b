"""From encoded bytes to a uint8 image of the model's size, on the host.

Whatever is random takes a NumPy generator, so that the caller decides what the result depends on.
Resizing is antialiased bilinear (Pillow), in training and evaluation alike.
"""

import io
from collections.abc import Callable

import numpy as np
from PIL import Image

from vit_jax.config import AugmentConfig
from vit_jax.data.randaugment import randaugment
from vit_jax.errors import DataError

Transform = Callable[[bytes, np.random.Generator], np.ndarray]

# Short side of the evaluation image relative to the crop. Source: arXiv:1409.4842 (256 for 224).
_EVAL_RESIZE = 256 / 224
_ASPECT_RATIO = (3 / 4, 4 / 3)


def make_train_transform(image_size: int, augment: AugmentConfig) -> Transform:
    """Returns bytes, generator -> u8[image_size, image_size, 3], randomly cropped and augmented.

    Flipping is not done here but on the device (`data.device.flip`).

    Args:
        image_size: side of the result in pixels.
        augment: what to do.

    Source: inception crop: arXiv:1409.4842; RandAugment: arXiv:1909.13719.
    """

    def transform(encoded: bytes, rng: np.random.Generator) -> np.ndarray:
        image = decode(encoded)
        if augment.crop == "inception":
            box = inception_box(image.size, augment.min_area, augment.max_area, rng)
            image = _resize(image.crop(box), image_size)
        else:
            image = _resize(image, image_size)
        if augment.crop == "pad":
            image = _shift(image, augment.pad_pixels, rng)
        if augment.randaugment_layers:
            image = randaugment(
                image, augment.randaugment_layers, augment.randaugment_magnitude, rng
            )
        return np.asarray(image)

    return transform


def make_eval_transform(image_size: int, crop: str) -> Transform:
    """Returns bytes, generator (unused) -> u8[image_size, image_size, 3].

    Args:
        image_size: side of the result in pixels.
        crop: "central": short side to 256/224 of the size, then the centre; "resize": squash.
    """

    def transform(encoded: bytes, rng: np.random.Generator) -> np.ndarray:
        del rng
        image = decode(encoded)
        if crop == "resize":
            return np.asarray(_resize(image, image_size))
        # The crop's box in the source image, so that one resize does both.
        side = min(image.size) * (image_size / round(image_size * _EVAL_RESIZE))
        left, top = ((length - side) / 2 for length in image.size)
        box = (left, top, left + side, top + side)
        image = image.resize((image_size, image_size), Image.Resampling.BILINEAR, box=box)
        return np.asarray(image)

    return transform


def decode(encoded: bytes) -> Image.Image:
    """Returns the RGB image of encoded bytes, 8 bits a channel; transparency is dropped.

    Raises:
        DataError: not an image, or a truncated one.
    """
    try:
        image = Image.open(io.BytesIO(encoded))
        if image.mode.startswith("I;16"):
            # The high byte, as Pillow reads 16-bit RGB; its own conversion cuts grays off at 255.
            image = Image.fromarray((np.asarray(image) // 256).astype(np.uint8))
        if "transparency" in image.info:
            image = image.convert("RGBA")
        return image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        start = encoded[:4].hex(" ") or "nothing"
        raise DataError(
            f"unreadable image of {len(encoded)} bytes starting with {start} ({error})",
            "a whole PNG, JPEG or other file that Pillow reads",
            "repair or remove it and prepare the dataset again",
        ) from None


def inception_box(
    size: tuple[int, int], min_area: float, max_area: float, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Returns a random box (left, top, right, bottom) inside an image.

    Area is uniform in [min_area, max_area] of the image, the logarithm of the aspect ratio in
    that of [3/4, 4/3]; after ten boxes that do not fit, the largest central one that does.

    Args:
        size: width and height of the image.
        min_area: share of the image's area.
        max_area: share of the image's area.
        rng: source of randomness.
    """
    width, height = size
    for _ in range(10):
        area = rng.uniform(min_area, max_area) * width * height
        ratio = np.exp(rng.uniform(*np.log(_ASPECT_RATIO)))
        w, h = round(float(np.sqrt(area * ratio))), round(float(np.sqrt(area / ratio)))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    ratio = np.clip(width / height, *_ASPECT_RATIO)
    w, h = min(width, round(height * ratio)), min(height, round(width / ratio))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _resize(image: Image.Image, size: int) -> Image.Image:
    if image.size == (size, size):
        return image
    return image.resize((size, size), Image.Resampling.BILINEAR)


def _shift(image: Image.Image, pixels: int, rng: np.random.Generator) -> Image.Image:
    """Moves the image by up to `pixels` each way, black coming in, as a padded crop does."""
    dx, dy = (int(d) for d in rng.integers(-pixels, pixels + 1, size=2))
    return image.crop((dx, dy, dx + image.width, dy + image.height))
