"""Images as users have them: files, PIL images and arrays."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vit_jax.data.decode import ImageData, StoredImage, rgb_pixels
from vit_jax.errors import DataError, FileError
from vit_jax.storage.files import LARGEST_IMAGE_BYTES, read_file
from vit_jax.storage.paths import user_path

_KINDS = "a PIL image, a uint8 array [H, W, 3], a path, or a list of these"


def image_data(image: Any) -> ImageData:
    """Returns the content of an image file, or the pixels of an image.

    Raises:
        DataError: something else, or a file that is not an image.
    """
    if isinstance(image, str | Path):
        path = user_path(str(image))
        encoded = read_user_file(path)
        try:
            StoredImage(encoded)
        except DataError as error:
            raise DataError(f"{path}: {error.got}", error.expected, "give another file") from None
        return encoded
    if isinstance(image, Image.Image):
        return rgb_pixels(image)
    shape, dtype = getattr(image, "shape", None), getattr(image, "dtype", None)
    if shape is None:
        raise DataError(f"{type(image).__name__} as an image", _KINDS, "convert it")
    is_pixels = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))
    if not is_pixels or dtype != np.uint8 or 0 in shape:
        raise DataError(f"an array {dtype}{list(shape)} as an image", _KINDS, "convert it")
    return np.asarray(image)


def read_user_file(path: Path, expected: str = "an image file") -> bytes:
    """Returns the content of a file of at most an image's size. DataError: it cannot be read."""
    try:
        return read_file(path, LARGEST_IMAGE_BYTES)
    except FileError as error:
        raise DataError(error.got, expected, error.fix) from None
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}", expected, "check the path"
        ) from None
