"""Config sections of classification: mixing and loss."""

import dataclasses
from typing import Literal

from vit_jax.config.task import TaskConfig
from vit_jax.schema import Section, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixingConfig(Section):
    """Mixing of image pairs on the device. If both are on, each batch uses one, chosen at random."""

    # Beta(alpha, alpha) of mixup (arXiv:1710.09412) and CutMix (arXiv:1905.04899); 0: off.
    mixup_alpha: float = option(0.0, at_least=0)
    cutmix_alpha: float = option(0.0, at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig(Section):
    """The loss between logits and labels."""

    name: Literal["softmax_cross_entropy", "sigmoid_cross_entropy"] = option(
        "softmax_cross_entropy"
    )
    label_smoothing: float = option(0.0, at_least=0, below=1)
    # Weight of an example's loss, where n of N training examples are of its class, one of C.
    # balanced: N / (C n); sqrt: proportional to 1 / sqrt(n). Both average 1 over the examples.
    class_weights: Literal["none", "balanced", "sqrt"] = option("none")


TASK = TaskConfig(sections={"mixing": MixingConfig, "loss": LossConfig})
