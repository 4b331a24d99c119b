"""Patches: their size, and the embedding of images or feature maps as tokens."""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from vit_jax.models.activation_sharding import constrain


class PatchShape:
    """Base of the sizes of model families that cut images into patches.

    Attributes:
        patch_size: height and width of a patch in pixels.
    """

    patch_size: int

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

    Source: arXiv:2010.11929, equation 1.
    """

    def __init__(
        self, patch_size: int, channels: int, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ):
        shape = (patch_size, patch_size, channels, width)
        self.kernel = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), shape, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width))
        self.patch_size = patch_size
        self.dtype = dtype

    def __call__(
        self, images: Float[Array, "B H W C"], visible: Int[Array, "B V"] | None = None
    ) -> Float[Array, "B N D"]:
        """Returns the embedded patches in raster order, or those in `visible` in its order."""
        patches = cut_patches(images, self.patch_size)
        if visible is not None:
            patches = take_patches(patches, visible)
        kernel = self.kernel[...].reshape(patches.shape[2], -1)
        embedded = constrain(patches.astype(self.dtype) @ kernel.astype(self.dtype), "batch")
        return embedded + self.bias[...].astype(self.dtype)[None, None]


def cut_patches(images: Float[Array, "B H W C"], size: int) -> Float[Array, "B N F"]:
    """Returns the patches in raster order, each with its pixels in raster order.

    Args:
        images: height and width are multiples of `size`.
        size: P, height and width of a patch; F is P * P * C.
    """
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
