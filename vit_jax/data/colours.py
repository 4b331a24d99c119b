"""Mean patch colours as classes: each channel is quantized to the top bits of its mean."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def colour_classes(images: Float[Array, "B H W 3"], patch: int, bits: int) -> Int[Array, "B N"]:
    """Returns the class of each patch's mean colour, patches in raster order.

    Images are in [-1, 1], with 256 levels. A channel with mean m in 0 to 255 has the level
    floor(m * 2^bits / 256). The class is (red * 2^bits + green) * 2^bits + blue. Sums are integers,
    so that a mean on the border between two levels gets the same level on every device and in every
    batch.

    Source: arXiv:2010.11929, B.1.2 (3 bits: 512 colours).
    """
    batch, height, width, _ = images.shape
    pixels = jnp.round((images.astype(jnp.float32) + 1) * 127.5).astype(jnp.int32)
    tiles = pixels.reshape(batch, height // patch, patch, width // patch, patch, 3)
    sums = tiles.sum((2, 4)).reshape(batch, -1, 3)
    levels = jnp.minimum((sums // patch**2) >> (8 - bits), 2**bits - 1)
    return (levels[..., 0] * 2**bits + levels[..., 1]) * 2**bits + levels[..., 2]


def colours_of_classes(classes: Int[np.ndarray, "*N"], bits: int) -> Float[np.ndarray, "*N 3"]:
    """Returns the central colour of each class: red, green and blue in 0 to 255.

    >>> colours_of_classes(np.array([0, 511]), 3).tolist()
    [[15.5, 15.5, 15.5], [239.5, 239.5, 239.5]]
    """
    levels = np.stack([(classes >> (bits * place)) & (2**bits - 1) for place in (2, 1, 0)], -1)
    size = 256 // 2**bits
    return levels * size + (size - 1) / 2


def content_key(seed: int, images: jax.Array) -> jax.Array:
    """Returns one random key per u8[H, W, 3] image that depends only on the seed and the pixels."""
    key = jax.random.key(seed)
    weights = jax.random.bits(key, images.shape[1:], jnp.uint32)
    # Integer sums modulo 2^32 are exact in any order.
    sums = jnp.sum(images.astype(jnp.uint32) * weights[None], axis=(1, 2, 3), dtype=jnp.uint32)
    return jax.vmap(lambda number: jax.random.fold_in(key, number))(sums)
