"""Effective receptive fields: how far away a pixel can be and still change a feature, by layer."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from vit_jax.analysis.batches import map_batches, pixels_per_patch, submodules
from vit_jax.analysis.output import (
    BLUE,
    GRAY,
    ORANGE,
    Output,
    arrays_of,
    digits,
    style_axes,
)
from vit_jax.models.family import ImageModel
from vit_jax.models.resnet import ConvStyle, Stage, Trunk
from vit_jax.tables import plain_table

# Fraction of the gradient mass inside an effective field, as within two standard deviations of a
# Gaussian.
SHARE = 0.95
_MAX_MAPS_DRAWN = 6

# (model, images) -> feature maps [B, h, w, C], in the order of the layers.
MapsFn = Callable[[Any, Array], Sequence[Array]]


@dataclasses.dataclass(frozen=True)
class Field:
    """Theoretical receptive field of the positions of a feature map, along one axis of the image.

    Position i depends on `side` pixels, starting at `start + i * step`. Padding counts as pixels.
    """

    start: int = 0
    side: int = 1
    step: int = 1

    def then(self, size: int, stride: int = 1, before: int = 0) -> "Field":
        """Returns the field after one more convolution or pooling.

        Args:
            size: kernel size.
            stride: stride.
            before: padding before the first position.

        >>> Field().then(3, before=1).then(3, before=1)
        Field(start=-2, side=5, step=1)
        """
        return Field(
            self.start - before * self.step,
            self.side + (size - 1) * self.step,
            self.step * stride,
        )

    def centre(self, position: int) -> float:
        """Returns the centre of a position's field; the first pixel's centre is 0."""
        return self.start + position * self.step + (self.side - 1) / 2


# The fields of a map's positions, vertical and horizontal.
Fields = tuple[Field, Field]


@dataclasses.dataclass(frozen=True)
class ReceptiveField:
    """Receptive fields of the central position of each layer's feature map.

    Attributes:
        layers: names of the layers, first layer first.
        depth: i32[L], number of encoder blocks and bottleneck units up to the layer; 0 for the
            patch embedding and the root convolution.
        maps: f32[L, H, W], gradient mass of each pixel, see `gradient_maps`; each map sums to 1.
        side: f32[L], side in pixels of the smallest square around the centre of the theoretical
            field that contains 95 % of the mass; at most the image's longer side.
        convolutional_side: i32[L], side in pixels of the theoretical field of a CNN of the same
            depth. For a ResNet this is the ResNet itself. For models with patches, it is the patch
            embedding followed by one 3x3 convolution over patches per block.
        beyond: f32[L], fraction of the mass outside that theoretical field.
        centres: f32[L, 2], row and column of the centre; the first pixel's centre is 0.
    """

    layers: tuple[str, ...]
    depth: Int[np.ndarray, " L"]
    maps: Float[np.ndarray, "L H W"]
    side: Float[np.ndarray, " L"]
    convolutional_side: Int[np.ndarray, " L"]
    beyond: Float[np.ndarray, " L"]
    centres: Float[np.ndarray, "L 2"]


def receptive_field(
    model: ImageModel,
    images: Float[np.ndarray, "M H W 3"],
    *,
    batch_size: int = 4,
    seed: int = 0,
) -> ReceptiveField:
    """Returns the effective receptive field of every block, and of every stage of a ResNet.

    `gradient_maps` describes the measurement. Group normalisation uses statistics over all
    positions, so in a ResNet a little of the mass is outside the field of the convolutions.

    Args:
        model: any model.
        images: in [-1, 1], of the model's size.
        batch_size: number of images at a time.
        seed: seed of the signs, see `gradient_maps`.

    Raises:
        DataError: there are no images.
    """
    names, depth, fields = layers_of(model, images.shape[1:3])
    mass = gradient_maps(feature_maps, model, images, batch_size=batch_size, seed=seed)
    abstract = nnx.eval_shape(feature_maps, model, jnp.asarray(images[:1]))
    shapes = [(m.shape[1], m.shape[2]) for m in abstract]
    return summarize(mass, shapes, names, depth, fields)


def summarize(
    mass: Float[np.ndarray, "L H W"],
    shapes: Sequence[tuple[int, int]],
    names: Sequence[str],
    depth: Sequence[int],
    fields: Sequence[Fields],
) -> ReceptiveField:
    """Returns the sizes of the fields of central positions.

    Args:
        mass: gradient mass from `gradient_maps`.
        shapes: (rows, columns) of each feature map.
        names: names of the layers.
        depth: number of blocks and units up to each layer.
        fields: theoretical fields of each map's positions in a CNN of the same depth.
    """
    centres = [
        [field.centre(size // 2) for field, size in zip(pair, shape, strict=True)]
        for pair, shape in zip(fields, shapes, strict=True)
    ]
    found = [_mass_by_square(m, tuple(c)) for m, c in zip(mass, centres, strict=True)]
    sides = [max(field.side for field in pair) for pair in fields]
    beyond = [
        1 - held[np.searchsorted(reach, side + 1e-6, side="right") - 1]
        for (reach, held), side in zip(found, sides, strict=True)
    ]
    longest = max(mass.shape[1:])
    effective = [min(reach[np.searchsorted(held, SHARE)], longest) for reach, held in found]
    return ReceptiveField(
        tuple(names),
        np.asarray(depth, np.int32),
        mass,
        np.asarray(effective, np.float32),
        np.asarray(sides, np.int32),
        np.maximum(np.asarray(beyond, np.float32), 0),
        np.asarray(centres, np.float32),
    )


def _mass_by_square(
    mass: Float[np.ndarray, "H W"], centre: tuple[float, ...]
) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, " S"]]:
    """Returns the side and the mass of each square around a centre, from small to large."""
    rows, columns = (np.abs(np.arange(n) - c) for n, c in zip(mass.shape, centre, strict=True))
    sides = 2 * np.maximum(rows[:, None], columns[None]) + 1
    distinct, which = np.unique(sides, return_inverse=True)
    held = np.bincount(which.ravel(), weights=mass.ravel().astype(np.float64))
    total = max(held.sum(), np.finfo(np.float64).tiny)
    return distinct, np.minimum(np.cumsum(held) / total + 1e-12, 1)


def gradient_maps(
    maps_fn: MapsFn,
    model: Any,
    images: Float[np.ndarray, "M H W 3"],
    *,
    batch_size: int = 4,
    seed: int = 0,
) -> Float[np.ndarray, "L H W"]:
    """Returns how much each pixel changes the central position of each feature map.

    The features at that position are summed with random signs, drawn separately for each image. (A
    plain sum would be constant after LayerNorm.) The squared gradient of the sum with respect to a
    pixel, summed over its three channels, is the pixel's mass. Its mean over signs is the variance
    of the features under white noise on this pixel. The masses of an image are divided by their
    sum, and the mean over images is returned.

    Args:
        maps_fn: (model, images) -> feature maps [B, h, w, C]; the central position is (h // 2,
            w // 2).
        model: first argument of `maps_fn`.
        images: in [-1, 1].
        batch_size: number of images at a time. There is one forward pass per batch and one
            backward pass per map.
        seed: seed of the signs.

    Raises:
        DataError: there are no images.

    Returns:
        f32[L, H, W]; a map sums to 1.

    Source: arXiv:1701.04128, sections 2 and 3. The paper uses one channel and the gradient itself.
    The square is ours: normalisation layers give every pixel a small gradient, and summed over all
    pixels these gradients would exceed those inside the field of the convolutions.
    """

    def of_batch(model: Any, images: Array, indices: Array) -> Array:
        maps, pull = jax.vjp(lambda images: tuple(maps_fn(model, images)), images)
        signs = [_random_signs(seed, layer, indices, m) for layer, m in enumerate(maps)]

        def of_layer(layer: Array) -> Array:
            chosen = tuple(
                jnp.zeros_like(m)
                .at[:, m.shape[1] // 2, m.shape[2] // 2]
                .set(jnp.where(layer == number, sign, 0).astype(m.dtype))
                for number, (m, sign) in enumerate(zip(maps, signs, strict=True))
            )
            energy = jnp.square(pull(chosen)[0]).sum(-1)
            total = energy.sum((1, 2), keepdims=True)
            return jnp.where(total > 0, energy / jnp.where(total > 0, total, 1), 0)

        return jnp.moveaxis(jax.lax.map(of_layer, jnp.arange(len(maps))), 0, 1)

    return map_batches(of_batch, model, images, batch_size).mean(0)


def _random_signs(seed: int, layer: int, indices: Array, like: Array) -> Array:
    """Returns -1 or 1 for each image and channel, independent of the batch size."""
    key = jax.random.fold_in(jax.random.key(seed), layer)

    def draw(index: Array) -> Array:
        return jax.random.rademacher(jax.random.fold_in(key, index), like.shape[-1:], jnp.float32)

    return jax.vmap(draw)(indices)


def find_trunk(model: ImageModel) -> Trunk | None:
    """Returns the ResNet inside a model, if there is one."""
    return next(iter(submodules(model, Trunk)), None)


def feature_maps(model: ImageModel, images: Array) -> list[Array]:
    """Returns the feature maps [B, h, w, C] that `layers_of` names."""
    trunk = find_trunk(model)
    maps = [] if trunk is None else list(trunk(images).values())
    if "block_output" not in model.intermediates:
        return maps
    _, found = model(images, return_intermediates=("embedded", "block_output"))
    tokens = [found["embedded"], *found["block_output"]]
    grids = [t[:, model.num_prefix :].reshape(len(t), *model.grid, -1) for t in tokens]
    return [*maps, *grids]


def layers_of(
    model: ImageModel, image_size: tuple[int, int]
) -> tuple[list[str], list[int], list[Fields]]:
    """Returns each feature map's name, depth, and the field in a CNN of the same depth.

    Args:
        model: any model.
        image_size: (height, width) in pixels.
    """
    names: list[str] = []
    depth: list[int] = []
    fields: list[Fields] = []
    if (trunk := find_trunk(model)) is not None:
        down, across = (trunk_fields(trunk, side) for side in image_size)
        for name, (field, units) in down.items():
            names.append(name)
            depth.append(units)
            fields.append((field, across[name][0]))
    if "block_output" not in model.intermediates:
        return names, depth, fields
    units = depth[-1] if depth else 0
    # Patches are cut from the image, or from the last map of the ResNet.
    start = fields[-1] if fields else (Field(), Field())
    cut = [
        field.then(pixels // field.step, pixels // field.step)
        for field, pixels in zip(start, pixels_per_patch(model), strict=True)
    ]
    pair = (cut[0], cut[1])
    for block in range(_num_blocks(model) + 1):
        names.append(f"block {block}" if block else "embedding")
        depth.append(units + block)
        fields.append(pair)
        pair = (pair[0].then(3, before=1), pair[1].then(3, before=1))
    return names, depth, fields


def _num_blocks(model: ImageModel) -> int:
    image = jax.ShapeDtypeStruct((1, *model.image_size, 3), jnp.float32)
    _, found = nnx.eval_shape(
        lambda model, image: model(image, return_intermediates=("block_output",)), model, image
    )
    return len(found["block_output"])


def trunk_fields(trunk: Trunk, length: int) -> dict[str, tuple[Field, int]]:
    """Returns the theoretical fields of a ResNet's feature maps along one axis, and their depth.

    The depth counts bottleneck units; the root does not count. The statistics of group
    normalisation, which depend on all positions, are ignored.

    Args:
        trunk: root and stages.
        length: length of the image along this axis in pixels; TensorFlow's padding depends on it.

    Returns:
        "root", "stage1", ... -> (field, number of units).
    """
    field, style = Field(), trunk.style
    field, length = _apply_window(
        field, length, _kernel_size(trunk.conv_root), trunk.conv_root.stride, style
    )
    if trunk.pools:
        field, length = _apply_window(field, length, 3, 2, style)
    found, units = {"root": (field, 0)}, 0
    for number in range(trunk.stages):
        stage: Stage = getattr(trunk, f"stage{number + 1}")
        for conv in _spatial_convs(stage):
            field, length = _apply_window(field, length, _kernel_size(conv), conv.stride, style)
            units += 1
        found[f"stage{number + 1}"] = field, units
    return found


def _spatial_convs(stage: Stage) -> Iterator[Any]:
    """Yields the middle convolution of each unit; the others are 1x1."""
    first: Any = stage.first
    yield first.conv2
    for _ in range(stage.rest):
        blocks: Any = stage.blocks
        yield blocks.conv2


def _kernel_size(conv: Any) -> int:
    return conv.kernel[...].shape[-4]


def _apply_window(
    field: Field, length: int, size: int, stride: int, style: ConvStyle
) -> tuple[Field, int]:
    """Returns the field after one convolution or pooling, and the map's new length."""
    if style.same_padding:
        after = -(-length // stride)
        before = max((after - 1) * stride + size - length, 0) // 2
    else:
        before = size // 2
        after = (length + 2 * before - size) // stride + 1
    return field.then(size, stride, before), after


def receptive_field_output(found: ReceptiveField, model_name: str) -> Output:
    """Returns the picture, tables and summary of `receptive_field`."""
    table = plain_table(
        "layer", right=("depth", "effective", "CNN of that depth", "mass beyond it")
    )
    rows = []
    for k, name in enumerate(found.layers):
        side, cnn, beyond = found.side[k], found.convolutional_side[k], found.beyond[k]
        table.add_row(name, str(found.depth[k]), f"{side:.0f}", str(cnn), f"{beyond:.1%}")
        rows.append(
            {
                "layer": name,
                "depth": int(found.depth[k]),
                "effective_side_px": digits(side),
                "convolutional_side_px": int(cnn),
                "mass_beyond": digits(beyond),
            }
        )
    summary = (
        "side in pixels of the square that contains 95% of the gradient mass,"
        " compared with the theoretical field of a CNN of the same depth"
    )
    figure = draw_receptive_field(found, model_name)
    return Output(figure, arrays_of(found), rows, summary, table)


def draw_receptive_field(found: ReceptiveField, model_name: str) -> Figure:
    """Draws the sizes of effective fields against depth, and the fields of some layers."""
    pixels_across = max(found.maps.shape[1:])
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    grid = figure.add_gridspec(2, 6)
    axes = figure.add_subplot(grid[:, :3])
    own = not any(name.startswith("block") for name in found.layers)
    axes.plot(found.depth, found.side, "o-", color=BLUE, label=f"{model_name}, effective (95 %)")
    label = "its convolutions, theoretical" if own else "3x3 CNN of that depth, theoretical"
    top = 1.6 * pixels_across
    # Fields of deep CNNs are far larger than the image. Markers outside the panel are not drawn.
    inside = np.flatnonzero(found.convolutional_side < 0.97 * top).tolist()
    style = {"color": ORANGE, "label": label, "mfc": "w", "markevery": inside}
    axes.plot(found.depth, found.convolutional_side, "s--", **style)
    axes.axhline(pixels_across, color=GRAY, linewidth=1, linestyle=":")
    axes.set_ylim(0, top)
    axes.text(
        0.99,
        pixels_across / top + 0.025,
        "image",
        color=GRAY,
        fontsize=8,
        ha="right",
        transform=axes.transAxes,
    )
    units = "bottleneck units" if own else "blocks"
    axes.set(xlabel=f"depth ({units} passed)", ylabel="side of receptive field (pixels)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    style_axes(axes)
    chosen = _evenly_spaced(len(found.layers))
    for index, layer in enumerate(chosen):
        panel = figure.add_subplot(grid[index // 3, 3 + index % 3])
        _draw_field(panel, found, layer)
    return figure


def _draw_field(axes: Axes, found: ReceptiveField, layer: int) -> None:
    mass, (row, column) = found.maps[layer], found.centres[layer]
    axes.imshow(np.sqrt(mass / max(float(mass.max()), 1e-30)), cmap="magma", vmin=0, vmax=1)
    for side, color, style in (
        (found.side[layer], "w", "-"),
        (found.convolutional_side[layer], ORANGE, "--"),
    ):
        if side >= max(mass.shape):
            continue
        corner = (column - side / 2, row - side / 2)
        axes.add_patch(
            Rectangle(corner, side, side, fill=False, color=color, linestyle=style, linewidth=1)
        )
    axes.set(xticks=[], yticks=[])
    axes.set_title(f"{found.layers[layer]}: {found.side[layer]:.0f} px", fontsize=8, pad=3)


def _evenly_spaced(count: int) -> Sequence[int]:
    """Returns at most `_MAX_MAPS_DRAWN` of `count` layers, including the first and the last."""
    chosen = np.linspace(0, count - 1, min(count, _MAX_MAPS_DRAWN)).round()
    return sorted({int(i) for i in chosen})
