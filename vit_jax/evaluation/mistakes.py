"""The wrong predictions of a split: a table of all of them, and a picture of the worst."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.data.decode import decode
from vit_jax.data.sources import Source
from vit_jax.evaluation.predicted import PredictedExamples
from vit_jax.storage.files import write_atomically, write_through

# Images in the picture, and the side of one in pixels.
_SHOWN, _SIDE = 12, 128


def write_mistakes(
    folder: Path, split: str, source: Source, examples: PredictedExamples, names: Sequence[str]
) -> None:
    """Writes mistakes-SPLIT.csv and mistakes-SPLIT.png, the most certain mistakes first.

    `names` are those of the head's classes. Examples with a NaN logit are left out.
    """
    table, picture = (folder / f"mistakes-{split}.{kind}" for kind in ("csv", "png"))
    is_wrong = examples.mask & ~examples.correct & (examples.predicted < len(names))
    wrong, text, shown = np.flatnonzero(is_wrong), io.StringIO(), []
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "label", "prediction", "probability"])
    for place in wrong[np.argsort(-examples.probability[wrong], kind="stable")].tolist():
        example, probability = source[place], float(examples.probability[place])
        label, predicted = names[int(examples.label[place])], names[int(examples.predicted[place])]
        writer.writerow([example.id, label, predicted, f"{probability:.4f}"])
        if len(shown) < _SHOWN:
            shown.append((decode(example.image), example.id, label, predicted, probability))
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
        title = f"{short}\n{label}, taken for {predicted} ({probability:.0%})"
        axes.set_title(title, fontsize=8, parse_math=False)
    with write_through(path) as picture:
        figure.savefig(picture, dpi=100)
