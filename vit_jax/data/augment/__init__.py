"""Augmentation of training images: a crop (`data.crops`), then the operations that are on.

Each operation is a file of this package, and its key in `data.augment` is the file's name. It is on
if that key is in the config. To add one, write a file with a subclass of `HostOperation`,
`DeviceOperation` or `MixOperation` and register it: its fields are the keys of its section, its
method `__call__` is the operation. A task applies it, or refuses it because of its stage.
"""

import functools
import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pydantic

from vit_jax.data.crops import Crop, crop_class
from vit_jax.registry import Registry
from vit_jax.schema import ChosenBy, Section, section

if TYPE_CHECKING:
    import jax
    import numpy as np
    from PIL import Image

AUGMENTATIONS: Registry["Operation"] = Registry(__name__)

Stage = Literal["host", "uint8", "device", "mix"]
STAGES: tuple[Stage, ...] = ("host", "uint8", "device", "mix")
"""The stages in their order: on the host; on the device before and after the images are scaled to
[-1, 1]; on the device with the labels.
"""


class Operation(Section):
    """An operation of `data.augment`.

    Attributes:
        stage: where it is applied.
        place: its place among the operations of its stage; equal places are sorted by name.
        stream: name of its stream of random numbers on the device; None: its own name.
    """

    stage: ClassVar[Stage]
    place: ClassVar[float] = math.inf
    stream: ClassVar[str | None] = None

    @property
    def same_at_any_size(self) -> bool:
        """Whether equal draws change an image in the same way at another number of pixels."""
        return False


class HostOperation(Operation):
    """Changes one image on the host, after the crop."""

    stage = "host"

    @abstractmethod
    def __call__(self, image: "Image.Image", rng: "np.random.Generator") -> "Image.Image":
        """Returns an RGB image of the same size."""


class DeviceOperation(Operation):
    """Changes the images of a batch on the device.

    With the stage "uint8" it gets them as uint8, a quarter of the bytes of float32.
    """

    stage = "device"

    @abstractmethod
    def __call__(self, images: Any, key: "jax.Array") -> Any:
        """Returns the images [B, H, W, 3] in [-1, 1], each changed by draws of its own."""


class MixOperation(Operation):
    """Mixes the examples of a batch with each other, on the device."""

    stage = "mix"

    @abstractmethod
    def __call__(self, images: Any, labels: Any, key: "jax.Array") -> tuple[Any, Any]:
        """Returns images f32[B, H, W, 3] in [-1, 1], and the share of each class f32[B, C]."""


class AugmentConfig(Section):
    """Augmentation of training images: a crop, and a key for each operation that is on."""

    former_keys = {
        "crop_flavour": "data.augment.crop.flavour",
        "min_area": "data.augment.crop.min_area",
        "random_fraction": "data.augment.crop.name=squash_random and data.augment.crop.fraction",
        "pad_pixels": "data.augment.crop.name=pad and data.augment.crop.pixels",
        "central_fraction": "data.central_fraction",
        "interpolation": "data.interpolation",
        "antialias": "data.antialias",
        "repeats": "data.repeats",
        "randaugment_layers": "data.augment.randaugment.layers",
        "randaugment_magnitude": "data.augment.randaugment.magnitude",
        "randaugment_flavour": "data.augment.randaugment.flavour",
        "erasing_probability": "data.augment.erasing.probability",
    }

    crop: Annotated[Crop, ChosenBy(crop_class)] = section(lambda: crop_class({})())

    def operations(self, *stages: Stage) -> dict[str, Any]:
        """Returns name -> operation of those that are on in some stages, in their order."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        found = {
            name: value
            for name, value in values.items()
            if isinstance(value, Operation) and value.stage in stages
        }
        return dict(sorted(found.items(), key=lambda entry: (entry[1].place, entry[0])))


def augment_class(section: Mapping[str, Any]) -> type[AugmentConfig]:
    """Returns the class of the section `data.augment`, with a key for each operation."""
    del section
    return _class_with(tuple((name, AUGMENTATIONS[name]) for name in AUGMENTATIONS.names))


@functools.cache
def _class_with(operations: tuple[tuple[str, type[Operation]], ...]) -> type[AugmentConfig]:
    fields: Any = {name: (cls | None, section(lambda: None)) for name, cls in operations}
    return pydantic.create_model("AugmentConfig", __base__=AugmentConfig, **fields)
