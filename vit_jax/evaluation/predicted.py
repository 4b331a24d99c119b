"""What a model predicts for each example of a split."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vit_jax.evaluation.metrics import Predictions


@dataclasses.dataclass(frozen=True)
class PredictedExamples:
    """The examples of a split in their order; some rows are padding."""

    label: Int[np.ndarray, " N"]
    predicted: Int[np.ndarray, " N"]  # the number of classes for an example with a NaN logit
    probability: Float[np.ndarray, " N"]  # of the predicted class
    correct: Bool[np.ndarray, " N"]  # in top 1
    mask: Bool[np.ndarray, " N"]  # False for padding and for skipped examples

    @classmethod
    def of_batches(cls, outputs: Sequence[Mapping[str, Any]]) -> "PredictedExamples":
        """Joins the `example_rows` of batches."""
        return cls(**{name: np.concatenate([batch[name] for batch in outputs]) for name in ROWS})


ROWS = tuple(field.name for field in dataclasses.fields(PredictedExamples))
"""Names of these arrays in the outputs of a step."""


def example_rows(predictions: Predictions) -> dict[str, Array]:
    """Returns what `PredictedExamples` keeps of predictions, one per example."""
    return {
        "label": predictions.labels,
        "predicted": predictions.classes,
        "probability": jax.nn.softmax(predictions.logits, axis=1).max(axis=1),
        "correct": predictions.ranks < 1,
        "mask": predictions.mask,
    }
