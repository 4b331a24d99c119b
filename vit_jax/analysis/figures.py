"""The pictures of the analyses, after Figures 6, 7, 10, 11 and 14 of arXiv:2010.11929."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from PIL import Image

from vit_jax.analysis.distance import AttentionDistance
from vit_jax.analysis.filters import EmbeddingFilters, as_images
from vit_jax.analysis.position import PositionSimilarity
from vit_jax.analysis.receptive_field import ReceptiveField
from vit_jax.analysis.rollout import Rollout

# Layers whose fields are drawn, images a row.
_MOST_MAPS, _IMAGES_A_ROW = 6, 8
_BLUE, _ORANGE, _GRAY = "#0072b2", "#d55e00", "#707070"


def mosaic(
    tiles: Float[np.ndarray, "R C h w *rest"], gap: int, fill: float
) -> Float[np.ndarray, "H W *rest"]:
    """Returns tiles beside each other with `gap` rows and columns of `fill` between them."""
    rows, columns, height, width, *rest = tiles.shape
    down, across = height + gap, width + gap
    held = np.full((rows * down - gap, columns * across - gap, *rest), fill, np.float32)
    for row in range(rows):
        for column in range(columns):
            top, left = row * down, column * across
            held[top : top + height, left : left + width] = tiles[row, column]
    return held


def draw_filters(found: EmbeddingFilters) -> Figure:
    """Draws the principal components as RGB images, in rows of seven."""
    tiles = as_images(found.components)
    count, side = len(tiles), tiles.shape[1]
    columns = min(7, count)
    rows = math.ceil(count / columns)
    white = np.ones((rows * columns, *tiles.shape[1:]), np.float32)
    white[:count] = tiles
    # Every pixel of a filter is drawn as several, so that gaps can be narrower than one.
    fine = max(1, 12 // side)
    white = white.repeat(fine, axis=1).repeat(fine, axis=2)
    gap = max(1, side * fine // 10)
    picture = mosaic(white.reshape(rows, columns, *white.shape[1:]), gap, 1.0)
    figure = Figure(figsize=(4.2, 0.5 + 4.2 * picture.shape[0] / picture.shape[1]))
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    axes.imshow(picture, interpolation="nearest")
    axes.set_axis_off()
    kind = "RGB embedding filters" if found.layer == "patch embedding" else "RGB root filters"
    axes.set_title(f"{kind}\n(first {count} principal components)", fontsize=10)
    return figure


def draw_positions(found: PositionSimilarity) -> Figure:
    """Draws a grid of grids for each table: that at (i, j) is patch (i, j)'s likeness to all."""
    tables = found.similarity
    columns = min(len(tables), 4)
    rows = math.ceil(len(tables) / columns)
    figure = Figure(figsize=(0.8 + 3.4 * columns, 3.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    shown: Any = None
    for number, axes in enumerate(panels):
        if number >= len(tables):
            axes.set_axis_off()
            continue
        height, width = tables.shape[1:3]
        gap = max(1, min(height, width) // 8)
        # NaN is drawn as nothing: the gaps show the background.
        picture = mosaic(tables[number], gap, float("nan"))
        shown = axes.imshow(picture, vmin=-1, vmax=1, cmap="viridis", interpolation="nearest")
        _ticks(axes.set_xticks, width, gap)
        _ticks(axes.set_yticks, height, gap)
        axes.set(xlabel="input patch column", ylabel="input patch row")
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
        if len(tables) > 1:
            axes.set_title(f"layer {number + 1}", fontsize=9)
    bar = figure.colorbar(shown, ax=list(panels), shrink=0.85, ticks=(-1, 0, 1))
    bar.set_label("cosine similarity")
    figure.suptitle(f"Position embedding similarity ({found.kind})", fontsize=10)
    return figure


def _ticks(setter: Any, count: int, gap: int) -> None:
    """Numbers the tiles along an axis from 1, at most about a dozen of them."""
    step = math.ceil(count / 14)
    numbers = np.arange(0, count, step)
    setter(numbers * (count + gap) + (count - 1) / 2, [str(n + 1) for n in numbers])


def draw_distance(found: AttentionDistance, images: str) -> Figure:
    """Draws a dot a head and layer, and what class token and registers get of the attention.

    Args:
        found: of the model.
        images: which and how many they are, for the title.
    """
    mean, share = found.mean, found.prefix_share
    panels = 2 if share.any() else 1
    figure = Figure(figsize=(4.4 * panels, 3.5), layout="constrained")
    all_axes = figure.subplots(1, panels, squeeze=False)[0]
    layers = np.arange(1, len(mean) + 1)
    axes = all_axes[0]
    axes.plot(layers, mean, "o", color=_BLUE, markersize=4.5, alpha=0.65, markeredgewidth=0)
    axes.plot([], [], "o", color=_BLUE, markersize=4.5, label="a head")
    axes.plot(layers, mean.mean(1), color=_ORANGE, linewidth=1.5, label="mean of the heads")
    axes.axhline(
        found.uniform, color=_GRAY, linestyle="--", linewidth=1, label="attention to all alike"
    )
    axes.set(ylabel="mean attention distance (pixels)")
    axes.set_ylim(0, max(mean.max(), found.uniform) * 1.08)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    if panels == 2:
        all_axes[1].plot(
            layers, share, "o", color=_BLUE, markersize=4.5, alpha=0.65, markeredgewidth=0
        )
        all_axes[1].set(ylabel="share on class token and registers")
        all_axes[1].set_ylim(0, max(share.max() * 1.08, 0.02))
    for axes in all_axes:
        _plain(axes)
        axes.set(xlabel="network depth (layer)", xlim=(0.4, len(mean) + 0.6))
        axes.set_xticks(layers[:: math.ceil(len(layers) / 13)])
    height, width = found.image_size
    figure.suptitle(f"Attention distance, {height} x {width} pixels, {images}", fontsize=10)
    return figure


def draw_rollout(found: Rollout, pixels: UInt8[np.ndarray, "M H W 3"]) -> Figure:
    """Draws every image above what attention takes of it.

    In the second row the photo is darkened where the map is small: times the map over its maximum,
    as in Figure 6. The third shows the map itself, from its smallest to its largest value, which
    stand below it in percent of the whole.

    Args:
        found: of these images.
        pixels: the images as the model saw them.
    """
    columns = min(len(pixels), _IMAGES_A_ROW)
    groups = math.ceil(len(pixels) / columns)
    aspect = pixels.shape[1] / pixels.shape[2]
    tile = max(1.25, 2.6 / columns)
    figure = Figure(figsize=(0.5 + tile * columns, groups * (0.35 + 3 * tile * aspect) + 0.5))
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02, wspace=0, hspace=0.02)
    panels = figure.subplots(3 * groups, columns, squeeze=False)
    for axes in panels.ravel():
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for number, (image, share) in enumerate(zip(pixels, found.maps, strict=True)):
        group, column = divmod(number, columns)
        mask = _resized(share / max(float(share.max()), 1e-12), image.shape[:2])
        dimmed = np.clip(image * mask[..., None], 0, 255).astype(np.uint8)
        top, middle, bottom = panels[3 * group : 3 * group + 3, column]
        top.imshow(image, interpolation="bilinear")
        middle.imshow(dimmed, interpolation="bilinear")
        bottom.imshow(share, cmap="magma", interpolation="nearest")
        bottom.set_aspect(aspect * share.shape[1] / share.shape[0])
        low, high = 100 * float(share.min()), 100 * float(share.max())
        bottom.set_xlabel(f"{low:.2g} to {high:.2g} %", fontsize=7, labelpad=2)
    for group in range(groups):
        for row, text in enumerate(("input", "attention", "share")):
            panels[3 * group + row, 0].set_ylabel(text, fontsize=8)
    between = " " if columns > 3 else "\n"
    figure.suptitle(f"Attention rollout:{between}what the {found.view} sees", fontsize=10)
    return figure


def _resized(
    mask: Float[np.ndarray, "R C"], size: tuple[int, int]
) -> Float[np.ndarray, "H W"]:  # fmt: skip
    image = Image.fromarray(np.asarray(mask, np.float32))
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BILINEAR))


