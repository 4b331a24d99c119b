"""Patches: their size, and the embedding of images or feature maps as tokens."""

import functools

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from vit_jax.models.activation_sharding import constrain


class PatchShape:
    """Base of the sizes of model families that cut images into patches."""

    patch_size: int  # In pixels.

    @property
    def stride(self) -> int:
        """Pixels between neighbouring patches."""
        return self.patch_size

    @property
    def image_multiple(self) -> int:
        """Image sides must be divisible by this."""
        return self.stride


class PatchEmbedding(nnx.Module):
    """Cuts an image or a feature map of C channels into patches and projects each of them linearly.

    The kernel [P, P, C, D] has the shape of a convolution's kernel, but is applied as one matmul.
    If it is stored for another patch size, `stored_size`, it is resized first.

    Source: arXiv:2010.11929, equation 1; stored kernels: arXiv:2212.08013, section 3.4.
    """

    def __init__(
        self,
        patch_size: int,
        channels: int,
        width: int,
        *,
        stored_size: int | None = None,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        stored = stored_size or patch_size
        shape = (stored, stored, channels, width)
        self.kernel = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), shape, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width))
        self.patch_size = patch_size
        self.dtype = dtype

    def __call__(self, images: Float[Array, "B H W C"]) -> Float[Array, "B N D"]:
        """Returns the embedded patches in raster order."""
        return self.of_patches(cut_patches(images, self.patch_size))

    def of_patches(self, patches: Float[Array, "B N F"]) -> Float[Array, "B N D"]:
        """Returns the embeddings of patches whose pixels are flattened: rows, columns, colours."""
        kernel = self._kernel().reshape(patches.shape[-1], -1)
        embedded = constrain(patches.astype(self.dtype) @ kernel.astype(self.dtype), "batch")
        return embedded + self.bias[...].astype(self.dtype)[None, None]

    def _kernel(self) -> Float[Array, "P P C D"]:
        """Returns the kernel for the patch size of this model."""
        kernel = self.kernel[...]
        if kernel.shape[0] == self.patch_size:
            return kernel
        resize = jnp.asarray(kernel_resize_matrix(kernel.shape[0], self.patch_size), jnp.float32)
        return jnp.einsum("pi,qj,ijcd->pqcd", resize, resize, kernel, precision="highest")


@functools.cache
def kernel_resize_matrix(old: int, new: int) -> Float[np.ndarray, "n o"]:
    """Returns the matrix M, f64, that resizes a patch kernel by pseudo-inverse (PI-resize).

    The new kernel is M w M^T. Applied to bilinearly resized patches, it gives the same embedding as
    the old kernel w applied to the original patches: exactly if `new` is larger, in the
    least-squares sense if it is smaller. M is the pseudo-inverse of R^T, where R resizes one axis.

    Source: arXiv:2212.08013 (FlexiViT), section 3.4.

    >>> kernel_resize_matrix(1, 2)  # An upscaled pixel fills both places, so each has half.
    array([[0.5],
           [0.5]])
    """
    # Weights of bilinear resizing along one axis, without antialiasing, and clamped at the ends.
    places = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    resize = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(old)))
    return np.linalg.pinv(resize.T)


def cut_patches(images: Float[Array, "B H W C"], size: int) -> Float[Array, "B N F"]:
    """Returns patches in raster order, as their pixels; image sides are multiples of `size`."""
    batch, height, width, channels = images.shape
    patches = images.reshape(batch, height // size, size, width // size, size, channels)
    return patches.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, size * size * channels)


def take_patches(
    patches: Float[Array, "B N F"], places: Int[Array, "B V"]
) -> Float[Array, "B V F"]:
    """Returns some patches of each image.

    If an image's places differ, the gradient of each patch is a copy and not a sum, so that its
    value does not depend on the order in which a device adds.
    """
    return constrain(jnp.take_along_axis(patches, places[..., None], axis=1), "batch")
