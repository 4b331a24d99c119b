"""Augmentation on the device, inside the training step: scaling, flips, erasing, mixup, CutMix.

Images are copied to the device as uint8, a quarter of the bytes of float32. All operations are
element-wise, so XLA fuses them into one pass over the batch. Random numbers depend on an example's
position in the global batch, not on how the batch is sharded over devices and hosts.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, UInt8

# Name -> array. In a prepared batch, `image` is what the model takes: images or `Patches`.
Batch = dict[str, Any]

# Area as a share of the image, and height / width. Source: arXiv:1708.04896, limits of torchvision.
_ERASED_AREAS = (0.02, 0.33)
_ERASED_RATIOS = (0.3, 3.3)
# Mean and deviation of the channels of ImageNet's images, in [0, 1].
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_MEAN, _DEVIATION = (
    np.array(part, np.float32).reshape(1, 1, 1, 3) for part in (IMAGENET_MEAN, IMAGENET_DEVIATION)
)
# Number of random rectangles to try until one fits into the image.
_ERASING_TRIES = 10


def to_unit_range(images: UInt8[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Scales linearly to [-1, 1], without a mean or deviation, as the ViT papers' models expect."""
    return images.astype(jnp.float32) / 127.5 - 1


def flip(images: Num[Array, "B H W 3"], key: jax.Array) -> Num[Array, "B H W 3"]:
    """Flips each image left to right with probability 1/2."""
    chosen = jax.random.bernoulli(key, 0.5, (images.shape[0], 1, 1, 1))
    return jnp.where(chosen, images[:, :, ::-1], images)


def erase(
    images: Float[Array, "B H W 3"],
    key: jax.Array,
    *,
    probability: float,
) -> Float[Array, "B H W 3"]:
    """Fills a random rectangle of randomly chosen images, which are in [-1, 1].

    The area is uniform between 2 and 33 % of the image, height / width is log-uniform between 0.3
    and 3.3, and the position is uniform. If none of ten rectangles fits, the image is unchanged.
    Every value is drawn from a normal with ImageNet's mean and deviation.

    Source: arXiv:1708.04896, algorithm 1; values: timm's `reprob` with `remode=pixel`, which DeiT
    and MAE use.
    """
    batch, height, width, _ = images.shape
    key_chosen, key_box, key_fill = jax.random.split(key, 3)
    chosen = jax.random.bernoulli(key_chosen, probability, (batch,))
    tops, lefts, heights, widths = erased_boxes(batch, height, width, key_box)

    def span(length: int, starts: Int[Array, " B"], sizes: Int[Array, " B"]) -> Bool[Array, "B L"]:
        position = jnp.arange(length)[None, :]
        return (position >= starts[:, None]) & (position < (starts + sizes)[:, None])

    inside = span(height, tops, heights)[:, :, None] & span(width, lefts, widths)[:, None, :]
    inside &= chosen[:, None, None]
    values = from_imagenet(_normal(key_fill, images.shape))
    return jnp.where(inside[..., None], values, images)


def to_imagenet(images: Float[Array, "B H W 3"]) -> Float[Array, "B H W 3"]:
    """Normalises images in [-1, 1] by ImageNet's mean and deviation."""
    return ((images + 1) / 2 - _MEAN) / _DEVIATION


def from_imagenet(images: Float[Array, "B H W 3"]) -> Float[Array, "B H W 3"]:
    """Undoes `to_imagenet`."""
    return (images * _DEVIATION + _MEAN) * 2 - 1


