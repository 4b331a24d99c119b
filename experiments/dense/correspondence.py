"""A measure without training: is the most similar feature in another image at the right place?

Points are the centres of the cells of a feature map, on objects: where the mask is not class 0. The
nearest cell of the other image is the one whose feature has the largest cosine similarity.

| kind | the other image | right is |
| --- | --- | --- |
| shift | moved by 0.15 of its sides down and right | the cell where the point went |
| flip | mirrored left to right | the cell where the point went |
| scale | its middle enlarged by 1.5 | the cell where the point went |
| pair | the next image with an object of the point's class | every cell of this class |

The gap that a shift leaves has the image's mean colour. Points that leave the image do not count.
"""

import numpy as np
from PIL import Image

from experiments.dense.segmentation import IGNORED
from vit_jax.evaluation.intervals import interval, resample_means

_SHIFT, _SCALE = 0.15, 1.5


def _pixels_moved(size: np.ndarray) -> np.ndarray:
    return np.round(_SHIFT * size).astype(int)


def _shift(images: np.ndarray) -> np.ndarray:
    height, width = images.shape[1:3]
    down, right = _pixels_moved(np.array([height, width]))
    moved = np.empty_like(images)
    moved[:] = np.round(images.mean((1, 2), keepdims=True))
    moved[:, down:, right:] = images[:, : height - down, : width - right]
    return moved


def _enlarge(images: np.ndarray) -> np.ndarray:
    height, width = images.shape[1:3]
    top, left = ((1 - 1 / _SCALE) / 2 * side for side in (height, width))
    box, bilinear = (left, top, width - left, height - top), Image.Resampling.BILINEAR
    return np.stack([Image.fromarray(i).resize((width, height), bilinear, box) for i in images])


# Kind -> how images change, and where points (row, column) in [0, 1] go in images of a size.
COPIES = {
    "shift": (_shift, lambda points, size: points + _pixels_moved(size) / size),
    "flip": (lambda images: images[:, :, ::-1], lambda points, _: points * [1, -1] + [0, 1]),
    "scale": (_enlarge, lambda points, _: (points - 0.5) * _SCALE + 0.5),
}


def correspondence(maps_fn, pixels: np.ndarray, masks: np.ndarray) -> list[tuple]:
    """Returns (kind, share of the points whose nearest cell is right, low, high, chance).

    Shares are means over the images that have points, with a 95 % interval. `chance` is the share
    if any cell were chosen. `maps_fn` turns images into feature maps [M, h, w, D].
    """
    before = maps_fn(pixels)
    grid = before.shape[1:3]
    rows, columns = (
        ((2 * np.arange(count) + 1) * side) // (2 * count)
        for count, side in zip(grid, masks.shape[1:], strict=True)
    )
    classes = masks[:, rows[:, None], columns].reshape(len(masks), -1)
    on_object = (classes != 0) & (classes != IGNORED)
    found = []
    for kind, (copy, move) in COPIES.items():
        right = np.stack([_right_cells(move, grid, np.array(pixels.shape[1:3]))] * len(pixels))
        nearest = _nearest(before, maps_fn(copy(pixels)))
        found.append((kind, *_score(nearest, right, on_object)))
    partner = _partners(classes, on_object)
    same = classes[:, :, None] == classes[partner][:, None, :]
    has_partner = (partner != np.arange(len(partner)))[:, None]
    nearest = _nearest(before, before[partner])
    return [*found, ("pair", *_score(nearest, same, on_object & has_partner))]


def _nearest(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Returns i[M, N]: for each cell of the first maps, the most similar cell of the second."""
    flat = [x.reshape(len(x), -1, x.shape[-1]) for x in (before, after)]
    unit = [x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12) for x in flat]
    return np.stack([(a @ b.T).argmax(1) for a, b in zip(*unit, strict=True)])


def _right_cells(move, grid: tuple[int, ...], size: np.ndarray) -> np.ndarray:
    """Returns b[N, N]: for each cell, the cell of the copy in which its centre lies, if any."""
    cells = np.indices(grid).reshape(2, -1).T
    places = move((cells + 0.5) / grid, size)
    return (np.floor(places * grid + 1e-9)[:, None] == cells).all(-1)


def _partners(classes: np.ndarray, on_object: np.ndarray) -> np.ndarray:
    """Returns for each image the next one with an object of one of its classes, else itself."""
    sets = [set(row[kept]) for row, kept in zip(classes, on_object, strict=True)]
    partners = np.arange(len(sets))
    for i in range(len(sets)):
        following = (*range(i + 1, len(sets)), *range(i))
        partners[i] = next((j for j in following if sets[i] & sets[j]), i)
    return partners


def _score(nearest: np.ndarray, right: np.ndarray, counted: np.ndarray) -> tuple[float, ...]:
    """Returns share, low, high and chance, from the nearest and the right cells of each point."""
    counted = counted & right.any(2)
    kept = counted.any(1)
    if not kept.any():
        return (np.nan,) * 4
    weights = counted[kept] / counted[kept].sum(1, keepdims=True)
    is_right = np.take_along_axis(right, nearest[..., None], 2)[..., 0]
    shares = (is_right[kept] * weights).sum(1)
    ends = interval(resample_means(shares, "correspondence"))
    chance = (right.mean(2)[kept] * weights).sum(1).mean()
    return float(shares.mean()), *ends, float(chance)
