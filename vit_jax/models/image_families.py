"""The families of image models, and their lookup by name."""

import functools
from collections.abc import Sequence
from typing import ClassVar

from vit_jax.errors import ModelError, PluginError, nearest
from vit_jax.models.aliases import our_name, similar_sizes
from vit_jax.models.family import Family
from vit_jax.models.mixer import MIXER
from vit_jax.models.options import ModelConfig
from vit_jax.models.resnet import RESNET
from vit_jax.models.vit_family import VIT
from vit_jax.own_functions import owner_of
from vit_jax.plugins import load_installed
from vit_jax.registry import Registry

IMAGE_FAMILIES: Registry[Family] = Registry(kind="model family")


def register_family(family: Family) -> None:
    """Registers a family of image models: commands, recipes, meshes and sweeps then know its names.

    Args:
        family: its names, options, sizes and functions; see `vit_jax.models.family.Family`.

    Raises:
        PluginError: it is not complete, or another family has one of its names.

    >>> register_family(BAG)  # doctest: +SKIP
    """
    owner = _owner(family)
    for name, shape in family.sizes.items():
        if not hasattr(shape, "image_multiple"):
            raise PluginError(
                f"the sizes {shape!r} of model {name} of {owner} have no image_multiple",
                "the number by which the sides of an image must be divisible",
                "derive the class from vit_jax.models.embedding.PatchShape, or add it",
            )
        for other in IMAGE_FAMILIES.values():
            if other.name != family.name and _has(other, name):
                raise PluginError(
                    f"model {name} of family {family.name} ({owner}) is one of family {other.name}"
                    f" ({IMAGE_FAMILIES.owner(other.name)})",
                    "names that no other family has",
                    "rename it",
                )
    IMAGE_FAMILIES.add(family.name, family, owner)


for own in (VIT, RESNET, MIXER):
    IMAGE_FAMILIES.add(own.name, own, own.build.__module__)
_PACKAGE_FAMILIES = tuple(IMAGE_FAMILIES)


def _owner(family: Family) -> str:
    """Returns the module of the first part of a family that does not come from the package."""
    parts = (family.build, family.options, family.shape, family.parse, family.describe)
    owners = [owner_of(getattr(part, "func", part)) for part in parts]  # Of a `partial` it is func.
    return next((owner for owner in owners if not f"{owner}.".startswith("vit_jax.")), "vit_jax")


def is_registered_outside(family: Family) -> bool:
    """Whether a family comes from outside the package."""
    return family.name in IMAGE_FAMILIES and family.name not in _PACKAGE_FAMILIES


def any_image_config() -> type[ModelConfig]:
    """Returns the options of an image model that is not known yet: those of all families."""
    return _config_of(tuple(dict.fromkeys(family.options for family in IMAGE_FAMILIES.values())))


@functools.cache
def _config_of(options: tuple[type[ModelConfig], ...]) -> type[ModelConfig]:
    # A base of another one has no options of its own.
    bases = [cls for cls in options if not any(cls in other.__mro__[1:] for other in options)]

    class AnyImageConfig(*bases):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
        kind: ClassVar[str] = "any model"

    return AnyImageConfig


def find_family(name: str, others: Sequence[Family] = ()) -> Family:
    """Returns the family of a model name, which may be that of another project.

    `others` are families beside those of image models. The ModelError for an unknown name suggests
    a model of similar sizes or name.
    """
    families = (*IMAGE_FAMILIES.values(), *others)
    for known in (name, our_name(name)):
        for family in families:
            if _has(family, known):
                return family
    if load_installed():
        return find_family(name, others)
    listed = [size for family in families for size in family.sizes]
    raise ModelError(
        f"unknown model {name!r}",
        "; ".join(family.pattern for family in families),
        f"did you mean {similar_sizes(name) or nearest(name, listed)!r}?",
    )


def is_image_model(name: str) -> bool:
    """Whether a family of image models has a name."""
    return any(_has(family, name) for family in IMAGE_FAMILIES.values())


def _has(family: Family, name: str) -> bool:
    return name in family.sizes or family.parse(name) is not None