def draw_receptive_field(found: ReceptiveField, pixels_across: int, name: str) -> Figure:
    """Draws the sizes of effective fields against depth, and the fields of some layers.

    Args:
        found: of the model.
        pixels_across: the image's longer side.
        name: of the model.
    """
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    grid = figure.add_gridspec(2, 6)
    axes = figure.add_subplot(grid[:, :3])
    own = not any(name.startswith("block") for name in found.layers)
    axes.plot(found.depth, found.side, "o-", color=_BLUE, label=f"{name}, effective (95 %)")
    label = "its convolutions, theoretical" if own else "3x3 CNN of that depth, theoretical"
    top = 1.6 * pixels_across
    # Deep CNNs reach far beyond the image: there the line leaves the panel, without a cut marker.
    inside = np.flatnonzero(found.convolutional_side < 0.97 * top).tolist()
    style = {"color": _ORANGE, "label": label, "mfc": "w", "markevery": inside}
    axes.plot(found.depth, found.convolutional_side, "s--", **style)
    axes.axhline(pixels_across, color=_GRAY, linewidth=1, linestyle=":")
    axes.set_ylim(0, top)
    axes.text(
        0.99, pixels_across / top + 0.025, "image", color=_GRAY, fontsize=8, ha="right",
        transform=axes.transAxes,
    )  # fmt: skip
    units = "bottleneck units" if own else "blocks"
    axes.set(xlabel=f"depth ({units} passed)", ylabel="side of receptive field (pixels)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    _plain(axes)
    chosen = _spread(len(found.layers))
    for place, layer in enumerate(chosen):
        panel = figure.add_subplot(grid[place // 3, 3 + place % 3])
        _draw_field(panel, found, layer)
    return figure


def _draw_field(axes: Axes, found: ReceptiveField, layer: int) -> None:
    mass, (row, column) = found.maps[layer], found.centres[layer]
    axes.imshow(np.sqrt(mass / max(float(mass.max()), 1e-30)), cmap="magma", vmin=0, vmax=1)
    for side, color, style in (
        (found.side[layer], "w", "-"),
        (found.convolutional_side[layer], _ORANGE, "--"),
    ):
        if side >= max(mass.shape):
            continue
        corner = (column - side / 2, row - side / 2)
        axes.add_patch(
            Rectangle(corner, side, side, fill=False, color=color, linestyle=style, linewidth=1)
        )
    axes.set(xticks=[], yticks=[])
    axes.set_title(f"{found.layers[layer]}: {found.side[layer]:.0f} px", fontsize=8, pad=3)


def _spread(count: int) -> Sequence[int]:
    """Returns the places of at most `_MOST_MAPS` of `count` layers, first and last among them."""
    return sorted({int(i) for i in np.linspace(0, count - 1, min(count, _MOST_MAPS)).round()})


def _plain(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
