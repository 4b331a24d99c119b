"""Config sections of classification: mixing and loss."""

from typing import Any, Literal

from vit_jax.config.task import TaskConfig
from vit_jax.schema import Section, option


class MixingConfig(Section):
    """Mixing of image pairs on the device. If both are on, each batch uses one at random."""

    mixup_alpha: float = option(0.0, at_least=0)
    """Mixup ratios are drawn from Beta(alpha, alpha) (arXiv:1710.09412); 0: off."""
    cutmix_alpha: float = option(0.0, at_least=0)
    """The same for CutMix (arXiv:1905.04899)."""


class LossConfig(Section):
    """The loss between logits and labels."""

    name: Literal["softmax_cross_entropy", "sigmoid_cross_entropy"] = option(
        "softmax_cross_entropy"
    )
    """Softmax: one class per image. Sigmoid: each class is a yes or no of its own, for images
    with several classes.
    """
    label_smoothing: float = option(0.0, at_least=0, below=1)
    """Share of the label that is spread evenly over all classes (arXiv:1512.00567)."""
    class_weights: Literal["none", "balanced", "sqrt"] = option("none")
    """Weights the loss of an example by the frequency of its class: n of N training examples, with
    C classes. balanced: N / (C n); sqrt: proportional to 1 / sqrt(n). The mean over examples is 1.
    """


def _class_counts_key(config: Any) -> str | None:
    return None if config.loss.class_weights == "none" else "loss.class_weights"


TASK = TaskConfig(
    sections={"mixing": MixingConfig, "loss": LossConfig}, class_counts_key=_class_counts_key
)
