"""What happens to a batch on the device, inside the step: scaling, flips, mixup, CutMix.

Images travel as uint8, a quarter of the bytes of float32.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt8

from vit_jax.config import MixingConfig

Batch = dict[str, Array]


def to_unit_range(images: UInt8[Array, "B H W 3"]) -> Float[Array, "B H W 3"]:
    """Returns u8 images as f32 in [-1, 1]."""
    return images.astype(jnp.float32) / 127.5 - 1


def flip(images: Float[Array, "B H W 3"], key: jax.Array) -> Float[Array, "B H W 3"]:
    """Mirrors each image left to right with probability 1/2."""
    chosen = jax.random.bernoulli(key, 0.5, (images.shape[0], 1, 1, 1))
    return jnp.where(chosen, images[:, :, ::-1], images)


def mixup(
    images: Float[Array, "B H W 3"], labels: Float[Array, "B C"], share: Float[Array, ""]
) -> tuple[Float[Array, "B H W 3"], Float[Array, "B C"]]:
    """Blends each example with the one before it: share * x + (1 - share) * x_before.

    Source: arXiv:1710.09412, equation 1; one share for the whole batch.
    """
    images = share * images + (1 - share) * jnp.roll(images, 1, axis=0)
    return images, share * labels + (1 - share) * jnp.roll(labels, 1, axis=0)


def cutmix(
    images: Float[Array, "B H W 3"],
    labels: Float[Array, "B C"],
    share: Float[Array, ""],
    key: jax.Array,
) -> tuple[Float[Array, "B H W 3"], Float[Array, "B C"]]:
    """Pastes a box of about (1 - share) of the area from the example before; labels by true area.

    Source: arXiv:1905.04899, equations 1 and 2; one box for the whole batch.
    """
    inside = cutmix_box(images.shape[1], images.shape[2], share, key)
    images = jnp.where(inside[None, :, :, None], jnp.roll(images, 1, axis=0), images)
    kept = 1 - jnp.mean(inside, dtype=jnp.float32)
    return images, kept * labels + (1 - kept) * jnp.roll(labels, 1, axis=0)


def cutmix_box(
    height: int, width: int, share: Float[Array, ""], key: jax.Array
) -> Bool[Array, "H W"]:
    """Returns the mask of a box with sides sqrt(1 - share) of the image's, cut at its border."""
    key_y, key_x = jax.random.split(key)
    side = jnp.sqrt(1 - share)

    def span(length: int, key: jax.Array) -> Bool[Array, " L"]:
        centre = jax.random.randint(key, (), 0, length)
        half = jnp.floor(side * length / 2).astype(jnp.int32)
        position = jnp.arange(length)
        return (position >= centre - half) & (position < centre + half)

    return span(height, key_y)[:, None] & span(width, key_x)[None, :]


def mix(
    images: Float[Array, "B H W 3"],
    labels: Int[Array, " B"],
    *,
    num_classes: int,
    config: MixingConfig,
    key: jax.Array,
) -> tuple[Float[Array, "B H W 3"], Int[Array, " B"] | Float[Array, "B C"]]:
    """Applies mixup, CutMix, or one of the two by a coin where both are on.

    Args:
        images: in [-1, 1].
        labels: class indices.
        num_classes: C.
        config: alphas.
        key: random key.

    Returns:
        Images and labels; labels are f32[B, C] where anything was mixed, else unchanged.
    """
    if not (config.mixup_alpha or config.cutmix_alpha):
        return images, labels
    key_coin, key_mixup, key_cutmix, key_box = jax.random.split(key, 4)
    one_hot = jax.nn.one_hot(labels, num_classes)

    def with_mixup(images, labels):
        share = jax.random.beta(key_mixup, config.mixup_alpha, config.mixup_alpha)
        return mixup(images, labels, share)

    def with_cutmix(images, labels):
        share = jax.random.beta(key_cutmix, config.cutmix_alpha, config.cutmix_alpha)
        return cutmix(images, labels, share, key_box)

    if not config.cutmix_alpha:
        return with_mixup(images, one_hot)
    if not config.mixup_alpha:
        return with_cutmix(images, one_hot)
    coin = jax.random.bernoulli(key_coin)
    return jax.lax.cond(coin, with_cutmix, with_mixup, images, one_hot)
