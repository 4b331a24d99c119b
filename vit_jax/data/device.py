"""Batches of images on the device.

Images are copied to the device as uint8, a quarter of the bytes of float32. All operations on them
are element-wise, so XLA fuses them into one pass over the batch. Random numbers depend on an
example's position in the global batch, not on how the batch is sharded over devices and hosts.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

# Name -> array. In a prepared batch, `image` is what the model takes: images or `Patches`.
Batch = dict[str, Any]

# Mean and deviation of the channels of ImageNet's images, in [0, 1].
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_MEAN, _DEVIATION = (
    np.array(part, np.float32).reshape(1, 1, 1, 3) for part in (IMAGENET_MEAN, IMAGENET_DEVIATION)
)


def to_unit_range(images: UInt8[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Scales linearly to [-1, 1], without a mean or deviation, as the ViT papers' models expect."""
    return images.astype(jnp.float32) / 127.5 - 1


def to_imagenet(images: Float[Array, "B H W 3"]) -> Float[Array, "B H W 3"]:
    """Normalises images in [-1, 1] by ImageNet's mean and deviation."""
    return ((images + 1) / 2 - _MEAN) / _DEVIATION


def from_imagenet(images: Float[Array, "B H W 3"]) -> Float[Array, "B H W 3"]:
    """Undoes `to_imagenet`."""
    return (images * _DEVIATION + _MEAN) * 2 - 1
