"""Crops of training images, chosen by `data.augment.crop.name`. Each is a file of this package.

To add a crop, write a file with a subclass of `Crop` and register it: its fields are the keys of
the section `data.augment.crop`.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vit_jax.data.boxes import Box
from vit_jax.registry import Registry
from vit_jax.schema import Section, option

CROPS: Registry["Crop"] = Registry(__name__)
if TYPE_CHECKING:
    CropName = str
else:
    CropName = Literal[tuple(CROPS.names)]


class Crop(Section):
    """Which part of an image is resized to the model's input."""

    name: CropName = option("inception")
    """Kind of crop."""

    @property
    def same_at_any_size(self) -> bool:
        """Whether equal draws give the same part of an image at another size of the result."""
        return True

    @classmethod
    def named_classes(cls) -> Mapping[str, type[Section]]:
        return CROPS.classes

    def check_size(self, side: int) -> None:
        """Raises ConfigError, with a key of `data`, if the crop gives no image of this side."""

    def box(self, size: tuple[int, int], rng: np.random.Generator) -> Box:
        """Returns the part of an image of (width, height) that is resized: all of it."""
        return 0, 0, *size

    def after_resizing(self, pixels: Any, rng: np.random.Generator) -> Any:
        """Returns the resized pixels u8[H, W, 3], which some crops still shift."""
        return pixels


crop_class = partial(CROPS.class_of, Crop)
