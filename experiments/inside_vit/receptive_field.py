"""Effective receptive field of each layer, compared with a CNN of the same depth.

    python -m experiments.inside_vit.receptive_field runs/quickstart [--output=FOLDER]
    python -m experiments.inside_vit.receptive_field B_16.npz --images PHOTOS --num_images=16

The table has the side in pixels of the smallest square around the central position that contains
95 % of the gradient mass, the theoretical side of a CNN of the same depth (`fields.MapLayer`), and
the share of the mass beyond it. In a ResNet a little of it is beyond the field of the convolutions,
because group normalisation uses all positions. `--output` adds a picture.

Source: arXiv:1701.04128, sections 2 and 3. The paper uses one channel and the gradient itself. The
square is ours: normalisation layers give every pixel a small gradient, and summed over all pixels
these gradients would exceed those inside the field of the convolutions.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.inside_vit.fields import layers_of
from experiments.inside_vit.inputs import run
from vit_jax.analysis.batches import map_batches
from vit_jax.analysis.images import Images
from vit_jax.analysis.output import BLUE, GRAY, ORANGE, style_axes
from vit_jax.models.family import ImageModel

# As within two standard deviations of a Gaussian.
SHARE = 0.95


def gradient_maps(
    maps_fn: Callable[[Any, Array], Sequence[Array]],
    model: Any,
    images: Float[np.ndarray, "M H W 3"],
    batch_size: int = 4,
    seed: int = 0,
) -> Float[np.ndarray, "L H W"]:
    """Returns how much each pixel changes the central position of each map; a map sums to 1.

    The features at position (h // 2, w // 2) are added with random signs, drawn separately for each
    image. (A plain sum would be constant after LayerNorm.) The squared gradient of the sum with
    respect to a pixel, added over its channels, is the pixel's mass. Its mean over signs is the
    variance of the features under white noise on this pixel. The masses of an image are divided by
    their sum; the result is their mean over images.
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


def extent(
    mass: Float[np.ndarray, "H W"], centre: tuple[float, float], side: int
) -> tuple[float, float]:
    """Returns the side of the square about a centre with 95 % of the mass, and the share beyond."""
    rows, columns = (np.abs(np.arange(n) - c) for n, c in zip(mass.shape, centre, strict=True))
    squares = 2 * np.maximum(rows[:, None], columns[None]) + 1
    sides, which = np.unique(squares, return_inverse=True)
    held = np.cumsum(np.bincount(which.ravel(), weights=mass.ravel().astype(np.float64)))
    effective = sides[np.searchsorted(held, SHARE * held[-1])]
    inside = held[np.searchsorted(sides, side + 1e-6, side="right") - 1] / held[-1]
    return float(min(effective, max(mass.shape))), float(1 - inside)


def receptive_field(
    model: ImageModel, images: Float[np.ndarray, "M H W 3"], batch_size: int = 4, seed: int = 0
) -> tuple[pd.DataFrame, Float[np.ndarray, "L H W"]]:
    """Returns a row for each layer, and its gradient map."""
    layers = layers_of(model)
    keys = [layer.layer for layer in layers]

    def maps(model: ImageModel, images: Array) -> Sequence[Array]:
        return model.features(images, keys)

    mass = gradient_maps(maps, model, images, batch_size, seed)
    rows = []
    for layer, found in zip(layers, mass, strict=True):
        side = max(field.side for field in layer.fields)
        extents = extent(found, layer.centre(model.image_size), side)
        rows.append((layer.name, layer.depth, side, *extents))
    columns = ["layer", "depth", "convolutional_side_px", "effective_side_px", "mass_beyond"]
    return pd.DataFrame(rows, columns=columns), mass


def draw(table: pd.DataFrame, mass: Float[np.ndarray, "L H W"]) -> Figure:
    """Draws the sides against depth, and the gradient maps of at most six layers."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    grid = figure.add_gridspec(2, 6)
    axes: Axes = figure.add_subplot(grid[:, :3])
    longest = max(mass.shape[1:])
    depth, label = table["depth"], "CNN of that depth, theoretical"
    axes.plot(depth, table["effective_side_px"], "o-", color=BLUE, label="effective (95 %)")
    axes.plot(depth, table["convolutional_side_px"], "s--", color=ORANGE, label=label)
    axes.axhline(longest, color=GRAY, linewidth=1, linestyle=":", label="image")
    axes.set(xlabel="depth", ylabel="side of receptive field (pixels)", ylim=(0, 1.6 * longest))
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    style_axes(axes)
    layers = np.unique(np.linspace(0, len(mass) - 1, 6).round().astype(int))
    for place, layer in enumerate(layers):
        panel = figure.add_subplot(grid[place // 3, 3 + place % 3])
        panel.imshow(np.sqrt(mass[layer]), cmap="magma", vmin=0)
        name, side = table.loc[layer, ["layer", "effective_side_px"]]
        panel.set(xticks=[], yticks=[], title=f"{name}: {side:.0f} px")
    return figure


def measure(model: ImageModel, images: Images, args: argparse.Namespace) -> pd.DataFrame:
    """Returns the table of `receptive_field` and writes its picture."""
    table, mass = receptive_field(model, images.normalized, args.batch_size, args.seed)
    if args.output is not None:
        draw(table, mass).savefig(args.output / "receptive_field.png", dpi=160)
    return table


if __name__ == "__main__":
    run("receptive_field", measure, num_images=16)
