"""Exact classification metrics: mean loss, top-1 and top-5 accuracy."""

from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vit_jax.errors import first_few
from vit_jax.evaluation.by_class import ByClass, confusion_file
from vit_jax.evaluation.correct import CorrectExamples, correct_file
from vit_jax.evaluation.loop import Totals

# logits, labels -> one loss per example.
LossFn = Callable[[jax.Array, jax.Array], jax.Array]


def has_few_classes(num_classes: int | None) -> bool:
    """Whether every prediction is correct in top 5. None: the number is not known."""
    return num_classes is not None and num_classes <= 5


def prediction_sums(
    logits: Float[Array, "M C"], labels: Int[Array, " M"], mask: Bool[Array, " M"], loss: LossFn
) -> dict[str, Array]:
    """Returns sums over the predictions whose mask is True: loss, top1, top5 and predictions.

    A prediction is correct in top k if fewer than k classes have a larger logit than the label, or
    an equal logit and a lower index. So ties are never counted twice.
    """
    rank = _ranks(logits, labels)
    return {
        "loss": jnp.sum(jnp.where(mask, loss(logits, labels), 0)),
        "top1": jnp.sum((rank < 1) & mask),
        "top5": jnp.sum((rank < 5) & mask),
        "predictions": jnp.sum(mask),
    }


def example_outputs(
    logits: Float[Array, "B C"], labels: Int[Array, " B"], mask: Bool[Array, " B"], loss: LossFn
) -> dict[str, Array]:
    """Returns the outputs for batches with one prediction per example.

    These are `prediction_sums`, the number of examples, and what `CorrectExamples` collects:
    "correct" (in top 1), "label" and "mask", one value per example.
    """
    return {
        **prediction_sums(logits, labels, mask, loss),
        "examples": jnp.sum(mask),
        "correct": _ranks(logits, labels) < 1,
        "label": labels,
        "mask": mask,
    }


def outputs_of_batch(
    logits: Float[Array, "B C"], batch: Mapping[str, Array], loss: LossFn
) -> dict[str, Array]:
    """Returns the outputs for a batch of labelled images, or of a benchmark with its own loss."""
    if "right" in batch:
        return benchmark_outputs(logits, batch["right"], batch["among"], batch["mask"])
    return example_outputs(logits, batch["label"], batch["mask"], loss)


def benchmark_outputs(
    logits: Float[Array, "B C"],
    right: Bool[Array, "B C"],
    among: Bool[Array, "B C"],
    mask: Bool[Array, " B"],
) -> dict[str, Array]:
    """Returns `example_outputs` where several classes may be right, or none.

    An example is correct in top k if one of the k largest logits of the classes in `among` is of a
    class in `right`. One without a right class does not count. The loss is minus the logarithm of
    the probability of all right classes.
    """
    chosen = jnp.where(among, logits, -jnp.inf)
    right = right & among
    best = jnp.argmax(jnp.where(right, chosen, -jnp.inf), axis=1)
    log_all = jax.nn.logsumexp(chosen, axis=1)
    log_right = jax.nn.logsumexp(jnp.where(right, chosen, -jnp.inf), axis=1)
    outputs = example_outputs(
        chosen, best, mask & right.any(1), lambda logits, labels: log_all - log_right
    )
    return outputs | {"label": jnp.argmax(right, axis=1)}


def _ranks(logits: Float[Array, "M C"], labels: Int[Array, " M"]) -> Int[Array, " M"]:
    """Returns the number of classes that rank above the label; C for a label with a NaN logit."""
    num_classes = logits.shape[1]
    own = jnp.take_along_axis(logits, labels[:, None], axis=1)
    before = jnp.arange(num_classes)[None] < labels[:, None]
    # NaN ranks above every number, so that logits of NaN are never correct.
    rank = jnp.sum(~(logits < own) & ((logits != own) | before), axis=1)
    return jnp.where(jnp.isnan(own[:, 0]), max(num_classes, 5), rank)


class PredictionTotals(Totals):
    """Adds up `prediction_sums` and the number of examples, and collects which examples are right.

    The second needs a step that returns `example_outputs`. The metrics are loss, accuracy_top1 and,
    with more than five classes, accuracy_top5 as means over the predictions, and examples. `means`
    maps further metrics, which are means over the predictions, to the names of their sums.
    """

    def __init__(
        self,
        by_class: ByClass | None = None,
        means: Mapping[str, str] | None = None,
        num_classes: int | None = None,
    ):
        self._by_class, self._correct = by_class, CorrectExamples()
        self._means = {
            "loss": "loss",
            "accuracy_top1": "top1",
            **({} if has_few_classes(num_classes) else {"accuracy_top5": "top5"}),
            **(means or {}),
        }
        self._sums: dict[str, float] = dict.fromkeys(
            ("predictions", "examples", *self._means.values()), 0
        )

    def add(self, outputs: Mapping[str, np.ndarray]) -> None:
        for name in self._sums:
            self._sums[name] += outputs[name].item()
        if "correct" in outputs:
            self._correct.add(outputs)
        if self._by_class is not None:
            self._by_class.add(outputs)

    def metrics(self) -> dict[str, float]:
        count = self._sums["predictions"]
        means = {metric: self._sums[name] / count for metric, name in self._means.items()}
        by_class = {} if self._by_class is None else self._by_class.metrics()
        return {**means, "examples": self._sums["examples"], **by_class}

    def warnings(self) -> list[str]:
        """Returns a warning about classes without examples, e.g. in a small split."""
        absent = [] if self._by_class is None else self._by_class.absent()
        return [f"has no example of {first_few(list(map(repr, absent)), 5)}"] if absent else []

    def write(self, folder: Path, name: str) -> None:
        """Writes which examples were right, and the confusion matrix if there is one."""
        self._correct.write(correct_file(folder, name))
        if self._by_class is not None:
            self._by_class.write(confusion_file(folder, name))
