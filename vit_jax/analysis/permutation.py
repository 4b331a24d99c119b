"""Predictions on images whose patches are permuted: how much a classifier relies on their order."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Num, UInt8
from matplotlib.figure import Figure
from rich.table import Table

from vit_jax.analysis.batches import map_batches
from vit_jax.analysis.output import BLUE, GRAY, Output, Row, digits, style_axes
from vit_jax.errors import DataError, ModelError
from vit_jax.evaluation.intervals import bootstrap_interval, wilson_interval
from vit_jax.models.family import ImageModel
from vit_jax.rng import stream
from vit_jax.tables import plain_table

# Patches along each side of the image for models without tokens.
_PATCHES_PER_SIDE = 8


@dataclasses.dataclass(frozen=True)
class Permutation:
    """Predicted classes with and without permuted patches.

    Attributes:
        grids: rows and columns of the permuted patches, smallest patches first.
        predicted: i32[M], class of each image.
        permuted: i32[G, M], class of each image with its patches permuted, for each of the grids.
        labels: i32[M], true classes; None: not known.
        num_classes: C.
        image_size: (height, width) in pixels.
        seed: seed of the permutations.
    """

    grids: tuple[tuple[int, int], ...]
    predicted: Int[np.ndarray, " M"]
    permuted: Int[np.ndarray, "G M"]
    labels: Int[np.ndarray, " M"] | None
    num_classes: int
    image_size: tuple[int, int]
    seed: int

    @property
    def patch_sizes(self) -> list[tuple[int, int]]:
        """Height and width in pixels of the patches of each grid."""
        height, width = self.image_size
        return [(height // rows, width // columns) for rows, columns in self.grids]

    @property
    def accuracy(self) -> Float[np.ndarray, " G1"] | None:
        """Top-1 accuracy: first of the images as they are, then of each grid; None: no labels."""
        if self.labels is None:
            return None
        return (np.vstack([self.predicted, self.permuted]) == self.labels).mean(1)

    @property
    def change(self) -> Float[np.ndarray, "3 G"] | None:
        """Accuracy of each grid minus that of the images as they are, and its 95 % interval.

        Rows are the mean, the lower and the upper end. The interval is paired: it resamples images,
        each with its two predictions. None: no labels.
        """
        if self.labels is None:
            return None
        right = (np.vstack([self.predicted, self.permuted]) == self.labels).astype(np.float32)
        differences = (right[1:] - right[0]).T
        return np.stack([differences.mean(0), *bootstrap_interval(differences)])

    @property
    def unchanged(self) -> Float[np.ndarray, " G"]:
        """Fraction of the images whose predicted class is the same with permuted patches."""
        return (self.permuted == self.predicted).mean(1)


def permute_patches(
    images: Num[np.ndarray, "M H W C"], grid: tuple[int, int], orders: Int[np.ndarray, "M P"]
) -> Num[np.ndarray, "M H W C"]:
    """Returns images with their patches in another order.

    Args:
        images: any images.
        grid: rows and columns of patches, which divide H and W; P = rows x columns.
        orders: element [m, k] is the patch of image m that is put at place k. Patches and places
            are numbered in raster order.

    >>> permute_patches(np.arange(4).reshape(1, 1, 4, 1), (1, 2), np.array([[1, 0]])).ravel()
    array([2, 3, 0, 1])
    """
    count, height, width, channels = images.shape
    rows, columns = grid
    split = (count, rows, height // rows, columns, width // columns, channels)
    patches = images.reshape(split).transpose(0, 1, 3, 2, 4, 5)
    flat = patches.reshape(count, rows * columns, *patches.shape[3:])
    moved = flat[np.arange(count)[:, None], orders].reshape(patches.shape)
    return moved.transpose(0, 1, 3, 2, 4, 5).reshape(images.shape)


def random_orders(seed: int, count: int, grid: tuple[int, int]) -> Int[np.ndarray, "M P"]:
    """Returns a random permutation of the patches for each image.

    The permutation of an image depends only on the seed, its index and the number of patches.

    Args:
        seed: any integer.
        count: M, number of images.
        grid: rows and columns of patches.
    """
    key = stream(seed, "permutation")

    def draw(index: jax.Array) -> jax.Array:
        return jax.random.permutation(jax.random.fold_in(key, index), math.prod(grid))

    return np.asarray(jax.jit(jax.vmap(draw))(jnp.arange(count)))


def permutation_grids(model: ImageModel) -> tuple[tuple[int, int], ...]:
    """Returns the rows and columns of the patches to permute, smallest patches first.

    The smallest patches are the model's tokens. For models without tokens, such as a ResNet, they
    have an eighth of the image's side. The larger ones have twice that side. If it does not divide
    the image's side, the next larger size that does is used. An image of one patch is left out.
    """
    if model.tokens is None:
        first = tuple(_divisor(side, _PATCHES_PER_SIDE) for side in model.image_size)
    else:
        first = model.grid
    sides = zip(model.image_size, first, strict=True)
    second = tuple(_divisor(side, max(1, count // 2)) for side, count in sides)
    grids = ((first[0], first[1]), (second[0], second[1]))
    return tuple(grid for grid in dict.fromkeys(grids) if math.prod(grid) > 1)


def _divisor(side: int, at_most: int) -> int:
    """Returns the largest divisor of a side that is not above a number."""
    return max(n for n in range(1, at_most + 1) if side % n == 0)


def _classifier(model: ImageModel) -> Any:
    """Returns the linear layer of the head; None: the model returns features."""
    return getattr(getattr(model, "head", None), "linear", None)


def num_classes(model: ImageModel) -> int:
    """Returns the number of classes of a model; 0: it returns features."""
    linear = _classifier(model)
    return 0 if linear is None else int(linear.kernel.shape[-1])


def check_permutation(model: ImageModel) -> None:
    """Raises ModelError unless the model is a trained classifier of more than one patch.

    Args:
        model: any model. A head of zeros, as in a new model, predicts one class for all images.
    """
    linear = _classifier(model)
    if linear is None or not np.any(np.asarray(linear.kernel[...])):
        what = "without a head" if linear is None else "whose head is zero, as before training"
        raise ModelError(
            f"permutation of a model {what}", "a trained classifier", "leave permutation out"
        )
    if not permutation_grids(model):
        raise ModelError(
            "permutation of a model with a single patch",
            "an image of several patches",
            "leave permutation out, or set --image_size",
        )


def patch_permutation(
    model: ImageModel,
    images: Float[np.ndarray, "M H W 3"],
    *,
    labels: Int[np.ndarray, " N"] | None = None,
    batch_size: int = 16,
    seed: int = 0,
) -> Permutation:
    """Returns the predictions of a classifier for images with and without permuted patches.

    The patches of each image are put in a random order, another one for each image, see
    `permutation_grids` for their sizes. The content of a patch is not changed.

    Args:
        model: a trained classifier.
        images: in [-1, 1], of the model's size.
        labels: true classes, 0 to C - 1; None: not known.
        batch_size: number of images at a time.
        seed: seed of the permutations.

    Raises:
        ModelError: the model is not a trained classifier of several patches, or the images have
            another size.
        DataError: there are no images, or labels that are not classes of the model.

    Source: after arXiv:2105.10497, which shuffles patches of several sizes.
    """
    check_permutation(model)
    classes = num_classes(model)
    _check_labels(labels, len(images), classes)

    def predict(model: Any, images: jax.Array, indices: jax.Array) -> jax.Array:
        del indices
        return jnp.argmax(model(images), axis=-1).astype(jnp.int32)

    grids = permutation_grids(model)
    orders = [random_orders(seed, len(images), grid) for grid in grids]
    views = [images, *(permute_patches(images, *pair) for pair in zip(grids, orders, strict=True))]
    found = map_batches(predict, model, np.concatenate(views), batch_size)
    predicted, *permuted = found.reshape(len(views), -1)
    size = (images.shape[1], images.shape[2])
    return Permutation(grids, predicted, np.stack(permuted), labels, classes, size, seed)


def _check_labels(labels: Int[np.ndarray, " N"] | None, count: int, classes: int) -> None:
    if labels is None:
        return
    if len(labels) != count:
        raise DataError(f"{len(labels)} labels of {count} images", "one each", "pass all labels")
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise DataError(
            f"label {wrong[0]} for a model of {classes} classes",
            f"0 to {classes - 1}",
            "use the dataset that the model was trained on, or leave the labels out",
        )


def permutation_output(found: Permutation, pixels: UInt8[np.ndarray, "M H W 3"]) -> Output:
    """Returns the picture, table and summary of `patch_permutation` of these images."""
    rows, count = _rows(found), len(found.predicted)
    arrays = {
        "grids": found.grids,
        "patch_sizes": found.patch_sizes,
        "predicted": found.predicted,
        "permuted": found.permuted,
    }
    if found.labels is None:
        summary = f"share of {count} images whose predicted class stays the same"
    else:
        arrays["labels"] = found.labels
        summary = f"top-1 accuracy of {count} images, chance {1 / found.num_classes:.1%}"
    summary += "; patches in a random order in each image; 95 % intervals"
    return Output(draw_permutation(found, pixels), arrays, rows, summary, _table(found))


def _rows(found: Permutation) -> list[Row]:
    """Returns a row for the images as they are, and one for each grid.

    Shares have Wilson intervals, differences of two accuracies paired ones.
    """
    count = len(found.predicted)
    views = [("", "", ""), *((*size, math.prod(grid)) for size, grid in _views(found))]
    unchanged = [1.0, *found.unchanged]
    change = found.change
    changes = [(0.0, 0.0, 0.0), *(() if change is None else change.T)]
    rows = []
    for number, (height, width, patches) in enumerate(views):
        row: Row = {
            "patch_height_px": height,
            "patch_width_px": width,
            "patches": patches,
            "images": count,
        }
        if found.accuracy is not None:
            row |= _with_interval("accuracy", found.accuracy[number], count)
            row["chance"] = digits(1 / found.num_classes)
            mean, low, high = changes[number]
            row |= {"change": digits(mean), "change_low": digits(low), "change_high": digits(high)}
        rows.append(row | _with_interval("unchanged", unchanged[number], count))
    return rows


def _views(found: Permutation) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Returns patch size and grid of each permutation."""
    return list(zip(found.patch_sizes, found.grids, strict=True))


