"""Class imbalance: loss weights by class, and an order that draws all classes equally often."""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from vit_jax.config.run import Config
from vit_jax.data.order import BalancedOrder
from vit_jax.data.sources import LabelledSource, Source
from vit_jax.errors import DataError


@dataclasses.dataclass(frozen=True)
class Balance:
    """How a run treats classes of unequal size.

    Attributes:
        weights: f32[C], weight of an example's loss by its class; None: all 1.
        order: order of the examples; None: `ExampleOrder`.
    """

    weights: np.ndarray | None = None
    order: BalancedOrder | None = None


def build_balance(config: Config, source: Source, num_classes: int) -> Balance:
    """Returns the class weights and the order of examples of a config.

    Reads the labels only if the config needs them.

    Args:
        config: `loss.class_weights`, `data.sampling` and the seed are read.
        source: the training examples.
        num_classes: C.

    Raises:
        DataError: the source cannot list its labels, or a label is out of range.
    """
    kind, balanced = config.loss.class_weights, config.data.sampling == "balanced"
    if kind == "none" and not balanced:
        return Balance()
    key = "data.sampling" if balanced else "loss.class_weights"
    if not isinstance(source, LabelledSource):
        raise DataError(
            f"'{key}' for {source.name}, whose labels cannot be listed",
            "a single dataset",
            f"leave {key} out",
        )
    labels = source.labels().astype(np.int64)
    good = (labels >= 0) & (labels < num_classes)
    if not good.all() and config.data.on_bad_example == "error":
        bad = int(np.flatnonzero(~good)[0])
        raise DataError(
            f"label {labels[bad]} of example {bad} of {source.name}",
            f"0 to {num_classes - 1}",
            "set data.num_classes to the number of classes, or repair the dataset",
        )
    counts = np.bincount(labels[good], minlength=num_classes)
    return Balance(
        None if kind == "none" else class_weights(kind, counts),
        BalancedOrder(np.where(good, labels, -1), config.seed) if balanced else None,
    )


def class_weights(kind: str, counts: Int[np.ndarray, " C"]) -> Float[np.ndarray, " C"]:
    """Returns the weight of an example's loss by its class; the mean over all examples is 1.

    Args:
        kind: "balanced": N / (C n) as in scikit-learn, so that every class contributes equally;
            "sqrt": proportional to 1 / sqrt(n).
        counts: n, number of examples of each class. A class without examples gets weight 0 and is
            not counted in C.

    >>> class_weights("balanced", np.array([30, 10]))
    array([0.6666667, 2.       ], dtype=float32)
    """
    power = {"balanced": -1.0, "sqrt": -0.5}[kind]
    raw = np.where(counts > 0, np.maximum(counts, 1) ** power, 0.0)
    return (raw * counts.sum() / (raw * counts).sum()).astype(np.float32)
