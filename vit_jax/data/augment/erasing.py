"""Random erasing of a rectangle of an image."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vit_jax.data.augment import AUGMENTATIONS, Operation
from vit_jax.data.device import from_imagenet
from vit_jax.schema import option

# Area as a share of the image, and height / width. Source: arXiv:1708.04896, limits of torchvision.
_AREAS = (0.02, 0.33)
_RATIOS = (0.3, 3.3)
# Number of random rectangles to try until one fits into the image.
_TRIES = 10


@AUGMENTATIONS.register
class Erasing(Operation):
    """Fills a random rectangle of randomly chosen images.

    The area is uniform between 2 and 33 % of the image, height / width is log-uniform between 0.3
    and 3.3, and the position is uniform. If none of ten rectangles fits, the image is unchanged.
    Every value is drawn from a normal with ImageNet's mean and deviation.

    Source: arXiv:1708.04896, algorithm 1; values: timm's `reprob` with `remode=pixel`, which DeiT
    and MAE use.
    """

    stage = "device"
    place = 0

    probability: float = option(0.25, above=0, at_most=1)
    """Probability of erasing a rectangle of an image."""

    def __call__(self, images: Float[Array, "B H W 3"], key: jax.Array) -> Float[Array, "B H W 3"]:
        batch, height, width, _ = images.shape
        key_chosen, key_box, key_fill = jax.random.split(key, 3)
        chosen = jax.random.bernoulli(key_chosen, self.probability, (batch,))
        tops, lefts, heights, widths = erased_boxes(batch, height, width, key_box)

        def span(
            length: int, starts: Int[Array, " B"], sizes: Int[Array, " B"]
        ) -> Bool[Array, "B L"]:
            position = jnp.arange(length)[None, :]
            return (position >= starts[:, None]) & (position < (starts + sizes)[:, None])

        inside = span(height, tops, heights)[:, :, None] & span(width, lefts, widths)[:, None, :]
        inside &= chosen[:, None, None]
        values = from_imagenet(_normal(key_fill, images.shape))
        return jnp.where(inside[..., None], values, images)


def _normal(key: jax.Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Draws from a normal distribution with 16 random bits a value, half as many as usual."""
    bits = jax.random.bits(key, shape, jnp.uint16).astype(jnp.float32)
    return math.sqrt(2) * jax.lax.erf_inv((2 * bits + 1) / 2**16 - 1)


def erased_boxes(
    batch: int, height: int, width: int, key: jax.Array
) -> tuple[Int[Array, " B"], Int[Array, " B"], Int[Array, " B"], Int[Array, " B"]]:
    """Returns top, left, height and width of one rectangle per image; 0 by 0 if none fits."""
    key_area, key_ratio, key_top, key_left = jax.random.split(key, 4)
    shape = (batch, _TRIES)
    area = jax.random.uniform(key_area, shape, minval=_AREAS[0], maxval=_AREAS[1])
    low, high = (math.log(ratio) for ratio in _RATIOS)
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
