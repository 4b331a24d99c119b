"""Pictures of confusion matrices."""

from pathlib import Path

import numpy as np

from vit_jax.evaluation.by_class import read_confusion
from vit_jax.storage.files import write_through

# With more classes than this, cells show no counts and axes show no class names.
_MAX_COUNTS, _MAX_NAMES = 20, 60


def draw_confusions(workdir: Path) -> list[Path]:
    """Draws each report/confusion-SPLIT.csv without an up-to-date picture; returns the new ones."""
    drawn = []
    for table in sorted((workdir / "report").glob("confusion-*.csv")):
        picture = table.with_suffix(".png")
        if not picture.exists() or picture.stat().st_mtime < table.stat().st_mtime:
            drawn.append(draw_confusion(table))
    return drawn


def draw_confusion(table: Path) -> Path:
    """Draws a confusion matrix into a PNG with the name of its CSV file.

    A cell shows its number of examples; its shade is their share of the true class.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    true, predicted, counts = read_confusion(table)
    examples = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(examples, 1)

    side = min(max(0.5 * len(true), 4.5), 14)
    figure, axes = plt.subplots(figsize=(side + 1.5, side), layout="constrained")
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the true class")
    if len(true) <= _MAX_NAMES:
        axes.set_xticks(range(len(predicted)), predicted, rotation=90, parse_math=False)
        labels = [f"{t} ({n})" for t, n in zip(true, examples[:, 0], strict=True)]
        axes.set_yticks(range(len(true)), labels, parse_math=False)
    if len(true) <= _MAX_COUNTS:
        for row, column in np.argwhere(counts):
            shade = "white" if shares[row, column] > 0.6 else "black"
            axes.text(
                column,
                row,
                str(counts[row, column]),
                ha="center",
                va="center",
                color=shade,
                fontsize=8,
            )
    axes.set(xlabel="predicted class", ylabel="true class (examples)")
    right = np.trace(counts[:, : len(true)]) / max(counts.sum(), 1)
    mean = np.diagonal(shares)[examples[:, 0] > 0].mean() if counts.any() else 0.0
    split = table.stem.removeprefix("confusion-")
    title = f"{split}: {right:.1%} of examples correct,\n{mean:.1%} on average over classes"
    axes.set_title(title, parse_math=False)
    path = table.with_suffix(".png")
    with write_through(path) as picture:
        figure.savefig(picture, dpi=120)
    plt.close(figure)
    return path
