"""Preprocesses images for a model as they were when its weights were evaluated."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from vit_jax.data.any_image import image_data
from vit_jax.data.boxes import Box, eval_box
from vit_jax.data.decode import ImageData, decode
from vit_jax.data.transforms import make_eval_transform
from vit_jax.errors import DataError
from vit_jax.models.family import ImageModel

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclasses.dataclass(frozen=True)
class Preprocess:
    """A function from images to the input of a model, f32[B, H, W, 3].

    An image is cropped, resized, and normalised to (x / 255 - mean) / deviation. All models of this
    package take images in [-1, 1], so mean and deviation are 0.5: if weights expect others, such as
    those of CLIP, loading folds the difference into the patch embedding.

    Attributes:
        size: (height, width) of the result in pixels.
        crop: "central": the central square; "resize": the whole image, squashed; "squash_central":
            the centre of the squashed image.
        central_fraction: side of a central crop as a fraction of the image's short side.
        interpolation: "bilinear" or "bicubic".
        antialias: whether downscaling averages over all pixels; bicubic always does.
        mean: of each channel.
        deviation: of each channel.
    """

    size: tuple[int, int]
    crop: str = "central"
    central_fraction: float = 0.875
    interpolation: str = "bilinear"
    antialias: bool = True
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    deviation: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __call__(self, images: Any) -> Float[np.ndarray, "B H W 3"]:
        """Returns the images of a model.

        Args:
            images: a PIL image, a uint8 array [H, W, 3] or [B, H, W, 3], the path of an image file,
                also in a bucket, or a list of these. One image is a batch of one.

        Raises:
            DataError: something else, a file that is not an image, or a PIL image of 32 bits or
                floating point, whose value of white is unknown.
        """
        pixels = np.stack(self.pixels_of_each(images))
        mean, deviation = (np.asarray(part, np.float32) for part in (self.mean, self.deviation))
        if (self.mean, self.deviation) == ((0.5,) * 3, (0.5,) * 3):
            return pixels.astype(np.float32) / np.float32(127.5) - 1  # As everywhere else.
        return (pixels.astype(np.float32) / np.float32(255) - mean) / deviation

    def pixels_of_each(self, images: Any) -> list[UInt8[np.ndarray, "H W 3"]]:
        """Returns the pixels of one or several images, which are as for a call."""
        is_batch = isinstance(images, list | tuple) or getattr(images, "ndim", 3) == 4
        listed: Sequence[Any] = images if is_batch else [images]
        if not len(listed):
            raise DataError("0 images", "at least one image", "pass at least one image")
        return [self.pixels(image_data(image)) for image in listed]

    def pixels(self, image: ImageData) -> UInt8[np.ndarray, "H W 3"]:
        """Returns a stored image, cropped and resized, before its normalisation."""
        height, width = self.size
        if height == width and self.interpolation == "bilinear":
            transform = make_eval_transform(
                height,
                self.crop,
                central_fraction=self.central_fraction,
                antialias=self.antialias,
            )
            return transform(image, np.random.default_rng(0))
        whole = decode(image)
        resized = whole.resize((width, height), _FILTERS[self.interpolation], self._box(whole))
        return np.asarray(resized)

    def _box(self, image: Image.Image) -> Box:
        """Returns the part of an image that is resized. One that is not square is squashed."""
        crop = self.crop if self.size[0] == self.size[1] else "resize"
        return eval_box(image.size, crop, self.central_fraction)


def preprocess_of(model: ImageModel) -> Preprocess:
    """Returns the preprocessing of a model.

    Crop and interpolation are those with which the loaded weights were evaluated. For a new model
    they are the usual ones: the central 7/8, bilinear.

    >>> from vit_jax import create_model
    >>> preprocess = preprocess_of(create_model("ViT-Mini/4", image_size=32))
    >>> preprocess.size, preprocess(np.zeros((48, 64, 3), np.uint8)).shape
    ((32, 32), (1, 32, 32, 3))
    """
    view = model.view
    return Preprocess(
        model.image_size, view.crop, view.central_fraction, view.interpolation, view.antialias
    )


preprocess = preprocess_of
"""The same function, by the name that the package documents."""
