"""The task of classification."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from vit_jax.config.run import Config
from vit_jax.data.device import Batch, to_unit_range
from vit_jax.evaluation.classification import example_outputs, predictions_of_batch
from vit_jax.losses import as_distribution
from vit_jax.tasks.image_task import LabelTask
from vit_jax.tasks.task import TASK_CLASSES, DataInfo, Metrics, Task


@TASK_CLASSES.register
class Classification(LabelTask):
    """Predicts the class of an image."""

    def __init__(self, config: Config, data: DataInfo, *, platform: str):
        super().__init__(config, data, platform=platform)
        counts, kind = data.class_counts, config.label_loss.class_weights
        self.weights = None if counts is None else class_weights(kind, counts)

    @classmethod
    def for_config(cls, config: Config) -> type[Task]:
        if config.data.sequence_length is None:
            return cls
        from vit_jax.tasks.classification.naflex import NaFlexClassification

        return NaFlexClassification

    def inputs(self, batch: Batch) -> Any:
        """Returns what the model takes, of a batch that is not augmented."""
        return to_unit_range(batch["image"])

    def logits(self, params: Any, inputs: Any, key: jax.Array | None = None) -> Any:
        """Returns the logits f32[B, C]; a key turns dropout on."""
        return self.model(params)(inputs, key=key)

    def loss(self, params: Any, batch: Batch, key: jax.Array) -> tuple[Float[Array, ""], Metrics]:
        """Weights an example by its class, and a mixed one in proportion to its labels."""
        logits = self.logits(params, batch["image"], key)
        losses = self.label_loss(logits, batch["label"])
        if self.weights is not None:
            losses *= as_distribution(batch["label"], logits.shape[-1]) @ self.weights
        return losses.mean(), {}

    def eval_step(self, params: Any, batch: Batch) -> dict[str, Any]:
        logits = self.logits(params, self.inputs(batch))
        predictions = predictions_of_batch(logits, batch, self.eval_loss)
        return example_outputs(predictions, self.metrics)


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
