"""Host-side image transforms: from encoded bytes to a uint8 image of the model's size.

Random transforms draw from a NumPy generator that the caller passes. Only the cropped region of an
image is decoded (`data.decode`). It is resized with the filter of `data.resize`. Scaling to
[-1, 1], flips, erasing and mixing run on the device, where they are cheaper (`data.device`).
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.config.data import AugmentConfig
from vit_jax.data.crops import INCEPTION_BOX, Box, central_box, eval_box, random_part, random_square
from vit_jax.data.decode import EncodedImage
from vit_jax.data.randaugment import randaugment
from vit_jax.data.randaugment_timm import randaugment_timm
from vit_jax.data.resize import decoding_shrink, resize
from vit_jax.data.threeaugment import color_jitter, three_augment

Transform = Callable[[bytes, np.random.Generator], np.ndarray]
# Side of the result, or a function from (height, width) of the cropped region to those of it.
Size = int | Callable[[int, int], tuple[int, int]]

_RANDAUGMENT = {"paper": randaugment, "timm": randaugment_timm}


def make_train_transform(image_size: Size, augment: AugmentConfig) -> Transform:
    """Returns (bytes, generator) -> u8[image_size, image_size, 3], randomly cropped and augmented.

    Source: inception crop: arXiv:1409.4842; RandAugment: arXiv:1909.13719; ThreeAugment:
    arXiv:2204.07118.
    """
    augmentation = _make_augmentation(augment)

    def transform(encoded: bytes, rng: np.random.Generator) -> np.ndarray:
        image = EncodedImage(encoded)
        pixels = _crop_and_resize(image, _train_box(image.size, augment, rng), image_size, augment)
        if augment.crop == "pad":
            pixels = _random_shift(pixels, augment.pad_pixels, rng)
        return (
            pixels
            if augmentation is None
            else np.asarray(augmentation(Image.fromarray(pixels), rng))
        )

    return transform


def make_eval_transform(
    image_size: Size, crop: str, augment: AugmentConfig | None = None
) -> Transform:
    """Returns (bytes, generator) -> u8[image_size, image_size, 3]; the generator is not used.

    Crops are "central": the central square; "resize": resize without keeping the aspect ratio;
    "squash_central": the same, then crop the centre, like `resize` and `central_crop` of
    big_vision.
    """
    chosen = augment or AugmentConfig()

    def transform(encoded: bytes, rng: np.random.Generator) -> np.ndarray:
        del rng
        image = EncodedImage(encoded)
        box = eval_box(image.size, crop, chosen.central_fraction)
        return _crop_and_resize(image, box, image_size, chosen)

    return transform


def _train_box(size: tuple[int, int], augment: AugmentConfig, rng: np.random.Generator) -> Box:
    if augment.crop == "inception":
        draw = INCEPTION_BOX[augment.crop_flavour]
        return draw(size, augment.min_area, augment.max_area, rng)
    if augment.crop == "random_square":
        return random_square(size, rng)
    if augment.crop == "squash_random":
        return random_part(size, augment.random_fraction, rng)
    if augment.crop == "central":
        return central_box(size, augment.central_fraction)
    return 0, 0, *size


def _crop_and_resize(
    image: EncodedImage, box: Box, size: Size, augment: AugmentConfig
) -> UInt8[np.ndarray, "h w 3"]:
    left, top, right, bottom = box
    target = (size, size) if isinstance(size, int) else size(bottom - top, right - left)
    # Decoding fewer DCT coefficients averages over pixels too.
    shrink = 1
    if augment.antialias:
        shrink = decoding_shrink(right - left, bottom - top, max(target))
    pixels = image.part(box, shrink)
    return resize(
        pixels,
        target,
        antialias=augment.antialias,
        shrunk=shrink,
        interpolation=augment.interpolation,
    )


def _random_shift(
    pixels: UInt8[np.ndarray, "h w 3"], most: int, rng: np.random.Generator
) -> UInt8[np.ndarray, "h w 3"]:
    """Shifts the image by up to `most` pixels each way and fills with black: a padded crop."""
    dx, dy = (int(d) for d in rng.integers(-most, most + 1, size=2))
    height, width = pixels.shape[:2]
    padded = np.zeros((height + 2 * most, width + 2 * most, 3), np.uint8)  # np.pad is slower.
    padded[most : most + height, most : most + width] = pixels
    top, left = most + dy, most + dx
    return np.ascontiguousarray(padded[top : top + height, left : left + width])


def _make_augmentation(
    augment: AugmentConfig,
) -> Callable[[Image.Image, np.random.Generator], Image.Image] | None:
    """Returns the augmentation that follows the crop; None if the config has none."""
    steps: list[Callable[[Image.Image, np.random.Generator], Image.Image]] = []
    if augment.randaugment_layers:
        chain = _RANDAUGMENT[augment.randaugment_flavour]
        layers, magnitude = augment.randaugment_layers, augment.randaugment_magnitude
        steps.append(lambda image, rng: chain(image, layers, magnitude, rng))
    if augment.three_augment:
        steps.append(three_augment)
    if augment.color_jitter:
        steps.append(lambda image, rng: color_jitter(image, augment.color_jitter, rng))
    if not steps:
        return None

    def apply(image: Image.Image, rng: np.random.Generator) -> Image.Image:
        for step in steps:
            image = step(image, rng)
        return image

    return apply
