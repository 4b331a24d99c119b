"""Crops of training images, chosen by `data.augment.crop.name`. Each is a file of this package.

To add a crop, write a file with a subclass of `Crop` and register it: its fields are the keys of
the section `data.augment.crop`.
"""

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from vit_jax.data.boxes import Box
from vit_jax.own_functions import FromFunction, own_function, owner_of, section_of_function
from vit_jax.registry import NameIn, Registry
from vit_jax.schema import Section, option

F = TypeVar("F", bound=Callable[..., Any])

CROPS: Registry["type[Crop]"] = Registry(__name__, "crop")
if TYPE_CHECKING:
    CropName = str
else:
    CropName = Annotated[str, NameIn(CROPS)]


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
        return CROPS

    def check_size(self, side: int) -> None:
        """Raises ConfigError, with a key of `data`, if the crop gives no image of this side."""

    def box(self, size: tuple[int, int], rng: Any) -> Box:
        """Returns the part of an image of (width, height) that is resized: all of it."""
        return 0, 0, *size

    def after_resizing(self, pixels: Any, rng: Any) -> Any:
        """Returns the resized pixels u8[H, W, 3], which some crops still shift."""
        return pixels


class _OwnCrop(FromFunction, Crop):
    """A crop made of a registered function."""

    def box(self, size: tuple[int, int], rng: Any) -> Box:
        box = self.call(size, rng)
        if not _is_inside(box, size):
            raise self.own.error(
                f"returned {box!r} for an image of {size[0]}x{size[1]} pixels",
                "(left, top, right, bottom) in whole pixels, inside the image",
                "return such a part",
            )
        left, top, right, bottom = map(int, box)
        return left, top, right, bottom


def _is_inside(box: Any, size: tuple[int, int]) -> bool:
    try:
        left, top, right, bottom = map(operator.index, box)
    except (TypeError, ValueError):
        return False
    return 0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]


def register_crop(function: F) -> F:
    """Registers a crop of training images; see `register_augmentation`."""
    own = own_function("crop", function, ("size", "generator"))
    section = section_of_function(own, _OwnCrop, name=(CropName, option(own.name)))
    CROPS.add(own.name, section, owner_of(function))
    return function


crop_class = partial(CROPS.class_of, Crop)
