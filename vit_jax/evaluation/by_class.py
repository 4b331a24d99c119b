"""The confusion matrix of a split, and the accuracy of each class."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from vit_jax.errors import FileError
from vit_jax.evaluation.predicted import PredictedExamples
from vit_jax.storage.files import write_atomically

NO_CLASS = "no class"
"""Column of a confusion matrix for examples with a NaN logit."""


def confusion_matrix(examples: PredictedExamples, num_classes: int) -> Int[np.ndarray, "C C+1"]:
    """Counts examples by true and predicted class; the last column is for NaN logits."""
    counts = np.zeros((num_classes, num_classes + 1), np.int64)
    np.add.at(counts, (examples.label[examples.mask], examples.predicted[examples.mask]), 1)
    return counts


def class_accuracies(matrix: Int[np.ndarray, "C C+1"], names: Sequence[str]) -> dict[str, float]:
    """Returns accuracy_class/NAME of each class with examples."""
    pairs = zip(np.diagonal(matrix).tolist(), matrix.sum(axis=1).tolist(), strict=True)
    shares = {name: right / n for name, (right, n) in zip(names, pairs, strict=True) if n}
    return {f"accuracy_class/{name}": share for name, share in shares.items()}


def write_confusion(path: Path, matrix: Int[np.ndarray, "C C+1"], names: Sequence[str]) -> None:
    """Writes a confusion matrix as CSV: a row per true class, a column per prediction."""
    predicted = [*names, NO_CLASS] if matrix[:, -1].any() else names
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["true class", *predicted])
    rows = matrix[:, : len(predicted)].tolist()
    writer.writerows([name, *row] for name, row in zip(names, rows, strict=True))
    write_atomically(path, text.getvalue())


def confusion_file(folder: Path, split: str) -> Path:
    """Returns the file of a split in a report folder."""
    return folder / f"confusion-{split}.csv"


def read_confusion(path: Path) -> tuple[list[str], list[str], Int[np.ndarray, "C P"]]:
    """Returns the names of true and of predicted classes, and the counts of `write_confusion`.

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
