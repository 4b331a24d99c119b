"""Metrics by class: confusion matrix, accuracies, area under the ROC curve."""

import csv
import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vit_jax.data.class_names import with_spare_names
from vit_jax.errors import FileError
from vit_jax.storage.files import write_atomically

log = logging.getLogger(__name__)

NO_CLASS = "no class"
"""Column of a confusion matrix for examples with a NaN logit."""


def class_outputs(
    logits: Float[Array, "B C"], labels: Int[Array, " B"], mask: Bool[Array, " B"]
) -> dict[str, Array]:
    """Returns the outputs of a batch, for `ByClass` to add up.

    "confusion" i32[C, C + 1] counts examples by true and predicted class; the last column is for
    examples with a NaN logit. With two classes there is also "score" f32[B], the second logit minus
    the first, with "label" and "mask".
    """
    num_classes = logits.shape[1]
    predicted = jnp.where(jnp.isnan(logits).any(axis=1), num_classes, jnp.argmax(logits, axis=1))
    true = jax.nn.one_hot(labels, num_classes) * mask[:, None].astype(jnp.float32)
    counts = jnp.einsum("bc,bd->cd", true, jax.nn.one_hot(predicted, num_classes + 1))
    found: dict[str, Array] = {"confusion": counts.astype(jnp.int32)}
    if num_classes == 2:
        score = (logits[:, 1] - logits[:, 0]).astype(jnp.float32)
        found |= {"score": score, "label": labels, "mask": mask}
    return found


class ByClass:
    """Adds up metrics by class over the batches of a split.

    Equal class names get a number, and so do classes without a name.
    """

    def __init__(self, class_names: Sequence[str], num_classes: int):
        names = with_spare_names(class_names, num_classes) or tuple(class_names)
        self.names = [
            f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names)
        ]
        self.confusion = np.zeros((num_classes, num_classes + 1), np.int64)
        self._scores: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []

    def add(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Adds a batch of `class_outputs`."""
        self.confusion += outputs["confusion"]
        if "score" in outputs:
            mask = outputs["mask"]
            self._scores.append(outputs["score"][mask])
            self._labels.append(outputs["label"][mask])

    def absent(self) -> list[str]:
        counts = self.confusion.sum(axis=1)
        return [name for name, n in zip(self.names, counts, strict=True) if not n]

    def metrics(self) -> dict[str, float]:
        """Returns accuracy_class/NAME of each class with examples, their mean, and roc_auc."""
        examples = self.confusion.sum(axis=1)
        right = np.diagonal(self.confusion)
        shares = {
            name: int(r) / int(n)
            for name, r, n in zip(self.names, right, examples, strict=True)
            if n
        }
        found = {"accuracy_per_class_mean": sum(shares.values()) / max(len(shares), 1)}
        area = self._roc_auc()
        found |= {} if area is None else {"roc_auc": area}
        return found | {f"accuracy_class/{name}": share for name, share in shares.items()}

    def _roc_auc(self) -> float | None:
        """Returns the area under the ROC curve for two classes; None if it is undefined."""
        if not self._scores:
            return None
        from sklearn.metrics import roc_auc_score

        scores, labels = np.concatenate(self._scores), np.concatenate(self._labels)
        if len(set(labels.tolist())) < 2 or not np.isfinite(scores).all():
            log.warning("no area under the ROC curve: one class only, or scores not finite")
            return None
        return float(roc_auc_score(labels, scores))

    def write(self, path: Path) -> None:
        """Writes the confusion matrix as CSV: a row per true class, a column per prediction."""
        matrix, names = self.confusion, [*self.names, NO_CLASS]
        if not matrix[:, -1].any():
            matrix, names = matrix[:, :-1], names[:-1]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["true class", *names])
        writer.writerows(
            [name, *row] for name, row in zip(self.names, matrix.tolist(), strict=True)
        )
        write_atomically(path, text.getvalue())


def confusion_file(folder: Path, split: str) -> Path:
    """Returns the file of a split in a report folder."""
    return folder / f"confusion-{split}.csv"


def read_confusion(path: Path) -> tuple[list[str], list[str], Int[np.ndarray, "C P"]]:
    """Returns the names of true and of predicted classes, and the counts, that `ByClass` wrote.

    Raises:
        FileError: the file is damaged.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            (_, *predicted), *rows = csv.reader(file)
        counts = np.array([[int(n) for n in row[1:]] for row in rows])
        if counts.shape != (len(rows), len(predicted)) or (counts < 0).any():
            raise ValueError("rows of different lengths, or negative counts")
    except (ValueError, csv.Error) as error:
        raise FileError(
            f"{path}: {error}",
            "a table of counts, as `train` and `eval` write it",
            "run `eval` on the run folder to write it again",
        ) from None
    return [row[0] for row in rows], predicted, counts
