"""Translation equivariance of each layer: how closely its feature map follows a shifted image."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from vit_jax.analysis.batches import map_batches
from vit_jax.analysis.output import GRAY, Output, Row, arrays_of, digits, style_axes
from vit_jax.analysis.receptive_field import Field, Fields, MapsFn, find_trunk, trunk_fields
from vit_jax.errors import ModelError
from vit_jax.evaluation.intervals import bootstrap_interval
from vit_jax.models.family import ImageModel
from vit_jax.tables import plain_table

# Intermediates that have a position in the image, in the order of the forward pass.
_WITH_POSITIONS = ("embedded", "block_output", "encoded")
_MAX_LABELS = 14


@dataclasses.dataclass(frozen=True)
class Equivariance:
    """Errors of translation equivariance of all layers.

    Attributes:
        layers: names of the layers, first layer first; layers without positions in the image last.
        cell: i32[L, 2], pixels per cell of each layer's feature map, down and across. A layer
            without positions has one cell, the image.
        shifts: i32[S], shifts of the image in pixels.
        per_image: f32[M, L, S], relative error over all cells of the map, see `equivariance`.
        interior: f32[M, L, S], the same over interior cells; NaN if there are none.
        image_size: (height, width) in pixels.
    """

    layers: tuple[str, ...]
    cell: Int[np.ndarray, "L 2"]
    shifts: Int[np.ndarray, " S"]
    per_image: Float[np.ndarray, "M L S"]
    interior: Float[np.ndarray, "M L S"]
    image_size: tuple[int, int]

    @property
    def has_positions(self) -> Bool[np.ndarray, " L"]:
        """Whether each layer is a feature map, and not a vector for the whole image."""
        return np.any(self.cell < self.image_size, axis=1)

    @property
    def mean(self) -> Float[np.ndarray, "L S"]:
        """Mean error over the images."""
        return self.per_image.mean(0)

    @functools.cached_property
    def interval(self) -> tuple[Float[np.ndarray, "L S"], Float[np.ndarray, "L S"]]:
        """Lower and upper ends of the 95 % interval of `mean`, a bootstrap over the images."""
        return bootstrap_interval(self.per_image)

    @property
    def interior_mean(self) -> Float[np.ndarray, "L S"]:
        """Mean over the images of the error over interior cells; NaN if there are none."""
        return self.interior.mean(0)


def equivariance(
    model: ImageModel, images: Float[np.ndarray, "M H W 3"], *, batch_size: int = 16
) -> Equivariance:
    """Returns the relative error of translation equivariance of every layer.

    For an image x, a shift of s pixels and a layer with the feature map f(x), [h, w, C], it is

        || f(T_s x) - T'_s f(x) || / || f(x) ||

    with the Euclidean norm over all cells and channels. T_s moves the image by s pixels. T'_s moves
    the map by s divided by the layer's pixels per cell. If that is not a whole number, such as 1/16
    for 1 pixel and patches of 16 pixels, T'_s interpolates linearly between the two neighbouring
    whole shifts of the map. The error is 0 for an exactly equivariant layer, and about sqrt(2) if
    the two maps have zero mean, equal norms and nothing in common. It is the mean of a shift down
    and a shift to the right.

    Class token and pooled features ("pre_logits") have no position, so for them T'_s is the
    identity and the error is one of invariance. After `pooling=flatten` the pooled features are a
    map written as a vector, and the error says how much the input of the head changes.

    The shifts are 1 pixel and the cell size of every layer, so they include the patch size of a ViT
    and every stride of a ResNet.

    All shifts are circular: pixels that leave the image on one side enter on the other side.
    Attention and group normalisation use all positions, so with other shifts the content that
    enters would change every cell of the map. The error over all cells contains two effects of the
    border: position 0 and the last position become neighbours, and convolutions pad the image with
    zeros, which do not move with it. For the feature maps of a ResNet, `interior` leaves them out.
    It compares only cells whose theoretical receptive field is inside the image and has no pixel
    that came from the other side. Group normalisation still sees all cells.

    Layers have the names of `return_intermediates`; blocks are numbered from 1. The maps of a
    hybrid's ResNet come first. Maps have only patches, without class token and registers.

    Args:
        model: any model.
        images: in [-1, 1], of the model's size.
        batch_size: number of images at a time. There are 1 + 2 S forward passes per batch.

    Raises:
        ModelError: an image side that is not a multiple of every layer's stride, or images of
            another size.
        DataError: there are no images.

    Source: ours. arXiv:1904.11486 also compares the shifted map with the map of the shifted image
    in each layer, by the cosine distance; arXiv:2011.14214 also uses circular shifts.
    """
    height, width = images.shape[1:3]
    size = (height, width)
    cells = cells_of(model, size)
    shifts = [s for s in sorted({1, *np.unique(list(cells.values()))}) if s < min(height, width)]
    fields = _convolutional_fields(model, size)
    per_image, interior = shift_errors(
        lambda model, images: list(named_maps(model, images).values()),
        model,
        images,
        shifts,
        fields=[fields.get(name) for name in cells],
        batch_size=batch_size,
    )
    return Equivariance(
        tuple(cells),
        np.asarray(list(cells.values()), np.int32),
        np.asarray(shifts, np.int32),
        per_image,
        interior,
        size,
    )


def named_maps(model: ImageModel, images: Array) -> dict[str, Array]:
    """Returns the feature maps [B, h, w, C] of a model by name, first layer first.

    The class token after each block and "pre_logits" come last, as maps of one cell.
    """
    trunk = find_trunk(model)
    maps = {} if trunk is None else dict(trunk(images))
    wanted = tuple(name for name in _WITH_POSITIONS if name in model.intermediates)
    _, found = model(images, return_intermediates=(*wanted, "pre_logits"))
    for name in wanted:
        if name == "block_output":
            maps |= {f"{name} {i}": model.split_prefix(x)[0] for i, x in enumerate(found[name], 1)}
        else:
            maps[name] = model.split_prefix(found[name])[0]
    if getattr(model, "class_token", None) is not None:
        tokens = {f"class token {i}": x[:, 0] for i, x in enumerate(found["block_output"], 1)}
        maps |= {name: x[:, None, None] for name, x in tokens.items()}
    return {**maps, "pre_logits": found["pre_logits"][:, None, None]}


def cells_of(
    model: ImageModel, image_size: tuple[int, int] | None = None
) -> dict[str, tuple[int, int]]:
    """Returns the pixels per cell, down and across, of each map of `named_maps`.

    Args:
        model: any model.
        image_size: (height, width) in pixels; None: the model's.

    Raises:
        ModelError: an image side that is not a multiple of every layer's stride. A circular shift
            of such an image is not one of the map.
    """
    height, width = image_size or model.image_size
    images = jax.ShapeDtypeStruct((1, height, width, 3), jnp.float32)
    names: list[str] = []

    def maps(model: ImageModel, images: Array) -> list[Array]:
        found = named_maps(model, images)
        names.extend(found)  # JAX would sort the keys of a dict.
        return [*found.values()]

    cells = {}
    shapes = nnx.eval_shape(maps, model, images)
    for name, found in zip(names, shapes, strict=True):
        rows, columns = found.shape[1:3]
        if height % rows or width % columns:
            raise ModelError(
                f"equivariance at {height}x{width} pixels, where {name} has {rows}x{columns} cells",
                "image sides that are multiples of all strides of the model",
                "set --image_size to a multiple of its last stride",
            )
        cells[name] = (height // rows, width // columns)
    return cells


def _convolutional_fields(model: ImageModel, image_size: tuple[int, int]) -> dict[str, Fields]:
    """Returns the theoretical receptive fields of the maps that only convolutions compute."""
    trunk = find_trunk(model)
    if trunk is None:
        return {}
    down, across = (trunk_fields(trunk, side) for side in image_size)
    fields = {name: (field, across[name][0]) for name, (field, _) in down.items()}
    if "block_output" not in model.intermediates:  # A ResNet: the last map, normalised.
        fields["encoded"] = list(fields.values())[-1]
    return fields


def shift_errors(
    maps_fn: MapsFn,
    model: nnx.Module,
    images: Float[np.ndarray, "M H W 3"],
    shifts: Sequence[int | np.integer],
    *,
    fields: Sequence[Fields | None] = (),
    batch_size: int = 16,
) -> tuple[Float[np.ndarray, "M L S"], Float[np.ndarray, "M L S"]]:
    """Returns the errors over all cells and over interior cells, as `equivariance` defines them.

    Args:
        maps_fn: (model, images) -> L feature maps [B, h, w, C], whose h and w divide H and W.
        model: first argument of `maps_fn`.
        images: in [-1, 1].
        shifts: in pixels, below H and W.
        fields: theoretical receptive fields of each map; None: it has no interior cells. Empty: no
            map has.
        batch_size: number of images at a time.

    Raises:
        DataError: there are no images.
    """
    size = np.asarray(images.shape[1:3])
    one = jax.ShapeDtypeStruct((1, *images.shape[1:]), images.dtype)
    abstract = nnx.eval_shape(maps_fn, model, one)
    grids = [np.asarray(m.shape[1:3]) for m in abstract]
    fields = fields or [None] * len(grids)
    # Down, then to the right, for each of the shifts.
    moves = np.asarray([move for s in shifts for move in ((s, 0), (0, s))], np.int32)
    masks = [
        np.stack([_interior(pair, grid, size, move) for move in moves])
        for pair, grid in zip(fields, grids, strict=True)
    ]
    cells = [(moves / (size // grid)).astype(np.float32) for grid in grids]

    def of_batch(model: nnx.Module, images: Array, indices: Array) -> Array:
        del indices
        before = maps_fn(model, images)

        def of_move(inputs: tuple[Array, list[Array], list[Array]]) -> Array:
            move, cells, masks = inputs
            after = maps_fn(model, _roll(images, move))
            layers = zip(before, after, cells, masks, strict=True)
            return jnp.stack([_errors(*layer) for layer in layers])

        found = jax.lax.map(of_move, jax.tree.map(jnp.asarray, (moves, cells, masks)))
        return jnp.moveaxis(found, -1, 0)  # B, moves, L, 2

    found = map_batches(of_batch, model, images, batch_size)
    for layer, mask in enumerate(masks):
        found[:, ~mask.any((1, 2)), layer, 1] = np.nan
    found = found.reshape(len(images), len(shifts), 2, len(grids), 2).mean(2)
    return found[..., 0].swapaxes(1, 2), found[..., 1].swapaxes(1, 2)


def _roll(x: Float[Array, "B h w C"], move: Int[Array, "2"]) -> Float[Array, "B h w C"]:
    return jnp.roll(jnp.roll(x, move[0], 1), move[1], 2)


def shift_map(x: Float[Array, "B h w C"], cells: Float[Array, "2"]) -> Float[Array, "B h w C"]:
    """Returns maps that are moved around their border, linearly interpolated between cells.

    Args:
        x: feature maps.
        cells: how many cells down and across.

    >>> shift_map(jnp.float32([8, 0, 4]).reshape(1, 1, 3, 1), jnp.float32([0, 1.25])).ravel()
    Array([3., 7., 2.], dtype=float32)
    """
    whole = jnp.floor(cells)
    fraction = cells - whole
    x = _roll(x, whole.astype(jnp.int32))
    for axis in (1, 2):
        x = x + fraction[axis - 1] * (jnp.roll(x, 1, axis) - x)
    return x


def _errors(
    before: Float[Array, "B h w C"],
    after: Float[Array, "B h w C"],
    cells: Float[Array, "2"],
    interior: Bool[Array, "h w"],
) -> Float[Array, "2 B"]:
    """Returns the errors over all cells and over interior cells.

    Args:
        before: maps of the images.
        after: maps of the shifted images.
        cells: how many cells down and across `before` is moved.
        interior: which cells of `after` are interior.
    """
    before = before.astype(jnp.float32)
    difference = after.astype(jnp.float32) - shift_map(before, cells)
    squares = jnp.square(difference).sum(-1)
    # Norms are those of f(x), at the cells that `interior` keeps.
    norms = _roll(jnp.square(before), jnp.floor(cells).astype(jnp.int32)).sum(-1)

    def ratio(kept: Array) -> Array:
        total, norm = ((x * kept[None]).sum((1, 2)) for x in (squares, norms))
        return jnp.where(total > 0, jnp.sqrt(total / norm), 0)

    kept = interior.astype(jnp.float32)
    return jnp.stack([ratio(jnp.ones_like(kept)), ratio(kept)])


def _interior(
    fields: Fields | None,
    grid: Int[np.ndarray, "2"],
    size: Int[np.ndarray, "2"],
    move: Int[np.ndarray, "2"],
) -> Bool[np.ndarray, "h w"]:
    """Returns which cells of the map of a shifted image are interior.

    Only the axis of the shift counts: padding along the other axis is the same before and after it.
    """
    if fields is None:
        return np.zeros(grid, bool)
    axis = int(np.argmax(move))
    count, length, shift = (int(x[axis]) for x in (grid, size, move))
    # A map that is moved by part of a cell also contains the next cell.
    whole = -(-shift // (length // count)) * (length // count)
    line = interior_cells(fields[axis], count, length, whole)
    return np.broadcast_to(line[:, None] if axis == 0 else line[None], grid)


def interior_cells(field: Field, count: int, length: int, shift: int) -> Bool[np.ndarray, " h"]:
    """Returns which cells see neither padding nor pixels that came from the other side.

    Args:
        field: theoretical receptive field of the cells along the axis of the shift.
        count: number of cells.
        length: length of the image in pixels.
        shift: pixels by which the image was moved.

    >>> interior_cells(Field().then(3, before=1), count=6, length=6, shift=2).tolist()
    [False, False, False, True, True, False]
    """
    first = field.start + np.arange(count) * field.step
    return (first >= shift) & (first + field.side <= length)


def equivariance_output(found: Equivariance, model_name: str) -> Output:
    """Returns the picture, table and summary of `equivariance`."""
    return Output(
        draw_equivariance(found, model_name),
        arrays_of(found),
        _rows(found),
        f"relative error under circular shifts, mean of {len(found.per_image)} images with 95 %"
        " intervals; 0 if the layer follows the shift exactly",
        _table(found),
    )


def _rows(found: Equivariance) -> list[Row]:
    mean, (low, high), interior = found.mean, found.interval, found.interior_mean
    return [
        {
            "layer": found.layers[layer],
            "cell_height_px": int(found.cell[layer, 0]),
            "cell_width_px": int(found.cell[layer, 1]),
            "shift_px": int(found.shifts[shift]),
            "error": digits(mean[layer, shift]),
            "error_low": digits(low[layer, shift]),
            "error_high": digits(high[layer, shift]),
            "interior_error": _or_empty(interior[layer, shift]),
        }
        for layer, shift in np.ndindex(mean.shape)
    ]


def _or_empty(value: Any) -> str:
    return "" if np.isnan(value) else digits(value)


def _table(found: Equivariance) -> Table:
    """Returns a table of shifts by one pixel and by one cell; the CSV file has all shifts.

    Layers without positions have the shift by the largest cell of the maps.
    """
    has_interior = not np.isnan(found.interior).all()
    columns = ("cell, px", "1 pixel", "1 cell", *["1 cell, interior"] * has_interior)
    table = plain_table("layer", right=columns)
    for layer, (name, (down, across)) in enumerate(zip(found.layers, found.cell, strict=True)):
        has_positions = found.has_positions[layer]
        cell = down if has_positions else found.cell[found.has_positions].max(initial=1)
        sides = str(down) if down == across else f"{down} x {across}"
        shown = [sides if has_positions else "image"]
        shown += [_cell_of_table(found, layer, int(shift)) for shift in (1, cell)]
        if has_interior:
            interior = found.interior_mean[layer, found.shifts == down]
            shown += [f"{x:.3f}" for x in interior if not np.isnan(x)] or [""]
        table.add_row(name, *shown)
    return table


def _cell_of_table(found: Equivariance, layer: int, shift: int) -> str:
    """Returns a mean with its interval; "" if there is no such shift."""
    low, high = found.interval
    return "".join(
        f"{found.mean[layer, i]:.3f} [{low[layer, i]:.3f}, {high[layer, i]:.3f}]"
        for i in np.flatnonzero(found.shifts == shift)
    )


def draw_equivariance(found: Equivariance, model_name: str) -> Figure:
    """Draws the error against the layer, one line per shift; layers without positions on the right.

    Filled markers are shifts by whole cells, hollow ones are interpolated between cells. Dashed
    lines are errors over interior cells. Bands are 95 % intervals.
    """
    kinds = [np.flatnonzero(found.has_positions), np.flatnonzero(~found.has_positions)]
    widths = [max(4.0, min(0.45 * len(kinds[0]) + 2, 9)), max(1.6, min(0.3 * len(kinds[1]), 5))]
    figure = Figure(figsize=(sum(widths) + 1, 4), layout="constrained")
    maps, vectors = figure.subplots(1, 2, sharey=True, width_ratios=widths)
    colours = colormaps["viridis"](np.linspace(0, 0.85, len(found.shifts)))
    for number, colour in enumerate(colours):
        for axes, layers in zip((maps, vectors), kinds, strict=True):
            _draw_shift(axes, found, layers, number, colour)
    cells = found.cell[kinds[0]]
    if not (found.shifts[:, None, None] % cells[None] == 0).all():
        style = {"color": GRAY, "markerfacecolor": "w", "markersize": 5}
        maps.plot([], [], "o", label="not a whole number of cells", **style)
    if not np.isnan(found.interior).all():
        maps.plot([], [], "--", color=GRAY, linewidth=1, label="interior cells only")
    maps.set_ylim(0, max(1.08 * float(found.interval[1].max()), 0.01))
    maps.set_ylabel("relative error of equivariance")
    for axes, layers, title in zip(
        (maps, vectors), kinds, ("feature maps", "no position: invariance"), strict=True
    ):
        _label_layers(axes, [found.layers[i] for i in layers])
        axes.set_title(title, fontsize=9)
        style_axes(axes)
    maps.legend(frameon=False, fontsize=8, title="circular shift", title_fontsize=8)
    figure.suptitle(
        f"{model_name}, {len(found.per_image)} images, 95 % intervals over images", fontsize=10
    )
    return figure


def _draw_shift(
    axes: Axes, found: Equivariance, layers: Int[np.ndarray, " l"], shift: int, colour: Any
) -> None:
    """Draws the errors of some layers for one of the shifts."""
    places, pixels = np.arange(len(layers)), found.shifts[shift]
    mean, low, high, interior = (
        x[layers, shift] for x in (found.mean, *found.interval, found.interior_mean)
    )
    label = f"{pixels} pixel{'s' * int(pixels > 1)}"
    axes.plot(places, mean, color=colour, linewidth=1.5, label=label)
    axes.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)
    is_whole = (pixels % found.cell[layers] == 0).all(1) | ~found.has_positions[layers]
    for kept, face in ((is_whole, colour), (~is_whole, "w")):
        style = {"color": colour, "markerfacecolor": face, "markersize": 5}
        axes.plot(places[kept], mean[kept], "o", **style)
    axes.plot(places, interior, "--", color=colour, linewidth=1)


def _label_layers(axes: Axes, names: Sequence[str]) -> None:
    """Labels the layers on the horizontal axis."""
    shown = range(0, len(names), math.ceil(len(names) / _MAX_LABELS))
    labels = [names[i].replace("block_output", "block") for i in shown]
    axes.set_xticks(list(shown), labels, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.4, len(names) - 0.6)
