"""Losses between logits and labels, chosen by `loss.name`. Each is a file of this package.

To add a loss, write a file with a subclass of `LabelLoss` and register it: its fields are the keys
of the section `loss`, its method `per_example` is the loss.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from vit_jax.registry import Registry
from vit_jax.schema import Section, option

LOSSES: Registry["LabelLoss"] = Registry(__name__)
if TYPE_CHECKING:
    LossName = str
else:
    LossName = Literal[tuple(LOSSES.names)]


class LabelLoss(Section):
    """The loss between logits and labels."""

    name: LossName = option("softmax_cross_entropy")
    """Softmax: one class per image. Sigmoid: each class is a yes or no of its own, for images
    with several classes.
    """
    label_smoothing: float = option(0.0, at_least=0, below=1)
    """Share of the label that is spread evenly over all classes (arXiv:1512.00567)."""
    class_weights: Literal["none", "balanced", "sqrt"] = option("none")
    """Weights the loss of an example by the frequency of its class: n of N training examples, with
    C classes. balanced: N / (C n); sqrt: proportional to 1 / sqrt(n). The mean over examples is 1.
    """

    @classmethod
    def named_classes(cls) -> Mapping[str, type[Section]]:
        return LOSSES.classes

    def __call__(self, logits: Any, labels: Any) -> Any:
        """Returns the loss of each example f32[B].

        Args:
            logits: [B, C].
            labels: class indices i32[B], or the share of each class f32[B, C].
        """
        targets = as_distribution(labels, logits.shape[-1])
        if self.label_smoothing:  # Source: arXiv:1512.00567, section 7.
            targets = (1 - self.label_smoothing) * targets
            targets += self.label_smoothing / logits.shape[-1]
        return self.per_example(logits.astype("float32"), targets)

    def per_example(self, logits: Any, targets: Any) -> Any:
        """Returns the loss of each example f32[B].

        Args:
            logits: f32[B, C].
            targets: f32[B, C], the share of each class: one-hot, smoothed or mixed.
        """
        raise NotImplementedError


loss_class = partial(LOSSES.class_of, LabelLoss)


def as_distribution(labels: Any, num_classes: int) -> Any:
    """Returns class indices [B] as one-hot rows f32[B, C], and distributions unchanged."""
    import jax  # Not above: the keys of the config are known without it.

    return jax.nn.one_hot(labels, num_classes) if labels.ndim == 1 else labels
