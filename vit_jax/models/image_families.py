"""The list of families of image models, and their lookup by name."""

from collections.abc import Sequence
from typing import ClassVar

from vit_jax.errors import ModelError, nearest
from vit_jax.models.aliases import our_name, similar_sizes
from vit_jax.models.family import Family
from vit_jax.models.mixer import MIXER
from vit_jax.models.resnet import RESNET
from vit_jax.models.vit_family import VIT

# To add a family of image models, write its file and add it here.
IMAGE_FAMILIES: tuple[Family, ...] = (VIT, RESNET, MIXER)


class AnyImageConfig(*(family.options for family in IMAGE_FAMILIES)):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
    """Options of an image model that is not known yet: those of all families."""

    kind: ClassVar[str] = "any model"


def find_family(name: str, families: Sequence[Family]) -> Family:
    """Returns the family of a model name, which may be that of another project.

    The ModelError for an unknown name suggests a model of similar sizes or name.
    """
    for known in (name, our_name(name)):
        for family in families:
            if known in family.sizes or family.parse(known) is not None:
                return family
    listed = [size for family in families for size in family.sizes]
    raise ModelError(
        f"unknown model {name!r}",
        "; ".join(family.pattern for family in families),
        f"did you mean {similar_sizes(name) or nearest(name, listed)!r}?",
    )
