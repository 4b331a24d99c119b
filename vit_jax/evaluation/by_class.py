"""The confusion matrix of a split, and the accuracy of each class."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from vit_jax.data.class_names import with_spare_names
from vit_jax.errors import FileError
from vit_jax.evaluation.metrics import Predictions
from vit_jax.storage.files import write_atomically

NO_CLASS = "no class"
"""Column of a confusion matrix for examples with a NaN logit."""


def confusion_counts(predictions: Predictions) -> Int[Array, "C C+1"]:
    """Counts the examples of a batch by true and predicted class, for `ByClass` to add up.

    The last column is for examples with a NaN logit.
    """
    num_classes = predictions.num_classes
    counted = predictions.mask[:, None].astype(jnp.float32)
    true = jax.nn.one_hot(predictions.labels, num_classes) * counted
    predicted = jax.nn.one_hot(predictions.classes, num_classes + 1)
    return jnp.einsum("bc,bd->cd", true, predicted).astype(jnp.int32)


class ByClass:
    """Adds up the confusion matrix of a split.

    Equal class names get a number, and so do classes without a name.
    """

    def __init__(self, class_names: Sequence[str], num_classes: int):
        names = with_spare_names(class_names, num_classes) or tuple(class_names)
        self.names = [
            f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names)
        ]
        self.confusion = np.zeros((num_classes, num_classes + 1), np.int64)

    def add(self, outputs: Mapping[str, Any]) -> None:
        """Adds a batch, whose "confusion" is `confusion_counts`."""
        self.confusion += outputs["confusion"]

    def absent(self) -> list[str]:
        counts = self.confusion.sum(axis=1)
        return [name for name, n in zip(self.names, counts, strict=True) if not n]

    def metrics(self) -> dict[str, float]:
        """Returns accuracy_class/NAME of each class with examples."""
        examples = self.confusion.sum(axis=1)
        right = np.diagonal(self.confusion)
        return {
            f"accuracy_class/{name}": int(r) / int(n)
            for name, r, n in zip(self.names, right, examples, strict=True)
            if n
        }

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
