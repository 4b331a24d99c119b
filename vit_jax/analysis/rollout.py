"""Attention rollout: how much each input patch contributes to the output.

Source: arXiv:2010.11929, Figures 6 and 14.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8
from matplotlib.figure import Figure
from PIL import Image

from vit_jax.analysis.batches import check_attention, map_attention, map_batches
from vit_jax.analysis.output import Output, arrays_of, digits
from vit_jax.models.family import ImageModel

_IMAGES_PER_ROW = 8
# Pooling -> description of the output tokens of the maps.
_VIEWS = {
    "token": "class token",
    "gap": "mean of the patches",
    "map": "pooling probe",
    "flatten": "mean of the patches",
}


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Attention traced from the output back to the patches.

    Attributes:
        matrices: f32[M, N, N]; element [m, i, j] is the share of input token j in output token i.
            Class token and registers come first. Rows sum to 1.
        maps: f32[M, R, C], the share of each patch in the vector that the head classifies. A map
            sums to at most 1; the rest belongs to class token and registers.
        view: description of the output tokens of the maps, e.g. "class token".
    """

    matrices: Float[np.ndarray, "M N N"]
    maps: Float[np.ndarray, "M R C"]
    view: str


def rollout(
    weights: Float[Array, "L B N N"] | Float[np.ndarray, "L B N N"],
) -> Float[Array, "B N N"]:
    """Returns the product over the layers of (attention + identity) / 2.

    The identity stands for the residual connection.

    Args:
        weights: attention weights, query by key, mean over heads; first layer first.

    Source: arXiv:2005.00928, section 3; with heads averaged as in arXiv:2010.11929, D.8.
    """
    weights = jnp.asarray(weights)
    identity = jnp.eye(weights.shape[-1], dtype=weights.dtype)

    def step(product: jax.Array, layer: jax.Array) -> tuple[jax.Array, None]:
        mixed = 0.5 * layer + 0.5 * identity[None]
        return jnp.matmul(mixed, product, precision="highest"), None

    start = jnp.broadcast_to(identity, weights.shape[1:])
    return jax.lax.scan(step, start, weights)[0]


def attention_rollout(
    model: ImageModel, images: Float[np.ndarray, "M H W 3"], *, batch_size: int = 8
) -> Rollout:
    """Returns the attention rollout of images in [-1, 1], of the model's size.

    An image's map is the rollout row of the vector that the head classifies. It depends on the
    pooling:

    - "token": the row of the class token.
    - "gap" and "flatten": the mean of the patches' rows. For "flatten" this ignores the weights of
      the head, which differ between patches.
    - "map": the mean of the patches' rows, weighted by the attention of the probe.

    The map does not include class token and registers. Heads are averaged inside the loop over the
    layers, so [L, B, N, N] weights are in memory.
    """
    check_attention(model, "rollout")
    vit: Any = model  # Every model with attention has `pooling`.

    def heads_mean(weights: jax.Array) -> jax.Array:
        return weights.mean(1)

    def follow(model: Any, images: jax.Array, indices: jax.Array) -> tuple[jax.Array, jax.Array]:
        del indices
        weights, encoded = map_attention(model, images, heads_mean)
        matrices = rollout(weights)
        return matrices, _pooled_row(model, matrices, encoded)

    matrices, rows = map_batches(follow, model, images, batch_size)
    maps = rows[:, model.num_prefix :].reshape(-1, *model.grid)
    return Rollout(matrices, maps, _VIEWS[vit.pooling])


def _pooled_row(
    model: Any, matrices: Float[Array, "B N N"], encoded: Float[Array, "B N D"]
) -> Float[Array, "B N"]:
    """Returns the rollout row of the vector that the head classifies."""
    if model.pooling == "token":
        return matrices[:, 0]
    rows = matrices[:, model.num_prefix :]
    if model.attention_pooling is None:
        return rows.mean(1)
    probe = model.attention_pooling.weights(encoded[:, model.num_prefix :]).mean(1)
    return jnp.einsum("bn,bnm->bm", probe, rows, precision="highest")


def rollout_output(found: Rollout, pixels: UInt8[np.ndarray, "M H W 3"]) -> Output:
    """Returns the picture, table and summary of `attention_rollout` of these images."""
    peaks = found.maps.max((1, 2)) * found.maps[0].size
    return Output(
        draw_rollout(found, pixels),
        arrays_of(found),
        [
            {"image": image, "row": row, "column": column, "share": digits(share)}
            for (image, row, column), share in np.ndenumerate(found.maps)
        ],
        f"attention of the {found.view}, {len(found.maps)} images; the strongest patch"
        f" has {peaks.min():.1f} to {peaks.max():.1f} times the mean share",
    )


def draw_rollout(found: Rollout, pixels: UInt8[np.ndarray, "M H W 3"]) -> Figure:
    """Draws each image, after preprocessing, above its rollout.

    The second row shows the image multiplied by the map over its maximum, as in Figure 6. The third
    row shows the map itself, with its smallest and largest value in percent below it.
    """
    columns = min(len(pixels), _IMAGES_PER_ROW)
    groups = math.ceil(len(pixels) / columns)
    aspect = pixels.shape[1] / pixels.shape[2]
    tile = max(1.25, 2.6 / columns)
    figure = Figure(figsize=(0.5 + tile * columns, groups * (0.35 + 3 * tile * aspect) + 0.5))
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02, wspace=0, hspace=0.02)
    panels = figure.subplots(3 * groups, columns, squeeze=False)
    for axes in panels.ravel():
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for number, (image, share) in enumerate(zip(pixels, found.maps, strict=True)):
        group, column = divmod(number, columns)
        mask = _resize_mask(share / max(float(share.max()), 1e-12), image.shape[:2])
        dimmed = np.clip(image * mask[..., None], 0, 255).astype(np.uint8)
        top, middle, bottom = panels[3 * group : 3 * group + 3, column]
        top.imshow(image, interpolation="bilinear")
        middle.imshow(dimmed, interpolation="bilinear")
        bottom.imshow(share, cmap="magma", interpolation="nearest")
        bottom.set_aspect(aspect * share.shape[1] / share.shape[0])
        low, high = 100 * float(share.min()), 100 * float(share.max())
        bottom.set_xlabel(f"{low:.2g} to {high:.2g} %", fontsize=7, labelpad=2)
    for group in range(groups):
        for row, text in enumerate(("input", "attention", "share")):
            panels[3 * group + row, 0].set_ylabel(text, fontsize=8)
    between = " " if columns > 3 else "\n"
    figure.suptitle(f"Attention rollout{between}of the {found.view}", fontsize=10)
    return figure


def _resize_mask(mask: Float[np.ndarray, "R C"], size: tuple[int, int]) -> Float[np.ndarray, "H W"]:
    image = Image.fromarray(np.asarray(mask, np.float32))
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BILINEAR))
