"""The wrong predictions of a split: a table of all of them, and a picture of the worst."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from vit_jax.data.decode import decode
from vit_jax.data.sources import Source
from vit_jax.evaluation.metrics import Predictions
from vit_jax.storage.files import write_atomically, write_through

# Images in the picture, and the side of one in pixels.
_SHOWN, _SIDE = 12, 128


def certainties(predictions: Predictions) -> dict[str, Array]:
    """Returns the predicted class of each example, and its probability, for `Mistakes`."""
    probabilities = jax.nn.softmax(predictions.logits, axis=1)
    return {"predicted": predictions.classes, "probability": probabilities.max(axis=1)}


class Mistakes:
    """Collects the wrong predictions of a split. `names` are those of the head's classes."""

    def __init__(self, names: Sequence[str]):
        self._names = names
        self._seen = 0
        self._wrong: list[tuple[float, int, int, int]] = []  # probability, place, label, prediction

    def add(self, outputs: Mapping[str, Any]) -> None:
        """Adds a batch, whose rows are in the order of the split.

        It has `example_outputs` and `certainties`.
        """
        wrong = np.flatnonzero(outputs["mask"] & ~outputs["correct"])
        self._wrong += [
            (
                float(outputs["probability"][row]),
                self._seen + int(row),
                int(outputs["label"][row]),
                int(outputs["predicted"][row]),
            )
            for row in wrong
            if outputs["predicted"][row] < len(self._names)  # Not of a NaN logit.
        ]
        self._seen += len(outputs["mask"])

    def write(self, folder: Path, split: str, source: Source) -> None:
        """Writes mistakes-SPLIT.csv and mistakes-SPLIT.png, the most certain mistakes first."""
        table, picture = (folder / f"mistakes-{split}.{kind}" for kind in ("csv", "png"))
        wrong = sorted(self._wrong, key=lambda row: (-row[0], row[1]))
        text, shown = io.StringIO(), []
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["image", "label", "prediction", "probability"])
        for probability, place, label, predicted in wrong:
            example = source[place]
            names = self._names[label], self._names[predicted]
            writer.writerow([example.id, *names, f"{probability:.4f}"])
            if len(shown) < _SHOWN:
                shown.append((decode(example.image), example.id, *names, probability))
        write_atomically(table, text.getvalue())
        if shown:
            _draw(shown, picture)
        else:
            picture.unlink(missing_ok=True)


def _draw(shown: Sequence[tuple[Any, str, str, str, float]], path: Path) -> None:
    """Draws images with their labels and predictions in rows of four."""
    from matplotlib.figure import Figure

    rows = -(-len(shown) // 4)
    figure = Figure(figsize=(10, 3 * rows), layout="constrained")
    for i, (image, name, label, predicted, probability) in enumerate(shown):
        axes = figure.add_subplot(rows, 4, i + 1)
        image.thumbnail((_SIDE, _SIDE))
        axes.imshow(image)
        axes.set_axis_off()
        short = name if len(name) <= 28 else f"...{name[-25:]}"
        axes.set_title(f"{short}\n{label}, taken for {predicted} ({probability:.0%})", fontsize=8)
    with write_through(path) as picture:
        figure.savefig(picture, dpi=100)
