"""Pictures of what heads have learned of a convolution."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.report.style import COLOURS, INK, MUTED, plot_style, new_figure, save
from vit_jax.synthetic.experiment import OffsetWeights

_MARK = COLOURS[1][0]


def write_offset_weights(found: OffsetWeights, folder: Path, title: str) -> None:
    """Writes attention.png, attention.svg and attention.csv.

    Args:
        found: attention of each head to each offset, and the convolution.
        folder: made when missing.
        title: of the picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with plot_style():
        draw = _draw_ring if found.task.grid[0] == 1 else _draw_torus
        save(draw(found, title), folder / "attention")
    offsets = _centred(found.task.grid)
    taps = set(found.task.taps.tolist())
    with (folder / "attention.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["head", "rows", "columns", "in_kernel", "attention"])
        for head, weights in enumerate(found.weights):
            for place, (rows, columns) in enumerate(offsets):
                writer.writerow([head, rows, columns, place in taps, f"{weights[place]:.6g}"])


def _draw_ring(found: OffsetWeights, title: str) -> Any:
    """Draws a row for each head, and the kernel's taps above them."""
    columns = _centred(found.task.grid)[:, 1]
    order = np.argsort(columns)
    weights = found.weights[_by_peak(found, columns)][:, order]
    heads, places = weights.shape
    figure, axes = new_figure(1, 1, width=min(3 + 0.13 * places, 10), height=1.6 + 0.28 * heads)
    panel = axes[0][0]
    edges = (columns.min() - 0.5, columns.max() + 0.5)
    image = panel.imshow(
        weights, cmap="Blues", vmin=0, vmax=1, aspect="auto", extent=(*edges, heads - 0.5, -0.5)
    )
    taps = found.task.offsets[:, 1]
    panel.plot(
        taps, np.full(len(taps), -0.5 - 0.06 * heads), "v", color=_MARK, clip_on=False, markersize=7
    )
    panel.set(
        xlabel="offset, tokens (triangles: taps of the kernel)", ylabel="head",
        yticks=range(heads), ylim=(heads - 0.5, -0.5),
    )  # fmt: skip
    panel.set_title(title, pad=20)
    panel.grid(visible=False)
    figure.colorbar(image, ax=panel, label="attention", shrink=0.9)
    return figure


def _draw_torus(found: OffsetWeights, title: str) -> Any:
    """Draws a map of offsets for each head, the kernel's taps outlined."""
    offsets = _centred(found.task.grid)
    order = np.lexsort((offsets[:, 1], offsets[:, 0]))
    height, width = found.task.grid
    top, left = offsets.min(0)
    shown = found.weights[_by_peak(found, offsets @ [1000, 1])][:, order]
    columns = min(len(shown), 5)
    rows = -(-len(shown) // columns)
    figure, axes = new_figure(rows, columns, width=1.9, height=1.9)
    extent = (left - 0.5, left + width - 0.5, top + height - 0.5, top - 0.5)
    image: Any = None
    for i, panel in enumerate(axes.flat):
        if i >= len(shown):
            panel.remove()
            continue
        image = panel.imshow(
            shown[i].reshape(height, width), cmap="Blues", vmin=0, vmax=1, extent=extent
        )
        for y, x in found.task.offsets:
            panel.plot(x, y, "s", markerfacecolor="none", markeredgecolor=_MARK, markersize=9)
        panel.set_title(f"head {i}", color=INK)
        panel.tick_params(labelcolor=MUTED, labelsize=7.5)
        panel.grid(visible=False)
    figure.suptitle(f"{title} (squares: taps of the kernel)", x=0.01, ha="left", fontweight="bold")
    figure.colorbar(image, ax=list(axes.flat)[: len(shown)], label="attention", shrink=0.8)
    return figure


def _centred(grid: tuple[int, int]) -> np.ndarray:
    """Returns the rows and columns of every offset in a table, at most half way round the torus."""
    offsets = np.indices(grid).reshape(2, -1).T
    half = (np.array(grid) - 1) // 2
    return (offsets + half) % np.array(grid) - half


def _by_peak(found: OffsetWeights, position: np.ndarray) -> np.ndarray:
    """Returns the heads in the order of the offset that each attends to most."""
    return np.argsort(position[found.weights.argmax(1)], kind="stable")
