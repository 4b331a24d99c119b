"""Config section of masked patch prediction, and options that it does not support."""

from typing import Any

from vit_jax.config.task import TaskConfig, check_defaults
from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option

# Options for labels, or for a head on the whole image.
_ABOUT_LABELS = (
    "data.sampling",
    "data.augment.erasing_probability",
    "evaluation.by_class",
    "init.keep_head",
    "model.representation_size",
    "model.register_head",
)
_POOLINGS = ("token", "gap")


class MaskedPatchesConfig(Section):
    """Masked patch prediction: corrupt patch embeddings and predict the patches' mean colours.

    Source: arXiv:2010.11929, B.1.2.
    """

    corrupt: float = option(0.5, above=0, at_most=1)
    """Fraction of an image's patches that are corrupted and predicted."""
    mask: float = option(0.8, at_least=0, at_most=1)
    """Fraction of the corrupted patches that are replaced by a learned embedding."""
    random: float = option(0.1, at_least=0, at_most=1)
    """Fraction of the corrupted patches that are replaced by another patch of the same image. The
    rest keep their own embedding.
    """
    bits: int = option(3, at_least=1, at_most=5)
    """Bits per colour channel; 3 gives 8 levels per channel and 8 * 8 * 8 colours."""

    @property
    def num_colours(self) -> int:
        """Number of colour classes."""
        return 2 ** (3 * self.bits)

    def check(self) -> None:
        if self.mask + self.random > 1 + 1e-9:
            raise ConfigError(
                f"is {self.mask:g} and 'random' {self.random:g}",
                "fractions of the corrupted patches with a sum of at most 1",
                "lower one; the rest of the corrupted patches keep their embedding",
                key="mask",
            )


def _check(config: Any) -> None:
    if not hasattr(config.model, "position_embedding"):
        raise ConfigError(
            f"is {config.model.name!r}, {config.model.kind}, with task masked_patches",
            "a ViT or hybrid, in which a learned embedding can replace a patch",
            "use one of them",
            key="model.name",
        )
    check_defaults(config, _ABOUT_LABELS, "task masked_patches, which predicts colours of patches")
    if config.model.pooling not in _POOLINGS:
        raise ConfigError(
            f"is {config.model.pooling!r} with task masked_patches, which does not pool",
            " or ".join(map(repr, _POOLINGS)),
            "leave it out; fine-tuning can use another pooling",
            key="model.pooling",
        )


# The head predicts colours, not classes of images.
TASK = TaskConfig(
    sections={"masked_patches": MaskedPatchesConfig},
    check=_check,
    own_parameters=("mask_token", "head/.*"),
    uses_labels=False,
)
