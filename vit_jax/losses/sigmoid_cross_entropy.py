"""Sigmoid cross-entropy: each class is a yes or no of its own."""

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from vit_jax.errors import ConfigError
from vit_jax.losses import LOSSES, LabelLoss, LossName
from vit_jax.schema import option


@LOSSES.register
class SigmoidCrossEntropy(LabelLoss):
    """-sum_c targets_c log sigmoid(logits_c) + (1 - targets_c) log sigmoid(-logits_c).

    Summed over the classes, as the ImageNet-21k and JFT recipes do. Source: arXiv:2006.07159,
    section 5.

    >>> SigmoidCrossEntropy()(jnp.zeros((1, 4)), jnp.array([1])).round(4)  # 4 log 2
    Array([2.7726], dtype=float32)
    """

    kind = "sigmoid cross-entropy"

    name: LossName = option("sigmoid_cross_entropy")
    """Each class is a yes or no of its own."""
    mean_over_classes: bool = option(False)
    """The mean over the classes instead of the sum, as in PyTorch. The gradient is as many times
    smaller as there are classes, which matters for clipping.
    """
    binary_targets: bool = option(False)
    """Every class of a mixed image has target 1, whatever its share (arXiv:2204.07118)."""

    def check(self) -> None:
        if self.binary_targets and self.label_smoothing:
            raise ConfigError(
                f"is True with 'label_smoothing' {self.label_smoothing:g}, which makes every"
                " target positive",
                "one of the two",
                "leave one out",
                key="binary_targets",
            )

    def per_example(
        self, logits: Float[Array, "B C"], targets: Float[Array, "B C"]
    ) -> Float[Array, " B"]:
        if self.binary_targets:
            targets = (targets > 0).astype(jnp.float32)
        losses = optax.losses.sigmoid_binary_cross_entropy(logits, targets).sum(axis=-1)
        return losses / logits.shape[-1] if self.mean_over_classes else losses
