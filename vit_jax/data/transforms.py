"""Host-side image transforms: from a stored image to a uint8 image of the model's size.

Random transforms draw from a NumPy generator that the caller passes. Only the cropped region of an
image is decoded (`data.decode`). It is resized with the filter of `data.resize`. Scaling to
[-1, 1], flips, erasing and mixing run on the device, where they are cheaper (`data.augment`).
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.config.data import DataConfig
from vit_jax.data.boxes import Box, eval_box
from vit_jax.data.decode import ImageData, StoredImage
from vit_jax.data.resize import Interpolation, decoding_shrink, resize

Transform = Callable[[ImageData, np.random.Generator], np.ndarray]
# Side of the result, or a function from (height, width) of the cropped region to those of it.
Size = int | Callable[[int, int], tuple[int, int]]
# (width and height of an image, generator) -> the part that is resized.
DrawBox = Callable[[tuple[int, int], np.random.Generator], Box]


def make_train_transform(
    image_size: Size, data: DataConfig, draw_box: DrawBox | None = None
) -> Transform:
    """Returns (image, generator) -> u8[image_size, image_size, 3], randomly cropped and augmented.

    `draw_box` replaces the box of `data.augment.crop`.
    """
    # Not the section itself, whose class is made at run time: reader processes get the transform.
    crop, operations = data.augment.crop, [*data.augment.operations("host").values()]
    interpolation, antialias = data.interpolation, data.antialias

    def transform(image: ImageData, rng: np.random.Generator) -> np.ndarray:
        stored = StoredImage(image)
        box = (draw_box or crop.box)(stored.size, rng)
        pixels = _crop_and_resize(stored, box, image_size, interpolation, antialias)
        pixels = crop.after_resizing(pixels, rng)
        if not operations:
            return pixels
        changed = Image.fromarray(pixels)
        for operation in operations:
            changed = operation(changed, rng)
        return np.asarray(changed)

    return transform


def make_eval_transform(
    image_size: Size,
    crop: str,
    *,
    central_fraction: float = 0.875,
    interpolation: Interpolation = "bilinear",
    antialias: bool = True,
) -> Transform:
    """Returns (image, generator) -> u8[image_size, image_size, 3]; the generator is not used.

    Crops are "central": the central square; "resize": resize without keeping the aspect ratio;
    "squash_central": the same, then crop the centre, like `resize` and `central_crop` of
    big_vision.
    """

    def transform(image: ImageData, rng: np.random.Generator) -> np.ndarray:
        del rng
        stored = StoredImage(image)
        box = eval_box(stored.size, crop, central_fraction)
        return _crop_and_resize(stored, box, image_size, interpolation, antialias)

    return transform


def _crop_and_resize(
    image: StoredImage, box: Box, size: Size, interpolation: Interpolation, antialias: bool
) -> UInt8[np.ndarray, "h w 3"]:
    left, top, right, bottom = box
    target = (size, size) if isinstance(size, int) else size(bottom - top, right - left)
    # Decoding fewer DCT coefficients averages over pixels too.
    shrink = decoding_shrink(right - left, bottom - top, max(target)) if antialias else 1
    pixels = image.part(box, shrink)
    return resize(pixels, target, antialias=antialias, shrunk=shrink, interpolation=interpolation)
