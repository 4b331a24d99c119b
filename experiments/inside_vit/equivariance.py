"""Translation equivariance of each layer: how closely its feature map follows a shifted image.

    python -m experiments.inside_vit.equivariance runs/quickstart [--output=FOLDER]

For an image x, a shift of s pixels and a layer with the feature map f(x), the error is
|| f(T_s x) - T'_s f(x) || / || f(x) ||, with the norm over all cells and channels. T_s moves the
image by s pixels. T'_s moves the map by s divided by the pixels per cell, and interpolates linearly
between whole cells. The error is the mean of a shift down and one to the right. It is 0 for an
exactly equivariant layer, and about sqrt(2) if the maps have zero mean, equal norms and nothing in
common. The shifts are 1 pixel and the cell size of every layer. Intervals are 95 %, over images.

Class token and pooled features ("pre_logits") have no position: T'_s is the identity, the error one
of invariance. Shifts are circular, so that no content enters. Two effects of the border remain:
opposite borders become neighbours, and zero padding does not move. For the maps of a ResNet,
`interior_error` leaves both out: it compares only cells whose theoretical receptive field is inside
the image and has no pixel that came from the other side.

Source: ours, after arXiv:1904.11486 (maps of shifted images), arXiv:2011.14214 (circular shifts).
"""

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
import pandas as pd
from flax import nnx
from jaxtyping import Array, Float

from experiments.inside_vit.fields import Fields, layers_of
from experiments.inside_vit.inputs import run
from vit_jax.analysis.images import Images
from vit_jax.errors import ModelError
from vit_jax.evaluation.intervals import interval, resample_means
from vit_jax.models.family import ImageModel


def named_maps(model: ImageModel, images: Array) -> list[tuple[str, Array]]:
    """Returns the feature maps by name; vectors for the whole image come last, as one cell."""
    layers = layers_of(model)
    found = model.features(images, [layer.layer for layer in layers], prefix=True)
    _, last = model(images, return_intermediates=("encoded", "pre_logits"))
    maps = [(layer.name, patches) for layer, (patches, _) in zip(layers, found, strict=True)]
    maps.append(("encoded", model.split_prefix(last["encoded"])[0]))
    if getattr(model, "class_token", None) is not None:
        for layer, (_, tokens) in zip(layers, found, strict=True):
            if layer.name.startswith("block"):
                maps.append((f"class token {layer.layer}", tokens[:, None, :1]))
    return [*maps, ("pre_logits", last["pre_logits"][:, None, None])]


def equivariance(
    model: ImageModel, images: Float[np.ndarray, "M H W 3"], batch_size: int = 16
) -> pd.DataFrame:
    """Returns a row for each layer and shift: the mean error over images, and its interval."""
    graphdef, state = nnx.split(model)
    names: list[str] = []

    @jax.jit
    def compute(state: nnx.State, images: Array) -> list[Array]:
        maps = named_maps(nnx.merge(graphdef, state), images)
        names[:] = [name for name, _ in maps]
        return [x for _, x in maps]

    layers = layers_of(model)
    fields = {layer.name: layer.fields for layer in layers if layer.convolutional}
    if layers[-1].convolutional:  # A ResNet: its last map, normalised.
        fields["encoded"] = layers[-1].fields
    grids = [x.shape[1:3] for x in jax.eval_shape(compute, state, images[:1])]
    height, width = images.shape[1:3]
    cells = {n: (height // g[0], width // g[1]) for n, g in zip(names, grids, strict=True)}
    shifts = sorted(n for n in {1, *itertools.chain(*cells.values())} if n < min(height, width))
    found = shift_errors(
        lambda batch: dict(zip(names, compute(state, batch), strict=True)),
        images, shifts, fields, batch_size,
    )  # fmt: skip
    rows = []
    for name, (errors, interior) in found.items():
        low, high = zip(*map(interval, resample_means(errors, "all").T), strict=True)
        numbers = (errors.mean(0), low, high, interior.mean(0))
        rows += [(name, *cells[name], *row) for row in zip(shifts, *numbers, strict=True)]
    cell = ("cell_height_px", "cell_width_px")
    columns = ["layer", *cell, "shift_px", "error", "error_low", "error_high", "interior_error"]
    return pd.DataFrame(rows, columns=columns)


def shift_errors(
    maps_fn: Callable[[np.ndarray], Mapping[str, Array]],
    images: Float[np.ndarray, "M H W 3"],
    shifts: Sequence[int],
    fields: Mapping[str, Fields],
    batch_size: int = 16,
) -> dict[str, Float[np.ndarray, "2 M S"]]:
    """Returns for each layer the errors over all cells, and over interior cells (NaN: none)."""
    found: dict[str, np.ndarray] = {}
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        before = maps_fn(batch)
        for (number, shift), axis in itertools.product(enumerate(shifts), (1, 2)):
            after = maps_fn(np.roll(batch, shift, axis))
            for name, x in before.items():
                pair = (np.asarray(x, np.float32), np.asarray(after[name], np.float32))
                errors = _errors(*pair, shift, axis, images.shape[axis], fields.get(name))
                of_layer = found.setdefault(name, np.zeros((2, len(images), len(shifts))))
                of_layer[:, start : start + len(batch), number] += errors / 2
    return found


def _errors(
    before: np.ndarray, after: np.ndarray, shift: int, axis: int, length: int, fields: Fields | None
) -> Float[np.ndarray, "2 B"]:
    """Returns the errors of a shift along one axis of the image, over all and interior cells."""
    count, step = before.shape[axis], length // before.shape[axis]
    if count * step < length:
        raise ModelError(f"{count} cells of {length} pixels", "a multiple", "change the image size")
    squares = np.square(after - shift_map(before, shift / step, axis)).sum(-1)
    # Norms are those of f(x), at the cells that are compared.
    norms = np.square(np.roll(before, shift // step, axis)).sum(-1)

    def ratio(kept: np.ndarray) -> np.ndarray:
        total, norm = (x.compress(kept, axis).sum((1, 2)) for x in (squares, norms))
        return np.sqrt(total / np.maximum(norm, np.finfo(np.float32).tiny))

    everywhere = ratio(np.ones(count, bool))
    interior = np.full_like(everywhere, np.nan)
    if fields is not None:
        # A map that is moved by part of a cell also contains the next cell.
        kept = fields[axis - 1].interior(count, length, -(-shift // step) * step)
        interior = ratio(kept) if kept.any() else interior
    return np.stack([everywhere, interior])


def shift_map(x: Float[np.ndarray, "B h w C"], cells: float, axis: int) -> np.ndarray:
    """Returns maps that are moved around their border, linearly interpolated between cells.

    >>> shift_map(np.float32([8, 0, 4]).reshape(1, 1, 3, 1), 1.25, axis=2).ravel().tolist()
    [3.0, 7.0, 2.0]
    """
    whole, part = divmod(cells, 1)
    x = np.roll(x, int(whole), axis)
    return x + part * (np.roll(x, 1, axis) - x)


def measure(model: ImageModel, images: Images, args: argparse.Namespace) -> pd.DataFrame:
    """Returns the table of `equivariance`."""
    return equivariance(model, images.normalized, args.batch_size)


if __name__ == "__main__":
    run("equivariance", measure)
