"""Patches: their size, and the embedding of images or feature maps as tokens."""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

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

    def __call__(self, images: Float[Array, "B H W C"]) -> Float[Array, "B N D"]:
        """Returns the embedded patches in raster order."""
        batch, height, width, channels = images.shape
        p = self.patch_size
        patches = images.reshape(batch, height // p, p, width // p, p, channels)
        patches = patches.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, p * p * channels)
        kernel = self.kernel[...].reshape(p * p * channels, -1)
        embedded = constrain(patches.astype(self.dtype) @ kernel.astype(self.dtype), "batch")
        return embedded + self.bias[...].astype(self.dtype)[None, None]
