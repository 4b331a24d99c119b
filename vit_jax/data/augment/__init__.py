"""Augmentation of training images: a crop (`data.crops`), then the operations that are on.

Each operation is a file of this package, and its key in `data.augment` is the file's name. It is on
if that key is in the config. To add one, write a file with a subclass of `Operation` and register
it: its fields are the keys of its section, its method `__call__` is the operation. Its stage says
what that gets and returns. A task applies an operation, or refuses it because of its stage.

| stage  | where                         | gets                           | returns        |
|--------|-------------------------------|--------------------------------|----------------|
| host   | on the host, after the crop   | a PIL image, a NumPy generator | image          |
| uint8  | on the device, before scaling | images u8[B, H, W, 3], a key   | images         |
| device | on the device, in [-1, 1]     | images f32[B, H, W, 3], a key  | images         |
| mix    | on the device, in [-1, 1]     | these, labels f32[B, C], a key | images, labels |
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from vit_jax.data.crops import Crop, crop_class, register_crop
from vit_jax.errors import PluginError
from vit_jax.own_functions import (
    FromFunction,
    check_no_part_of,
    own_function,
    owner_of,
    section_of_function,
    with_keys,
)
from vit_jax.registry import Registry
from vit_jax.schema import ChosenBy, Section, section

AUGMENTATIONS: Registry["type[Operation]"] = Registry(__name__, "augmentation")

Stage = Literal["host", "uint8", "device", "mix"]
STAGES: tuple[Stage, ...] = ("host", "uint8", "device", "mix")
F = TypeVar("F", bound=Callable[..., Any])


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

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Applies it; see the table above for its arguments."""


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


class _OwnHost(FromFunction, Operation):
    """An operation on one image, made of a registered function."""

    stage = "host"

    def __call__(self, image: Any, rng: Any) -> Any:
        import numpy as np  # Every command that has a config imports this module.
        from PIL import Image

        pixels = np.asarray(image)
        return Image.fromarray(self.own.checked(self.call(pixels, rng), pixels.shape, "uint8"))


class _OwnDevice(FromFunction, Operation):
    """An operation on a batch of images, made of a registered function."""

    stage = "device"

    def __call__(self, images: Any, key: Any) -> Any:
        return self.own.checked(self.call(images, key), images.shape, str(images.dtype))


def register_augmentation(*, stage: str) -> Callable[[F], F]:
    """Registers an augmentation of training images; use it as a decorator with a stage.

    The function's name is a key of `data.augment`; a crop's is a value of `data.augment.crop.name`.
    Its keyword-only parameters are keys of that section, like those of a loss (`register_loss`).
    Operations of your own come after ours of the same stage, in the order of their names. Every
    task applies them or says why it refuses them.

    Args:
        stage: where it is applied, which decides what the function gets and returns.
            "crop": the size of an image (width, height) and a NumPy generator -> the part that is
            resized, (left, top, right, bottom) in pixels.
            "host": the resized image u8[H, W, 3] and a NumPy generator -> an image like it.
            "device": images f32[B, H, W, 3] in [-1, 1] and a JAX key -> images like them. The key
            depends on the run's seed, the step and the function's name.

    Raises:
        PluginError: parameters that cannot be keys, or a name that another module has registered.

    >>> @register_augmentation(stage="device")  # doctest: +SKIP
    ... def brightness(images, key, *, max_change: float = 0.2):
    ...     shape = (len(images), 1, 1, 1)
    ...     return images + jax.random.uniform(key, shape, float, -max_change, max_change)
    """
    if stage == "crop":
        return register_crop
    if stage not in _OWN:
        raise PluginError(
            f"an augmentation of stage {stage!r}", f"one of crop, {', '.join(_OWN)}", "correct it"
        )
    base, arguments = _OWN[stage]

    def register(function: F) -> F:
        own = own_function("augmentation", function, arguments)
        check_no_part_of(own, AugmentConfig, "data.augment")
        AUGMENTATIONS.add(own.name, section_of_function(own, base), owner_of(function))
        return function

    return register


_OWN = {"host": (_OwnHost, ("image", "generator")), "device": (_OwnDevice, ("images", "key"))}


def augment_class(section: Mapping[str, Any]) -> type[AugmentConfig]:
    """Returns the class of the section `data.augment`, with a key for each operation."""
    # Loads installed plugins if one is unknown.
    all(key in AugmentConfig.model_fields or AUGMENTATIONS.knows(key) for key in section)
    return with_keys(AugmentConfig, tuple(AUGMENTATIONS.items()))
