"""Colour distortion of crops on the device: jitter, grayscale, blur, solarisation.

As in `device`, random numbers depend on an image's position in the batch.

Source: arXiv:2006.07733 (BYOL), appendix B, with the strengths of arXiv:2104.14294. Ours: the four
parts of the jitter have a fixed order, and the blur follows the size of the images.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_JITTER_PROBABILITY = 0.8
# Factors are 1 +- these; hue is shifted by up to this part of the circle.
_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = 0.4, 0.4, 0.2, 0.1
_GRAY_PROBABILITY = 0.2
# Standard deviation of the blur for images of 224 pixels.
_SIGMAS, _SIGMAS_AT = (0.1, 2.0), 224
# Shares of red, green and blue in a gray value.
_LUMA = (0.299, 0.587, 0.114)

Images = Float[Array, "B H W 3"]


def distort(
    images: Images, key: jax.Array, *, blur: float, solarize: float, image_size: int
) -> Images:
    """Distorts the colours of each image, in [-1, 1], differently.

    `blur` and `solarize` are probabilities; solarisation inverts values in the upper half. The blur
    is proportional to `image_size`, the side of the global crops.
    """
    keys = jax.random.split(key, 9)
    x = (images + 1) / 2
    x = _with_probability(_JITTER_PROBABILITY, keys[0], _jitter(x, keys[1:5]), x)
    x = _with_probability(_GRAY_PROBABILITY, keys[5], jnp.broadcast_to(gray(x), x.shape), x)
    low, high = (sigma * image_size / _SIGMAS_AT for sigma in _SIGMAS)
    sigma = jax.random.uniform(keys[6], (len(x),), minval=low, maxval=high)
    x = _with_probability(blur, keys[7], gaussian_blur(x, sigma, high), x)
    if solarize:
        x = _with_probability(solarize, keys[8], jnp.where(x >= 0.5, 1 - x, x), x)
    return 2 * x - 1


def gray(x: Images) -> Float[Array, "B H W 1"]:
    """Returns the gray value of each pixel."""
    return jnp.sum(x * jnp.array(_LUMA)[None, None, None], axis=-1, keepdims=True)


def shift_hue(x: Images, amount: Float[Array, "B 1 1"]) -> Images:
    """Turns the hue of each pixel in [0, 1] by `amount` circles; HSV value and saturation stay."""
    value, least = jnp.max(x, axis=-1), jnp.min(x, axis=-1)
    chroma = value - least
    red, green, blue = x[..., 0], x[..., 1], x[..., 2]
    divisor = jnp.where(chroma > 0, chroma, 1)
    # Not `value == red`: a compiler that computes a channel twice may round it in two ways.
    sixths = jnp.where(
        (red >= green) & (red >= blue),
        (green - blue) / divisor,
        jnp.where(green >= blue, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    sixths = sixths + 6 * amount

    def channel(place: int) -> jax.Array:
        k = jnp.mod(place + sixths, 6)
        return value - chroma * jnp.clip(jnp.minimum(k, 4 - k), 0, 1)

    return jnp.stack([channel(5), channel(3), channel(1)], axis=-1)


def gaussian_blur(x: Images, sigma: Float[Array, " B"], largest: float) -> Images:
    """Blurs each image with a Gaussian of its own deviation in pixels; border pixels are repeated.

    The kernel reaches three times as far as the largest deviation.
    """
    reach = max(math.ceil(3 * largest), 1)
    offsets = jnp.arange(-reach, reach + 1, dtype=jnp.float32)
    weights = jnp.exp(-jnp.square(offsets[None] / sigma[:, None]) / 2)
    weights = weights / jnp.sum(weights, axis=1, keepdims=True)
    for axis in (1, 2):
        size, rows = x.shape[axis], [(0, 0)] * 4
        rows[axis] = (reach, reach)
        padded = jnp.pad(x, rows, mode="edge")
        x = jnp.zeros_like(x)
        for i in range(2 * reach + 1):
            part = jax.lax.slice_in_dim(padded, i, i + size, axis=axis)
            x += part * weights[:, i, None, None, None]
    return x


def _jitter(x: Images, keys: jax.Array) -> Images:
    """Multiplies brightness, contrast and saturation, then shifts the hue."""

    def factor(key: jax.Array, strength: float) -> Float[Array, "B 1 1 1"]:
        return 1 + jax.random.uniform(key, (len(x), 1, 1, 1), minval=-strength, maxval=strength)

    x = jnp.clip(x * factor(keys[0], _BRIGHTNESS), 0, 1)
    mean = jnp.mean(gray(x), axis=(1, 2, 3), keepdims=True)
    x = jnp.clip(mean + (x - mean) * factor(keys[1], _CONTRAST), 0, 1)
    shade = gray(x)
    x = jnp.clip(shade + (x - shade) * factor(keys[2], _SATURATION), 0, 1)
    return shift_hue(x, factor(keys[3], _HUE)[..., 0] - 1)


def _with_probability(probability: float, key: jax.Array, changed: Images, x: Images) -> Images:
    chosen = jax.random.bernoulli(key, probability, (len(x), 1, 1, 1))
    return jnp.where(chosen, changed, x)
