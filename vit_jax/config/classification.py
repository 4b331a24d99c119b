"""Config sections of the task of classification: mixing and loss."""

from typing import Literal

from vit_jax.schema import Section, option


class MixingConfig(Section):
    """Blending of pairs of images on the device; with both on, each batch draws one of the two."""

    mixup_alpha: float = option(0.0, at_least=0)
    """Beta(alpha, alpha) of mixup (arXiv:1710.09412) and CutMix (arXiv:1905.04899); 0: off."""
    cutmix_alpha: float = option(0.0, at_least=0)


class LossConfig(Section):
    """What is minimised."""

    name: Literal["softmax_cross_entropy", "sigmoid_cross_entropy"] = option(
        "softmax_cross_entropy"
    )
    label_smoothing: float = option(0.0, at_least=0, below=1)
    class_weights: Literal["none", "balanced", "sqrt"] = option("none")
    """Factor of an example's loss, by the n training examples of its class among N of C
    classes: balanced: N / (C n); sqrt: proportional to 1 / sqrt(n). Both are 1 in the mean over
    examples.
    """
