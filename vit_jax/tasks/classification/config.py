"""Config sections of classification: mixing and loss."""

from typing import Any, Literal

from vit_jax.config.task import TaskConfig
from vit_jax.errors import ConfigError
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
    mean_over_classes: bool = option(False)
    """Sigmoid: the mean over the classes instead of the sum, as in PyTorch. The gradient is as many
    times smaller as there are classes, which matters for clipping.
    """
    binary_targets: bool = option(False)
    """Sigmoid: every class of a mixed image has target 1, whatever its share (arXiv:2204.07118)."""
    label_smoothing: float = option(0.0, at_least=0, below=1)
    """Share of the label that is spread evenly over all classes (arXiv:1512.00567)."""
    class_weights: Literal["none", "balanced", "sqrt"] = option("none")
    """Weights the loss of an example by the frequency of its class: n of N training examples, with
    C classes. balanced: N / (C n); sqrt: proportional to 1 / sqrt(n). The mean over examples is 1.
    """

    def check(self) -> None:
        for key in ("mean_over_classes", "binary_targets"):
            if getattr(self, key) and self.name != "sigmoid_cross_entropy":
                raise ConfigError(
                    f"is True with {self.name}",
                    "name sigmoid_cross_entropy",
                    "leave it out, or set loss.name=sigmoid_cross_entropy",
                    key=key,
                )
        if self.binary_targets and self.label_smoothing:
            raise ConfigError(
                f"is True with 'label_smoothing' {self.label_smoothing:g}, which makes every"
                " target positive",
                "one of the two",
                "leave one out",
                key="binary_targets",
            )


def _class_counts_key(config: Any) -> str | None:
    return None if config.loss.class_weights == "none" else "loss.class_weights"


ACCURACIES = ("accuracy_top1", "accuracy_top5", "accuracy_per_class_mean", "roc_auc")
TASK = TaskConfig(
    sections={"mixing": MixingConfig, "loss": LossConfig},
    class_counts_key=_class_counts_key,
    accuracies=ACCURACIES,
)
