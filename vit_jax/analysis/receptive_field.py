"""Effective receptive fields: how far away pixels still move a feature, layer by layer."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from vit_jax.analysis.batches import map_batches, pixels_per_patch
from vit_jax.analysis.convolution_fields import Field, trunk_fields
from vit_jax.models.resnet import ResNet, Trunk
from vit_jax.models.vit import ViT

# Of the gradient mass, what an effective field holds: two standard deviations of a Gaussian.
SHARE = 0.95

# (model, images) -> feature maps [B, h, w, C], in the order of the layers.
MapsFn = Callable[[Any, Array], Sequence[Array]]
# The fields of a map's positions, down and across.
Fields = tuple[Field, Field]


@dataclasses.dataclass(frozen=True)
class ReceptiveField:
    """What the central position of every layer's feature map depends on.

    Attributes:
        layers: names, first layer first.
        depth: i32[L]: encoder blocks and bottleneck units passed; 0 for embedding and root.
        maps: f32[L, H, W]: gradient mass of each pixel, see `gradient_maps`; a layer's sums to 1.
        side: f32[L], pixels: side of the smallest square about the centre of the position's
            theoretical field that holds 95 % of the mass; at most the image's longer side.
        convolutional_side: i32[L], pixels: side of the theoretical field of a CNN of the same depth
            (a ViT's: its patches, then a 3x3 convolution of them for each block). A ResNet's own.
        beyond: f32[L]: share of the mass outside that theoretical field.
        centres: f32[L, 2]: row and column of the centre; the first pixel's middle is 0.
    """

    layers: tuple[str, ...]
    depth: Int[np.ndarray, " L"]
    maps: Float[np.ndarray, "L H W"]
    side: Float[np.ndarray, " L"]
    convolutional_side: Int[np.ndarray, " L"]
    beyond: Float[np.ndarray, " L"]
    centres: Float[np.ndarray, "L 2"]


def receptive_field(
    model: ViT | ResNet,
    images: Float[np.ndarray, "M H W 3"],
    *,
    batch_size: int = 4,
    seed: int = 0,
) -> ReceptiveField:
    """Returns the effective receptive field of every block, or of every stage of a ResNet.

    See `gradient_maps` for how it is measured. A ResNet's group normalisation takes statistics over
    all positions, so that a little of the mass lies beyond the field of its convolutions.

    Args:
        model: ViT, hybrid or BiT ResNet.
        images: in [-1, 1], of the model's size.
        batch_size: images at once.
        seed: of the directions, see `gradient_maps`.

    Raises:
        DataError: no images.
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
        mass: of `gradient_maps`.
        shapes: (rows, columns) of each feature map.
        names: of the layers.
        depth: blocks and units passed until each.
        fields: of each map's positions, down and across, in a CNN of the same depth.
    """
    centres = [
        [field.centre(size // 2) for field, size in zip(pair, shape, strict=True)]
        for pair, shape in zip(fields, shapes, strict=True)
    ]
    found = [_square(m, tuple(c)) for m, c in zip(mass, centres, strict=True)]
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


def _square(
    mass: Float[np.ndarray, "H W"], centre: tuple[float, ...]
) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, " S"]]:
    """Returns the sides of all squares about a centre that take in more pixels, and their mass."""
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
    """Returns how much each pixel moves the central position of each feature map.

    The features there are added up with random signs, drawn anew for every image (a plain sum
    would be constant after LayerNorm), and the gradient of the sum by the image is taken. Its
    square, summed over the three channels, is a pixel's mass: on average over signs, the variance
    of the features that white noise on this pixel would make. Each image's masses are divided by
    their sum, and the mean over images is returned.

    Args:
        maps_fn: (model, images) -> feature maps [B, h, w, C]; the central position is (h // 2,
            w // 2).
        model: what `maps_fn` takes.
        images: in [-1, 1].
        batch_size: images at once. The forward pass is kept and pulled back through once a map.
        seed: of the signs.

    Raises:
        DataError: no images.

    Returns:
        f32[L, H, W]; a map sums to 1.

    Source: arXiv:1701.04128, sections 2 and 3 (there of one channel, whose plain gradient it takes;
    its square is ours, because the little that normalisation lets every pixel do would otherwise
    add up to more than what convolutions see).
    """

    def of_batch(model: Any, images: Array, places: Array) -> Array:
        maps, pull = jax.vjp(lambda images: tuple(maps_fn(model, images)), images)
        signs = [_signs(seed, layer, places, m) for layer, m in enumerate(maps)]

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


def _signs(seed: int, layer: int, places: Array, like: Array) -> Array:
    """Returns -1 or 1 for each image and channel, the same whatever batch an image is in."""
    key = jax.random.fold_in(jax.random.key(seed), layer)

    def draw(place: Array) -> Array:
        return jax.random.rademacher(jax.random.fold_in(key, place), like.shape[-1:], jnp.float32)

    return jax.vmap(draw)(places)


def feature_maps(model: ViT | ResNet, images: Array) -> list[Array]:
    """Returns the feature maps [B, h, w, C] that `layers_of` names."""
    if isinstance(model, ResNet):
        return list(model.trunk(images).values())
    stem = [] if model.stem is None else list(model.stem(images).values())
    _, found = model(images, return_intermediates=("embedded", "block_output"))
    tokens = [found["embedded"], *found["block_output"]]
    grids = [t[:, model.num_prefix :].reshape(len(t), *model.grid, -1) for t in tokens]
    return [*stem, *grids]


def layers_of(
    model: ViT | ResNet, image_size: tuple[int, int]
) -> tuple[list[str], list[int], list[Fields]]:
    """Returns the names of the feature maps, their depths, and the fields in a CNN of that depth.

    Args:
        model: any.
        image_size: (height, width) in pixels.
    """
    trunk: Trunk | None = model.trunk if isinstance(model, ResNet) else model.stem
    names: list[str] = []
    depth: list[int] = []
    fields: list[Fields] = []
    if trunk is not None:
        down, across = (trunk_fields(trunk, side) for side in image_size)
        for name, (field, units) in down.items():
            names.append(name)
            depth.append(units)
            fields.append((field, across[name][0]))
    if isinstance(model, ResNet):
        return names, depth, fields
    units = depth[-1] if depth else 0
    size = model.patch_embedding.patch_size
    start = fields[-1] if fields else (Field(), Field())
    cut = tuple(field.then(size, size) for field in start)
    assert all(field.step == step for field, step in zip(cut, pixels_per_patch(model), strict=True))
    pair = (cut[0], cut[1])
    for block in range(model.encoder.depth + 1):
        names.append(f"block {block}" if block else "embedding")
        depth.append(units + block)
        fields.append(pair)
        pair = (pair[0].then(3, before=1), pair[1].then(3, before=1))
    return names, depth, fields
