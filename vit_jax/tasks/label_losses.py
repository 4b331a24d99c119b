"""Classification losses in float32, one value per example, and their weights by class."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from vit_jax.tasks.classification.config import LossConfig

Labels = Int[Array, " B"] | Float[Array, "B C"]
LossFn = Callable[[Float[Array, "B C"], Labels], Float[Array, " B"]]


def make_loss(config: LossConfig) -> LossFn:
    """Returns loss_fn(logits, labels) -> f32[B]; labels are class indices or distributions."""
    losses = {
        "softmax_cross_entropy": softmax_cross_entropy,
        "sigmoid_cross_entropy": sigmoid_cross_entropy,
    }
    loss = losses[config.name]

    def loss_fn(logits: Float[Array, "B C"], labels: Labels) -> Float[Array, " B"]:
        num_classes = logits.shape[-1]
        targets = smooth(as_distribution(labels, num_classes), config.label_smoothing)
        if config.binary_targets:
            targets = (targets > 0).astype(jnp.float32)
        losses = loss(logits.astype(jnp.float32), targets)
        return losses / num_classes if config.mean_over_classes else losses

    return loss_fn


def as_distribution(labels: Labels, num_classes: int) -> Float[Array, "B C"]:
    """Returns class indices as one-hot rows, and distributions unchanged."""
    return jax.nn.one_hot(labels, num_classes) if labels.ndim == 1 else labels


def smooth(targets: Float[Array, "B C"], amount: float) -> Float[Array, "B C"]:
    """Returns (1 - amount) * targets + amount / C. Source: arXiv:1512.00567, section 7."""
    return (1 - amount) * targets + amount / targets.shape[-1] if amount else targets


def softmax_cross_entropy(
    logits: Float[Array, "B C"], targets: Float[Array, "B C"]
) -> Float[Array, " B"]:
    """-sum_c targets_c log softmax(logits)_c.

    >>> softmax_cross_entropy(jnp.zeros((1, 4)), jnp.array([[0.0, 1, 0, 0]])).round(4)  # log 4
    Array([1.3863], dtype=float32)
    """
    return optax.losses.softmax_cross_entropy(logits, targets)


def sigmoid_cross_entropy(
    logits: Float[Array, "B C"], targets: Float[Array, "B C"]
) -> Float[Array, " B"]:
    """-sum_c targets_c log sigmoid(logits_c) + (1 - targets_c) log sigmoid(-logits_c).

    Summed over the classes, as the ImageNet-21k and JFT recipes do. Source: arXiv:2006.07159,
    section 5.

    >>> sigmoid_cross_entropy(jnp.zeros((1, 4)), jnp.array([[0.0, 1, 0, 0]])).round(4)  # 4 log 2
    Array([2.7726], dtype=float32)
    """
    return optax.losses.sigmoid_binary_cross_entropy(logits, targets).sum(axis=-1)


def class_weights(kind: str, counts: Int[np.ndarray, " C"]) -> Float[np.ndarray, " C"]:
    """Returns the weight of an example's loss by its class; the mean over all examples is 1.

    With n examples in a class, "balanced" is N / (C n) as in scikit-learn, so that every class
    contributes equally; "sqrt" is proportional to 1 / sqrt(n). A class without examples gets weight
    0 and is not counted in C.

    >>> class_weights("balanced", np.array([30, 10]))
    array([0.6666667, 2.       ], dtype=float32)
    """
    power = {"balanced": -1.0, "sqrt": -0.5}[kind]
    raw = np.where(counts > 0, np.maximum(counts, 1) ** power, 0.0)
    return (raw * counts.sum() / (raw * counts).sum()).astype(np.float32)
