"""Class imbalance: the size of each class, and an order that draws all classes equally often."""

import dataclasses

import numpy as np
from jaxtyping import Int

from vit_jax.config.run import Config
from vit_jax.config.task import task_config
from vit_jax.data.order import BalancedOrder
from vit_jax.data.sources import LabelledSource, Source
from vit_jax.errors import DataError


@dataclasses.dataclass(frozen=True)
class Balance:
    """What a run with classes of unequal size needs to know about them."""

    counts: Int[np.ndarray, " C"] | None = None  # Training examples; None: not needed.
    order: BalancedOrder | None = None  # None: `ExampleOrder`.


def build_balance(config: Config, source: Source, num_classes: int) -> Balance:
    """Returns the class counts and the order of examples of a config.

    Reads the labels only if the task or `data.sampling` needs them.
    """
    balanced = config.data.sampling == "balanced"
    key_of_task = task_config(config.task).class_counts_key(config)
    key = "data.sampling" if balanced else key_of_task
    if key is None:
        return Balance()
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
    return Balance(
        None if key_of_task is None else np.bincount(labels[good], minlength=num_classes),
        BalancedOrder(np.where(good, labels, -1), config.seed) if balanced else None,
    )