def _normal(key: jax.Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Draws from a normal distribution with 16 random bits a value, half as many as usual."""
    bits = jax.random.bits(key, shape, jnp.uint16).astype(jnp.float32)
    return math.sqrt(2) * jax.lax.erf_inv((2 * bits + 1) / 2**16 - 1)


def erased_boxes(
    batch: int, height: int, width: int, key: jax.Array
) -> tuple[Int[Array, " B"], Int[Array, " B"], Int[Array, " B"], Int[Array, " B"]]:
    """Returns top, left, height and width of one rectangle per image; 0 by 0 if none fits."""
    key_area, key_ratio, key_top, key_left = jax.random.split(key, 4)
    shape = (batch, _ERASING_TRIES)
    area = jax.random.uniform(key_area, shape, minval=_ERASED_AREAS[0], maxval=_ERASED_AREAS[1])
    low, high = (math.log(ratio) for ratio in _ERASED_RATIOS)
    ratio = jnp.exp(jax.random.uniform(key_ratio, shape, minval=low, maxval=high))
    heights = jnp.round(jnp.sqrt(area * height * width * ratio)).astype(jnp.int32)
    widths = jnp.round(jnp.sqrt(area * height * width / ratio)).astype(jnp.int32)
    fits = (heights < height) & (widths < width)
    # The first rectangle that fits; if none fits, argmax is 0.
    first = jnp.argmax(fits, axis=1)[:, None]
    fits, heights, widths = (
        jnp.take_along_axis(values, first, axis=1)[:, 0] for values in (fits, heights, widths)
    )
    heights, widths = jnp.where(fits, heights, 0), jnp.where(fits, widths, 0)
    tops = jax.random.randint(key_top, (batch,), 0, height - heights + 1)
    lefts = jax.random.randint(key_left, (batch,), 0, width - widths + 1)
    return tops, lefts, heights, widths


def mixup(
    images: Float[Array, "B H W 3"], labels: Float[Array, "B C"], share: Float[Array, ""]
) -> tuple[Float[Array, "B H W 3"], Float[Array, "B C"]]:
    """Blends each example with the previous one: share * x + (1 - share) * x_previous.

    Source: arXiv:1710.09412, equation 1, with one share for the whole batch.
    """
    images = share * images + (1 - share) * jnp.roll(images, 1, axis=0)
    return images, share * labels + (1 - share) * jnp.roll(labels, 1, axis=0)


def cutmix(
    images: Float[Array, "B H W 3"],
    labels: Float[Array, "B C"],
    share: Float[Array, ""],
    key: jax.Array,
) -> tuple[Float[Array, "B H W 3"], Float[Array, "B C"]]:
    """Pastes a box from the previous example, about (1 - share) of the area.

    Labels are mixed by the area that was pasted. Source: arXiv:1905.04899, equations 1 and 2, with
    one box for the whole batch.
    """
    inside = cutmix_box(images.shape[1], images.shape[2], share, key)
    images = jnp.where(inside[None, :, :, None], jnp.roll(images, 1, axis=0), images)
    kept = 1 - jnp.mean(inside, dtype=jnp.float32)
    return images, kept * labels + (1 - kept) * jnp.roll(labels, 1, axis=0)


def cutmix_box(
    height: int, width: int, share: Float[Array, ""], key: jax.Array
) -> Bool[Array, "H W"]:
    """Returns the mask of a box with sides sqrt(1 - share) of the image's, clipped to the image."""
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
    mixup_alpha: float,
    cutmix_alpha: float,
    key: jax.Array,
) -> tuple[Float[Array, "B H W 3"], Int[Array, " B"] | Float[Array, "B C"]]:
    """Applies mixup or CutMix. If both are on, each batch uses one, chosen at random.

    Their shares are drawn from Beta(alpha, alpha); alpha 0 turns one off. The labels become
    f32[B, C] if either is on.
    """
    if not (mixup_alpha or cutmix_alpha):
        return images, labels
    key_coin, key_mixup, key_cutmix, key_box = jax.random.split(key, 4)
    one_hot = jax.nn.one_hot(labels, num_classes)

    def with_mixup(images, labels):
        share = jax.random.beta(key_mixup, mixup_alpha, mixup_alpha)
        return mixup(images, labels, share)

    def with_cutmix(images, labels):
        share = jax.random.beta(key_cutmix, cutmix_alpha, cutmix_alpha)
        return cutmix(images, labels, share, key_box)

    if not cutmix_alpha:
        return with_mixup(images, one_hot)
    if not mixup_alpha:
        return with_cutmix(images, one_hot)
    coin = jax.random.bernoulli(key_coin)
    return jax.lax.cond(coin, with_cutmix, with_mixup, images, one_hot)
