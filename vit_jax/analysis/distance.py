"""Mean attention distance of each head, in pixels (arXiv:2010.11929, Figures 7 and 11)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.figure import Figure
from rich.table import Table

from vit_jax.analysis.batches import check_attention, map_attention, map_batches, pixels_per_patch
from vit_jax.analysis.output import BLUE, GRAY, ORANGE, Output, Row, arrays_of, digits, style_axes
from vit_jax.models.family import ImageModel
from vit_jax.tables import plain_table


@dataclasses.dataclass(frozen=True)
class AttentionDistance:
    """Mean attention distances of all heads.

    Attributes:
        per_image: f32[M, L, H], pixels, for M images, L layers and H heads.
        prefix_share: f32[L, H], fraction of the patches' attention on class token and registers; 0
            without them. They have no position, so the distance ignores them.
        uniform: distance of a head that attends to all patches equally, in pixels.
        image_size: (height, width) in pixels.
    """

    per_image: Float[np.ndarray, "M L H"]
    prefix_share: Float[np.ndarray, "L H"]
    uniform: float
    image_size: tuple[int, int]

    @property
    def mean(self) -> Float[np.ndarray, "L H"]:
        """Mean over the images, in pixels: the dots of Figure 7, right."""
        return self.per_image.mean(0)

    @property
    def standard_error(self) -> Float[np.ndarray, "L H"]:
        """Standard error of `mean` over the images, in pixels; 0 for one image."""
        count = len(self.per_image)
        return self.per_image.std(0, ddof=min(count - 1, 1)) / np.float32(np.sqrt(count))

    @property
    def minus_uniform(self) -> Float[np.ndarray, "L H"]:
        """`mean` minus the distance of uniform attention, in pixels; negative: more local."""
        return self.mean - np.float32(self.uniform)


def patch_distances(grid: tuple[int, int], patch_size: tuple[int, int]) -> Float[np.ndarray, "P P"]:
    """Returns the Euclidean distances between the centres of all patches, in pixels.

    >>> patch_distances((1, 3), (16, 16))[0].tolist()
    [0.0, 16.0, 32.0]
    """
    centres = np.indices(grid).reshape(2, -1).T * np.asarray(patch_size)
    offsets = centres[:, None] - centres[None]
    return np.sqrt(np.square(offsets).sum(-1)).astype(np.float32)


def mean_distances(
    weights: Float[Array, "B H N N"] | Float[np.ndarray, "B H N N"],
    distances: Float[Array, "P P"] | Float[np.ndarray, "P P"],
) -> tuple[Float[Array, "B H"], Float[Array, "B H"]]:
    """Returns the mean attention distance, and the share of attention on class token and registers.

    Queries and keys are patches. The weights of a query are divided by their sum over the patches,
    so that attention to the first N - P tokens (class token and registers) does not change the
    distance. A patch's attention to itself has distance 0. A query without any attention to patches
    has distance 0. The weights are query by key, and rows sum to 1. Both results are means over
    patches, the distance in the unit of `distances`.
    """
    patches = distances.shape[0]
    weights = jnp.asarray(weights)
    to_patches = weights[..., -patches:, -patches:]
    total = to_patches.sum(-1)
    mean_distance = jnp.einsum("bhnm,nm->bhn", to_patches, jnp.asarray(distances))
    mean_distance = jnp.where(total > 0, mean_distance / jnp.where(total > 0, total, 1), 0)
    prefix = weights[..., -patches:, : weights.shape[-1] - patches].sum((-1, -2)) / patches
    return mean_distance.mean(-1), prefix


def attention_distance(
    model: ImageModel, images: Float[np.ndarray, "M H W 3"], *, batch_size: int = 16
) -> AttentionDistance:
    """Returns the mean attention distance of every head.

    The attention weights are computed in addition to the model's own attention kernel and reduced
    inside the loop over the layers, so only one layer's weights for one batch are in memory. In a
    hybrid, a token's position is the centre of its image region.

    Args:
        model: a ViT or hybrid.
        images: in [-1, 1], of the model's size. The paper uses 128 images.
        batch_size: number of images at a time.

    Raises:
        ModelError: the model has no attention, or the images have another size.
        DataError: there are no images.

    Source: arXiv:2010.11929, section 4.5 and D.7.
    """
    check_attention(model, "distance")
    distances = patch_distances(model.grid, pixels_per_patch(model))

    def reduce(weights: jax.Array) -> jax.Array:
        return jnp.stack(mean_distances(weights, distances), axis=1)

    def per_image(model: Any, images: jax.Array, indices: jax.Array) -> jax.Array:
        del indices
        return jnp.moveaxis(map_attention(model, images, reduce)[0], 0, 2)

    found = map_batches(per_image, model, images, batch_size)
    return AttentionDistance(
        found[:, 0], found[:, 1].mean(0), float(distances.mean()), model.image_size
    )


def distance_output(found: AttentionDistance) -> Output:
    """Returns the picture, tables and summary of `attention_distance`."""
    count = len(found.per_image)
    return Output(
        draw_distance(found),
        {**arrays_of(found), "minus_uniform": found.minus_uniform},
        _rows(found),
        f"mean attention distance in pixels, {count} images; uniform attention to all"
        f" patches: {found.uniform:.1f}",
        _table(found),
    )


def _rows(found: AttentionDistance) -> list[Row]:
    mean, error, share = found.mean, found.standard_error, found.prefix_share
    difference = found.minus_uniform
    return [
        {
            "layer": layer + 1,
            "head": head + 1,
            "distance_px": digits(mean[layer, head]),
            "standard_error_px": digits(error[layer, head]),
            "minus_uniform_px": digits(difference[layer, head]),
            "prefix_share": digits(share[layer, head]),
        }
        for layer, head in np.ndindex(mean.shape)
    ]


def _table(found: AttentionDistance) -> Table:
    has_prefix = bool(found.prefix_share.any())
    columns = ("nearest head", "mean", "farthest head", "minus uniform")
    columns += ("not on patches",) if has_prefix else ()
    table = plain_table("layer", right=columns)
    for layer, (heads, shares) in enumerate(zip(found.mean, found.prefix_share, strict=True)):
        cells = [f"{value:.1f}" for value in (heads.min(), heads.mean(), heads.max())]
        cells.append(f"{heads.mean() - found.uniform:+.1f}")
        table.add_row(str(layer + 1), *cells, *([f"{shares.mean():.1%}"] if has_prefix else []))
    return table


def draw_distance(found: AttentionDistance) -> Figure:
    """Draws one dot per head and layer, and the share of attention on class token and registers."""
    mean, share = found.mean, found.prefix_share
    panels = 2 if share.any() else 1
    figure = Figure(figsize=(4.4 * panels, 3.5), layout="constrained")
    all_axes = figure.subplots(1, panels, squeeze=False)[0]
    layers = np.arange(1, len(mean) + 1)
    axes = all_axes[0]
    axes.plot(layers, mean, "o", color=BLUE, markersize=4.5, alpha=0.65, markeredgewidth=0)
    axes.plot([], [], "o", color=BLUE, markersize=4.5, label="one head")
    axes.plot(layers, mean.mean(1), color=ORANGE, linewidth=1.5, label="mean of the heads")
    axes.axhline(found.uniform, color=GRAY, linestyle="--", linewidth=1, label="uniform attention")
    axes.set(ylabel="mean attention distance (pixels)")
    axes.set_ylim(0, max(mean.max(), found.uniform) * 1.08)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    if panels == 2:
        all_axes[1].plot(
            layers, share, "o", color=BLUE, markersize=4.5, alpha=0.65, markeredgewidth=0
        )
        all_axes[1].set(ylabel="share on class token and registers")
        all_axes[1].set_ylim(0, max(share.max() * 1.08, 0.02))
    for axes in all_axes:
        style_axes(axes)
        axes.set(xlabel="network depth (layer)", xlim=(0.4, len(mean) + 0.6))
        axes.set_xticks(layers[:: math.ceil(len(layers) / 13)])
    height, width = found.image_size
    figure.suptitle(
        f"Attention distance, {height} x {width} pixels, {len(found.per_image)} images", fontsize=10
    )
    return figure
