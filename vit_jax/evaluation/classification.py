"""Exact metrics of classification: which are measured, and what an evaluation step returns."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vit_jax.config.evaluation import METRICS
from vit_jax.data.sources import Source
from vit_jax.evaluation.by_class import (
    class_accuracies,
    confusion_file,
    confusion_matrix,
    write_confusion,
)
from vit_jax.evaluation.correct import correct_file, write_correct
from vit_jax.evaluation.metric_totals import MetricTotals
from vit_jax.evaluation.metrics import LossFn, Metric, Predictions
from vit_jax.evaluation.mistakes import write_mistakes
from vit_jax.evaluation.predicted import ROWS, PredictedExamples, example_rows

_USUAL = ("loss", "accuracy_top1", "accuracy_top5")
_BY_CLASS = ("accuracy_per_class_mean", "roc_auc")


def prediction_metrics(
    num_classes: int, others: Sequence[str] = (), *, by_class: bool = False
) -> dict[str, Metric]:
    """Returns name -> metric, of those that are measured for predictions of so many classes."""
    names = (*_USUAL, *(_BY_CLASS if by_class else ()), *others)
    found = {name: METRICS[name]() for name in names}
    return {name: metric for name, metric in found.items() if metric.applies(num_classes)}


def predictions_of(
    logits: Float[Array, "M C"], labels: Int[Array, " M"], mask: Bool[Array, " M"], loss: LossFn
) -> Predictions:
    """Returns predictions of one label each.

    A prediction is correct in top k if fewer than k classes have a larger logit than the label, or
    an equal logit and a lower index. So ties are never counted twice.
    """
    return Predictions(logits, labels, mask, loss(logits, labels), _ranks(logits, labels))


def predictions_of_batch(
    logits: Float[Array, "B C"], batch: Mapping[str, Array], loss: LossFn
) -> Predictions:
    """Returns those for a batch of labelled images, or of a benchmark with its own loss."""
    if "right" in batch:
        return benchmark_predictions(logits, batch["right"], batch["among"], batch["mask"])
    return predictions_of(logits, batch["label"], batch["mask"], loss)


def benchmark_predictions(
    logits: Float[Array, "B C"],
    right: Bool[Array, "B C"],
    among: Bool[Array, "B C"],
    mask: Bool[Array, " B"],
) -> Predictions:
    """Returns predictions where several classes may be right, or none.

    An example is correct in top k if one of the k largest logits of the classes in `among` is of a
    class in `right`. One without a right class does not count. The loss is minus the logarithm of
    the probability of all right classes.
    """
    chosen = jnp.where(among, logits, -jnp.inf)
    right = right & among
    best = jnp.argmax(jnp.where(right, chosen, -jnp.inf), axis=1)
    log_all = jax.nn.logsumexp(chosen, axis=1)
    log_right = jax.nn.logsumexp(jnp.where(right, chosen, -jnp.inf), axis=1)
    first, counted = jnp.argmax(right, axis=1), mask & right.any(1)
    return Predictions(logits, first, counted, log_all - log_right, _ranks(chosen, best))


def _ranks(logits: Float[Array, "M C"], labels: Int[Array, " M"]) -> Int[Array, " M"]:
    """Returns the number of classes that rank above the label; C for a label with a NaN logit."""
    num_classes = logits.shape[1]
    own = jnp.take_along_axis(logits, labels[:, None], axis=1)
    before = jnp.arange(num_classes)[None] < labels[:, None]
    # NaN ranks above every number, so that logits of NaN are never correct.
    rank = jnp.sum(~(logits < own) & ((logits != own) | before), axis=1)
    return jnp.where(jnp.isnan(own[:, 0]), max(num_classes, 5), rank)


def example_outputs(predictions: Predictions, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """Returns the outputs of an evaluation step with one prediction per example.

    These are the sums of the metrics, the number of examples, and `example_rows`.
    """
    return {
        **{name: metric.sums(predictions) for name, metric in metrics.items()},
        "examples": jnp.sum(predictions.mask),
        **example_rows(predictions),
    }


class PredictionTotals(MetricTotals):
    """Adds up `example_outputs`, and keeps what is predicted for each example.

    With a name for each class of the head there are also the accuracy of each class, the confusion
    matrix and the mistakes.
    """

    def __init__(self, metrics: Mapping[str, Metric], class_names: Sequence[str] = ()):
        super().__init__(metrics)
        self._names, self._batches = class_names, []

    def add(self, outputs: Mapping[str, Any]) -> None:
        super().add(outputs)
        self._batches.append({name: outputs[name] for name in ROWS})

    @functools.cached_property
    def _predicted(self) -> PredictedExamples:
        return PredictedExamples.of_batches(self._batches)

    @functools.cached_property
    def _confusion(self) -> Int[np.ndarray, "C C+1"]:
        return confusion_matrix(self._predicted, len(self._names))

    def metrics(self) -> dict[str, float]:
        of_class = class_accuracies(self._confusion, self._names) if self._names else {}
        return super().metrics() | of_class

    def write(self, folder: Path, name: str) -> None:
        """Writes which examples were right, and the confusion matrix if there is one."""
        write_correct(correct_file(folder, name), self._predicted)
        if self._names:
            write_confusion(confusion_file(folder, name), self._confusion, self._names)

    def write_mistakes(self, folder: Path, name: str, source: Source) -> None:
        if self._names:
            write_mistakes(folder, name, source, self._predicted, self._names)
