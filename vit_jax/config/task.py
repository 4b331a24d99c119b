"""What a run learns: the config section of masked patch prediction, and what cannot go with it."""

from typing import Any, Literal

from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option

TaskName = Literal["classification", "masked_patches"]

# Keys that are about labels or what blends images, or a head that patches do not have. With masked
# patches they keep their defaults.
_OF_CLASSIFICATION = (
    "mixing.mixup_alpha",
    "mixing.cutmix_alpha",
    "loss.name",
    "loss.label_smoothing",
    "loss.class_weights",
    "data.sampling",
    "data.augment.erasing_probability",
    "evaluation.by_class",
    "init.keep_head",
    "model.representation_size",
)
_POOLINGS = ("token", "gap")


class MaskedPatchesConfig(Section):
    """Masked patch prediction: embeddings of patches are corrupted, their mean colours predicted.

    Source: arXiv:2010.11929, B.1.2.
    """

    corrupt: float = option(0.5, above=0, at_most=1)
    """Share of an image's patches that are corrupted and predicted."""
    mask: float = option(0.8, at_least=0, at_most=1)
    """Of these, the share that a learned embedding takes the place of, and the share that the
    embedding of another patch of the image does; the rest stays as it is.
    """
    random: float = option(0.1, at_least=0, at_most=1)
    bits: int = option(3, at_least=1, at_most=5)
    """A channel; 3 makes 8 levels, and 8 * 8 * 8 colours."""

    @property
    def num_colours(self) -> int:
        """Colours there are to predict."""
        return 2 ** (3 * self.bits)

    def check(self) -> None:
        if self.mask + self.random > 1 + 1e-9:
            raise ConfigError(
                f"is {self.mask:g} and 'random' {self.random:g}",
                "shares of the corrupted patches, at most 1 together",
                "lower one; what is left stays as it is",
                key="mask",
            )


def check_task(config: Section) -> None:
    """Checks that the other sections go with a run's task.

    Args:
        config: the whole run.

    Raises:
        ConfigError: an option of another task.
    """
    values: Any = config
    if values.task == "classification":
        if values.masked_patches != MaskedPatchesConfig():
            raise ConfigError(
                "given with task classification",
                "task masked_patches",
                "add --config.task=masked_patches, or leave the section out",
                key="masked_patches",
            )
        return
    for key in _OF_CLASSIFICATION:
        value, usual = _value_and_default(config, key)
        if value != usual:
            raise ConfigError(
                f"is {value!r} with task masked_patches, which predicts colours of patches",
                repr(usual),
                "leave it out",
                key=key,
            )
    if values.model.pooling not in _POOLINGS:
        raise ConfigError(
            f"is {values.model.pooling!r} with task masked_patches, which pools nothing",
            " or ".join(map(repr, _POOLINGS)),
            "leave it out; fine-tuning may choose another",
            key="model.pooling",
        )
    if values.model.name.startswith("BiT-"):
        raise ConfigError(
            f"is {values.model.name!r}, a ResNet, with task masked_patches",
            "a model with patches",
            "use a ViT or a hybrid",
            key="model.name",
        )


def _value_and_default(config: Section, key: str) -> tuple[Any, Any]:
    *path, leaf = key.split(".")
    part: Any = config
    for name in path:
        part = getattr(part, name)
    return getattr(part, leaf), type(part).model_fields[leaf].default
