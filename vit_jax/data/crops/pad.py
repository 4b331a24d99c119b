"""Padded crops: the whole image is shifted."""

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.crops import CROPS, Crop, CropName
from vit_jax.errors import ConfigError
from vit_jax.schema import option


@CROPS.register
class Pad(Crop):
    """The whole image, squashed to a square, shifted and filled with black."""

    name: CropName = option("pad")
    """Shift by up to `pixels`."""
    pixels: int = option(4, at_least=0)
    """Largest shift each way."""

    @property
    def same_at_any_size(self) -> bool:
        return False

    def check_size(self, side: int) -> None:
        if self.pixels >= side:
            raise ConfigError(
                f"is {self.pixels} for images of {side} pixels, which a shift could move out of"
                " the picture",
                f"less than {side} pixels",
                "set it to about an eighth of data.image_size",
                key="augment.crop.pixels",
            )

    def after_resizing(
        self, pixels: UInt8[np.ndarray, "h w 3"], rng: np.random.Generator
    ) -> UInt8[np.ndarray, "h w 3"]:
        most = self.pixels
        dx, dy = (int(d) for d in rng.integers(-most, most + 1, size=2))
        height, width = pixels.shape[:2]
        padded = np.zeros((height + 2 * most, width + 2 * most, 3), np.uint8)  # np.pad is slower.
        padded[most : most + height, most : most + width] = pixels
        top, left = most + dy, most + dx
        return np.ascontiguousarray(padded[top : top + height, left : left + width])