def _with_interval(name: str, share: float, count: int) -> Row:
    low, high = wilson_interval(share, count)
    return {name: digits(share), f"{name}_low": digits(low), f"{name}_high": digits(high)}


def _labels_of(found: Permutation, line_break: str) -> list[str]:
    """Returns a description of each view of the images.

    Args:
        found: the predictions.
        line_break: between the number of patches and their size.
    """
    return [
        "as they are",
        *(
            f"{math.prod(grid)}{line_break}of {height} x {width} px"
            for (height, width), grid in _views(found)
        ),
    ]


def _table(found: Permutation) -> Table:
    shown = ("accuracy", "change") if found.accuracy is not None else ()
    shown = (*shown, "unchanged")
    titles = {"accuracy": "accuracy, %", "change": "change", "unchanged": "same class, %"}
    table = plain_table("patches", right=tuple(titles[name] for name in shown))
    for label, row in zip(_labels_of(found, " "), _rows(found), strict=True):
        cells = []
        for name in shown:
            share, low, high = (100 * float(row[f"{name}{end}"]) for end in ("", "_low", "_high"))
            sign = "+" if name == "change" else ""
            # The images as they are do not differ from themselves.
            is_known = name != "accuracy" and not row["patches"]
            cell = f"{share:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"
            cells.append("" if is_known else cell)
        table.add_row(label, *cells)
    return table


