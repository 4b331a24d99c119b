"""What the first layer sees: principal components of its RGB filters (Figure 7, left)."""

import dataclasses

import numpy as np
from jaxtyping import Float
from sklearn.decomposition import PCA

from vit_jax.models.resnet import ResNet, StandardizedConv
from vit_jax.models.vit import ViT

# As many as the paper shows.
COMPONENTS = 28


@dataclasses.dataclass(frozen=True)
class EmbeddingFilters:
    """Principal components of the filters that a model's first layer lays over the image.

    Attributes:
        components: f32[K, P, Q, 3], orthonormal, most variance first; of each the sign that makes
            its entry of largest magnitude positive.
        variance_share: f32[K]: of the filters' variance, what each component holds.
        layer: "patch embedding", or "root convolution" of a hybrid or ResNet.
        filters: D, how many filters the layer has.
    """

    components: Float[np.ndarray, "K P Q 3"]
    variance_share: Float[np.ndarray, " K"]
    layer: str
    filters: int


def principal_components(
    kernel: Float[np.ndarray, "P Q 3 D"], count: int
) -> tuple[Float[np.ndarray, "K P Q 3"], Float[np.ndarray, " K"]]:
    """Returns the first components of D filters about their mean, and their shares of variance.

    Args:
        kernel: a filter a column.
        count: K, or fewer where the filters have fewer dimensions.
    """
    filters = np.asarray(kernel, np.float64).reshape(-1, kernel.shape[-1]).T
    pca = PCA(min(count, *filters.shape), svd_solver="full").fit(filters)
    found = np.asarray(pca.components_)
    largest = np.take_along_axis(found, np.abs(found).argmax(1, keepdims=True), axis=1)
    found = found * np.where(largest < 0, -1, 1)
    shape = (-1, *kernel.shape[:-1])
    return found.reshape(shape).astype(np.float32), pca.explained_variance_ratio_.astype(np.float32)


def embedding_filters(model: ViT | ResNet, count: int = COMPONENTS) -> EmbeddingFilters:
    """Returns the principal components of the filters that a model lays over RGB images.

    These are the patch embedding's; of hybrids and ResNets, whose patches or blocks never see the
    image, those of the root convolution, standardised as they are applied.

    Args:
        model: any.
        count: K, how many to return at most.

    Source: arXiv:2010.11929, section 4.5.
    """
    trunk = model.trunk if isinstance(model, ResNet) else model.stem
    if trunk is None:
        assert isinstance(model, ViT)
        kernel, layer = np.asarray(model.patch_embedding.kernel[...]), "patch embedding"
    else:
        root: StandardizedConv = trunk.conv_root
        kernel, layer = np.asarray(root.style.standardize(root.kernel[...])), "root convolution"
    components, share = principal_components(kernel, count)
    return EmbeddingFilters(components, share, layer, kernel.shape[-1])


def as_images(components: Float[np.ndarray, "K P Q 3"]) -> Float[np.ndarray, "K P Q 3"]:
    """Returns RGB images in [0, 1]: 0 is mid-gray, the largest magnitude of each black or white."""
    most = np.abs(components).max((1, 2, 3), keepdims=True)
    scaled = np.divide(components, most, out=np.zeros_like(components), where=most > 0)
    return np.float32(0.5) * scaled + np.float32(0.5)
