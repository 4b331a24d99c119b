"""The picture of masked patch prediction: what was there, what was shown, what was predicted."""

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.figure import Figure

from vit_jax.analysis.masked_patches import MaskedPrediction
from vit_jax.data.colours import colours_of_classes

_MASKED = 128
_ROWS = ("input", "shown", "predicted", "true colours")


def draw_masked(found: MaskedPrediction, pixels: UInt8[np.ndarray, "M H W 3"]) -> Figure:
    """Draws of every image the input, the corrupted one, and predicted and true mean colours.

    Hidden patches are gray with a dot, moved ones show the patch whose embedding they got, and in
    the rows of colours the patches that are not asked for stay as they are.

    Args:
        found: of these images.
        pixels: the images as the model saw them.
    """
    count = len(pixels)
    rows = (pixels, shown(found, pixels), *(
        coloured(found, pixels, classes) for classes in (found.predicted, found.colour)
    ))  # fmt: skip
    figure = Figure(figsize=(0.6 + 1.25 * count, 5.5), layout="constrained")
    panels = figure.subplots(len(rows), count, squeeze=False)
    high, wide = (size // cells for size, cells in zip(pixels.shape[1:3], found.colour.shape[1:],
                                                       strict=True))  # fmt: skip
    for number, (images, name) in enumerate(zip(rows, _ROWS, strict=True)):
        for column, image in enumerate(images):
            axes = panels[number, column]
            axes.imshow(image.astype(np.uint8), interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            if name == "shown":
                y, x = np.nonzero(found.hidden[column])
                axes.plot((x + 0.5) * wide - 0.5, (y + 0.5) * high - 0.5, "w.", markersize=2)
        panels[number, 0].set_ylabel(name, fontsize=8)
    figure.suptitle(
        f"Masked patch prediction: {found.accuracy:.0%} of the colours exact", fontsize=10
    )
    return figure


def shown(
    found: MaskedPrediction, pixels: UInt8[np.ndarray, "M H W 3"]
) -> UInt8[np.ndarray, "M H W 3"]:
    """Returns the images with their patches hidden and moved as the model had them."""
    tiles = _tiles(pixels, found)
    moved = np.take_along_axis(
        tiles, found.source.reshape(len(tiles), -1)[..., None, None, None], 1
    )
    hidden = found.hidden.reshape(len(tiles), -1)[..., None, None, None]
    return _joined(np.where(hidden, np.uint8(_MASKED), moved), found)


def coloured(
    found: MaskedPrediction, pixels: UInt8[np.ndarray, "M H W 3"], classes: np.ndarray
) -> UInt8[np.ndarray, "M H W 3"]:
    """Returns the images with the corrupted patches in the colours of classes."""
    tiles = _tiles(pixels, found)
    colours: Float[np.ndarray, "M N 3"] = colours_of_classes(
        classes.reshape(len(tiles), -1), found.bits
    )
    asked = found.corrupted.reshape(len(tiles), -1)[..., None, None, None]
    return _joined(
        np.where(asked, colours[:, :, None, None].astype(np.uint8), tiles), found
    )  # fmt: skip


def _tiles(pixels: np.ndarray, found: MaskedPrediction) -> np.ndarray:
    count, height, width, _ = pixels.shape
    rows, columns = found.colour.shape[1:]
    cut = pixels.reshape(count, rows, height // rows, columns, width // columns, 3)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(
        count, rows * columns, height // rows, width // columns, 3
    )


def _joined(tiles: np.ndarray, found: MaskedPrediction) -> np.ndarray:
    count, _, height, width, _ = tiles.shape
    rows, columns = found.colour.shape[1:]
    grid = tiles.reshape(count, rows, columns, height, width, 3).transpose(0, 1, 3, 2, 4, 5)
    return grid.reshape(count, rows * height, columns * width, 3)