def draw_permutation(found: Permutation, pixels: UInt8[np.ndarray, "M H W 3"]) -> Figure:
    """Draws the shares with their intervals, and the first image with each size of patches.

    Args:
        found: permutation of these images.
        pixels: the images after preprocessing.
    """
    is_labelled = found.accuracy is not None
    name = "accuracy" if is_labelled else "unchanged"
    rows, labels = _rows(found), _labels_of(found, " patches\n")
    if not is_labelled:  # The images as they are have the same class by definition.
        rows, labels = rows[1:], labels[1:]
    share, low, high = (
        np.asarray([100 * float(row[f"{name}{end}"]) for row in rows])
        for end in ("", "_low", "_high")
    )
    count = len(found.predicted)
    orders = [random_orders(found.seed, count, grid)[:1] for grid in found.grids]
    views = [pixels[:1]]
    for grid, order in zip(found.grids, orders, strict=True):
        views.append(permute_patches(pixels[:1], grid, order))

    figure = Figure(figsize=(4.2 + 1.9 * len(views), 3.2), layout="constrained")
    ratios = [2.4, *[1] * len(views)]
    axes, *panels = figure.subplots(1, 1 + len(views), width_ratios=ratios)
    places = np.arange(len(rows))
    # A rounded share may lie outside its interval by the rounding error.
    ends = np.maximum([share - low, high - share], 0)
    axes.bar(places, share, width=0.55, color=BLUE, alpha=0.8)
    axes.errorbar(places, share, ends, fmt="none", ecolor="k", capsize=4, linewidth=1)
    if is_labelled:
        chance = 100 / found.num_classes
        axes.axhline(chance, color=GRAY, linestyle="--", linewidth=1, label="chance")
        axes.legend(frameon=False, fontsize=8)
    axes.set_xticks(places, labels, fontsize=8)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_ylim(0, 105)
    axes.set_ylabel("top-1 accuracy (%)" if is_labelled else "images with the same class (%)")
    style_axes(axes)
    for panel, view, label in zip(panels, views, _labels_of(found, " patches\n"), strict=True):
        panel.imshow(view[0], interpolation="nearest")
        panel.set(xticks=[], yticks=[])
        panel.set_title(label, fontsize=8)
    figure.suptitle(f"Patches in a random order, {count} images, 95 % intervals", fontsize=10)
    return figure
