"""The list of families of image models, and their lookup by name."""

from collections.abc import Sequence
from typing import ClassVar

from vit_jax.errors import ModelError, nearest
from vit_jax.models.aliases import find_alias
from vit_jax.models.block_means import BLOCK_MEANS
from vit_jax.models.family import Family
from vit_jax.models.mixer import MIXER
from vit_jax.models.resnet import RESNET
from vit_jax.models.vit import VIT

# To add a family of image models, write its file and add it here.
IMAGE_FAMILIES: tuple[Family, ...] = (VIT, RESNET, MIXER, BLOCK_MEANS)


class AnyImageConfig(*(family.options for family in IMAGE_FAMILIES)):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
    """Options of an image model that is not known yet: those of all families."""

    kind: ClassVar[str] = "any model"


def find_family(name: str, families: Sequence[Family]) -> Family:
    """Returns the family of a model name.

    Args:
        name: e.g. "ViT-B/16".
        families: where to look.

    Raises:
        ModelError: unknown name. The error suggests the model of this name in another project, or
            the most similar listed one.
    """
    for family in families:
        if name in family.sizes or family.parse(name) is not None:
            return family
    raise ModelError(
        f"unknown model {name!r}",
        "; ".join(family.pattern for family in families),
        f"did you mean {_meant_model(name, families)!r}?",
    )


def _meant_model(name: str, families: Sequence[Family]) -> str:
    """Returns the model that an unknown name means: that of another project, or a similar one."""
    alias = find_alias(name)
    if alias is not None and any(family.parse(alias.name) is not None for family in families):
        return alias.name
    return nearest(name, [size for family in families for size in family.sizes])
