"""A probe without training: is the nearest feature in another image at the right place?

Points are the centres of the cells of a feature map, on objects: where the mask is not class 0. The
nearest cell of the other image is the one whose feature has the largest cosine similarity.

| kind | the other image | right is |
| --- | --- | --- |
| shift | moved by 0.15 of its sides down and right | the cell where the point went |
| flip | mirrored left to right | the cell where the point went |
| scale | its middle enlarged by 1.5 | the cell where the point went |
| pair | the next image with an object of the point's class | every cell of this class |

The gap that a shift leaves has the image's mean colour. Points that leave the image do not count.
For copies, PCK also accepts cells whose centre is at most a tenth of the larger side away from the
right place (Yang and Ramanan, 2013, doi:10.1109/TPAMI.2012.261). `chance` is the score of choosing
any cell.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image

from vit_jax.data.masked_images import cell_classes
from vit_jax.errors import DataError
from vit_jax.evaluation.intervals import bootstrap_interval

PCK = 0.1
_SHIFT, _SCALE = 0.15, 1.5

# (rows and columns of points in [0, 1], height and width of the image) -> their places in the copy;
# outside [0, 1): not visible.
Move = Callable[[np.ndarray, np.ndarray], np.ndarray]
# Images -> feature maps of one layer.
MapsFn = Callable[[UInt8[np.ndarray, "M H W 3"]], Float[np.ndarray, "M h w D"]]


@dataclasses.dataclass(frozen=True)
class Correspondence:
    """The score of one kind of correspondence.

    Attributes:
        accuracy: share of the points whose nearest feature is right, mean over images.
        interval: its 95 % interval, a bootstrap over images.
        chance: the same for any cell.
        pck: the same within the threshold; None: the kind has no place.
        images: number of images with points.
    """

    accuracy: float
    interval: tuple[float, float]
    chance: float
    pck: float | None
    images: int


def _shift(images: np.ndarray) -> np.ndarray:
    height, width = images.shape[1:3]
    down, right = _pixels_moved(np.asarray((height, width)))
    means = np.round(images.mean((1, 2), keepdims=True)).astype(np.uint8)
    moved = np.broadcast_to(means, images.shape).copy()
    moved[:, down:, right:] = images[:, : height - down, : width - right]
    return moved


def _pixels_moved(size: np.ndarray) -> np.ndarray:
    """Returns the whole pixels of a shift: rarely a whole number of cells."""
    return np.round(_SHIFT * size).astype(int)


def _enlarge(images: np.ndarray) -> np.ndarray:
    height, width = images.shape[1:3]
    top, left = ((1 - 1 / _SCALE) / 2 * side for side in (height, width))
    box = (left, top, width - left, height - top)
    resized = [
        Image.fromarray(i).resize((width, height), Image.Resampling.BILINEAR, box) for i in images
    ]
    return np.stack([np.asarray(image) for image in resized])


COPIES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Move]] = {
    "shift": (_shift, lambda p, size: p + _pixels_moved(size) / size),
    "flip": (
        lambda images: np.ascontiguousarray(images[:, :, ::-1]),
        lambda p, size: np.stack([p[..., 0], 1 - p[..., 1]], -1),
    ),
    "scale": (_enlarge, lambda p, size: (p - 0.5) * _SCALE + 0.5),
}
KINDS = (*COPIES, "pair")


def correspondences(
    maps_fn: MapsFn,
    pixels: UInt8[np.ndarray, "M H W 3"],
    masks: UInt8[np.ndarray, "M H W"],
    *,
    ignore: int = 255,
) -> dict[str, Correspondence]:
    """Returns kind -> score.

    Args:
        maps_fn: images -> feature maps of one layer.
        pixels: images.
        masks: their masks; points of class 0 and of `ignore` are left out.
        ignore: value of pixels whose class is not known.

    Raises:
        DataError: no mask has an object.
    """
    before = maps_fn(pixels)
    grid = (before.shape[1], before.shape[2])
    classes = cell_classes(masks, grid).reshape(len(masks), -1)
    on_object = (classes != 0) & (classes != ignore)
    if not on_object.any():
        raise DataError(
            "masks without objects at the centre of a cell",
            "classes other than 0, the background",
            "use other masks, or a model with smaller patches",
        )
    found = {}
    for kind, (copy, move) in COPIES.items():
        right, near = _places(move, grid, pixels.shape[1:3])
        visible = on_object & right.any(1)
        found[kind] = _score(
            _nearest(before, maps_fn(copy(pixels))),
            np.broadcast_to(right, (len(pixels), *right.shape)),
            np.broadcast_to(near, (len(pixels), *near.shape)),
            visible,
        )
    partner = _partners(classes, on_object)
    same = classes[:, :, None] == classes[partner][:, None, :]
    nearest = _nearest(before, before[partner])
    counted = on_object & same.any(2) & (partner != np.arange(len(partner)))[:, None]
    found["pair"] = _score(nearest, same, None, counted)
    return found


def _nearest(
    before: Float[np.ndarray, "M h w D"], after: Float[np.ndarray, "M h w D"]
) -> np.ndarray:
    """Returns i[M, N]: for each cell of the first maps the most similar cell of the second."""
    flat = [x.reshape(len(x), -1, x.shape[-1]) for x in (before, after)]
    unit = [x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12) for x in flat]
    return np.stack([(a @ b.T).argmax(1) for a, b in zip(*unit, strict=True)])


def _places(
    move: Move, grid: tuple[int, int], size: tuple[int, ...]
) -> tuple[Bool[np.ndarray, "N N"], Bool[np.ndarray, "N N"]]:
    """Returns for each cell which cells of the copy are right, and which are near enough.

    A cell is right if the point's place in the copy lies in it.
    """
    counts = np.asarray(grid)
    cells = np.stack(np.meshgrid(*(np.arange(c) for c in grid), indexing="ij"), -1).reshape(-1, 2)
    centres = (cells + 0.5) / counts
    height_width = np.asarray(size)
    places = move(centres, height_width)
    visible = np.all((places >= 0) & (places < 1), axis=1)
    inside = np.floor(places * counts + 1e-9).astype(int)
    right = np.all(inside[:, None] == cells[None], axis=-1) & visible[:, None]
    distance = np.linalg.norm((places[:, None] - centres[None]) * height_width, axis=-1)
    near = (distance <= PCK * height_width.max() + 1e-9) & visible[:, None]
    return right, near | right


def _partners(classes: np.ndarray, on_object: Bool[np.ndarray, "M N"]) -> np.ndarray:
    """Returns for each image the next one with an object of one of its classes, else itself."""
    sets = [set(row[kept]) for row, kept in zip(classes, on_object, strict=True)]
    count = len(sets)
    partners = np.arange(count)
    for i, own in enumerate(sets):
        following = ((i + step) % count for step in range(1, count))
        partners[i] = next((j for j in following if own & sets[j]), i)
    return partners


def _score(
    nearest: np.ndarray,
    right: Bool[np.ndarray, "M N N"],
    near: Bool[np.ndarray, "M N N"] | None,
    counted: Bool[np.ndarray, "M N"],
) -> Correspondence:
    """Returns the score of the nearest cells.

    Args:
        nearest: i[M, N].
        right: which cells are right for each point.
        near: which cells PCK accepts; None: the kind has no place.
        counted: which points count.
    """
    kept = np.flatnonzero(counted.any(1))

    def per_image(values: np.ndarray) -> Float[np.ndarray, " K"]:
        weights = counted[kept]
        return (values[kept] * weights).sum(1) / weights.sum(1)

    def chosen(accepted: np.ndarray) -> np.ndarray:
        return np.take_along_axis(accepted, nearest[..., None], 2)[..., 0]

    if not len(kept):
        nan = float("nan")
        return Correspondence(nan, (nan, nan), nan, None, 0)
    shares = per_image(chosen(right))
    low, high = (float(end[0]) for end in bootstrap_interval(shares[:, None], "correspondence"))
    return Correspondence(
        float(shares.mean()),
        (low, high),
        float(per_image(right.mean(2)).mean()),
        None if near is None else float(per_image(chosen(near)).mean()),
        len(kept),
    )
