"""Principal components of the filters of the first layer (arXiv:2010.11929, Figure 7, left)."""

import dataclasses
import math

import numpy as np
from flax import nnx
from jaxtyping import Float
from matplotlib.figure import Figure
from sklearn.decomposition import PCA

from vit_jax.analysis.output import Output, arrays_of, digits
from vit_jax.errors import ModelError
from vit_jax.models.family import ImageModel
from vit_jax.models.resnet import StandardizedConv

# Number of components in the paper's figure.
COMPONENTS = 28


@dataclasses.dataclass(frozen=True)
class EmbeddingFilters:
    """Principal components of the filters of a model's first layer.

    Attributes:
        components: f32[K, P, Q, 3], orthonormal, in order of decreasing variance. Signs are chosen
            so that the entry of largest magnitude is positive.
        variance_share: f32[K], fraction of the filters' variance that each component explains.
        layer: "patch embedding", or "root convolution" of a hybrid or ResNet.
        filters: D, number of filters in the layer.
    """

    components: Float[np.ndarray, "K P Q 3"]
    variance_share: Float[np.ndarray, " K"]
    layer: str
    filters: int


def principal_components(
    kernel: Float[np.ndarray, "P Q 3 D"], count: int
) -> tuple[Float[np.ndarray, "K P Q 3"], Float[np.ndarray, " K"]]:
    """Returns the first `count` principal components of D filters and their shares of the variance.

    There are fewer if the filters have fewer dimensions.
    """
    filters = np.asarray(kernel, np.float64).reshape(-1, kernel.shape[-1]).T
    pca = PCA(min(count, *filters.shape), svd_solver="full").fit(filters)
    found = np.asarray(pca.components_)
    largest = np.take_along_axis(found, np.abs(found).argmax(1, keepdims=True), axis=1)
    found = found * np.where(largest < 0, -1, 1)
    shape = (-1, *kernel.shape[:-1])
    return found.reshape(shape).astype(np.float32), pca.explained_variance_ratio_.astype(np.float32)


def embedding_filters(model: ImageModel, count: int = COMPONENTS) -> EmbeddingFilters:
    """Returns the principal components of the filters of a model's first layer.

    The first layer is the patch embedding, or the root convolution of hybrids and ResNets. The
    root's kernel is standardised, as in the forward pass.

    Args:
        model: any model.
        count: K, the largest number of components to return.

    Raises:
        ModelError: no layer of the model has a kernel for RGB images.

    Source: arXiv:2010.11929, section 4.5.
    """
    for _, layer in nnx.iter_modules(model):
        kernel = getattr(layer, "kernel", None)
        if kernel is None or kernel.ndim != 4 or kernel.shape[2] != 3:
            continue
        weights, name = kernel[...], "patch embedding"
        if isinstance(layer, StandardizedConv):
            weights, name = layer.style.standardize(weights), "root convolution"
        components, share = principal_components(np.asarray(weights), count)
        return EmbeddingFilters(components, share, name, kernel.shape[-1])
    raise ModelError(
        f"filters of a {type(model).__name__} without a kernel of shape [P, Q, 3, D]",
        "a model whose first layer takes RGB images",
        "leave filters out",
    )


def filters_output(found: EmbeddingFilters) -> Output:
    """Returns the picture, table and summary of `embedding_filters`."""
    share = found.variance_share
    return Output(
        draw_filters(found),
        arrays_of(found),
        [{"component": k + 1, "variance_share": digits(part)} for k, part in enumerate(share)],
        f"{found.filters} of {'x'.join(map(str, found.components.shape[1:]))}"
        f" ({found.layer}); the first {len(share)} components explain {share.sum():.1%} of their"
        f" variance, the first one {share[0]:.1%}",
    )


def as_images(components: Float[np.ndarray, "K P Q 3"]) -> Float[np.ndarray, "K P Q 3"]:
    """Scales to RGB images in [0, 1]: 0 becomes mid-gray, the largest magnitude black or white."""
    most = np.abs(components).max((1, 2, 3), keepdims=True)
    scaled = np.divide(components, most, out=np.zeros_like(components), where=most > 0)
    return np.float32(0.5) * scaled + np.float32(0.5)


def draw_filters(found: EmbeddingFilters) -> Figure:
    """Draws the principal components as RGB images, in rows of seven."""
    tiles = as_images(found.components)
    count, side = len(tiles), tiles.shape[1]
    columns = min(7, count)
    rows = math.ceil(count / columns)
    white = np.ones((rows * columns, *tiles.shape[1:]), np.float32)
    white[:count] = tiles
    # Each pixel of a filter is drawn as several pixels, so that gaps can be narrower than one.
    fine = max(1, 12 // side)
    white = white.repeat(fine, axis=1).repeat(fine, axis=2)
    gap = max(1, side * fine // 10)
    picture = mosaic(white.reshape(rows, columns, *white.shape[1:]), gap, 1.0)
    figure = Figure(figsize=(4.2, 0.5 + 4.2 * picture.shape[0] / picture.shape[1]))
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    axes.imshow(picture, interpolation="nearest")
    axes.set_axis_off()
    kind = "RGB embedding filters" if found.layer == "patch embedding" else "RGB root filters"
    axes.set_title(f"{kind}\n(first {count} principal components)", fontsize=10)
    return figure


def mosaic(
    tiles: Float[np.ndarray, "R C h w *rest"], gap: int, fill: float
) -> Float[np.ndarray, "H W *rest"]:
    """Joins tiles to one image with `gap` rows and columns of `fill` between them."""
    rows, columns, height, width, *rest = tiles.shape
    down, across = height + gap, width + gap
    held = np.full((rows * down - gap, columns * across - gap, *rest), fill, np.float32)
    for row in range(rows):
        for column in range(columns):
            top, left = row * down, column * across
            held[top : top + height, left : left + width] = tiles[row, column]
    return held
