"""Group normalisation with a backward pass of its own."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Map = Float[Array, "B H W C"]
PerChannel = Float[Array, " C"]
_Saved = tuple[Map, Float[Array, "B 1 1 C"], Float[Array, "B 1 1 C"], PerChannel]


def group_norm(x: Map, scale: PerChannel, bias: PerChannel, groups: int, epsilon: float) -> Map:
    """Returns (x - mean) / sqrt(variance + epsilon) * scale + bias, in the type of `x`.

    Mean and variance are over the positions and the channels of a group, in float32. The backward
    pass keeps `x` and two numbers a group, where automatic differentiation keeps float32 copies of
    `x`, and it sums over positions first, which a CPU does several times faster than over positions
    and a group's channels at once.

    Source: arXiv:1803.08494, equations 1 to 6; gradients by hand.

    Args:
        x: any float type.
        scale: f32.
        bias: f32.
        groups: a divisor of C.
        epsilon: added to the variance.
    """
    return _group_norm(x, scale, bias, groups, epsilon)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _group_norm(x: Map, scale: PerChannel, bias: PerChannel, groups: int, epsilon: float) -> Map:
    return _forward(x, scale, bias, groups, epsilon)[0]


def _forward(
    x: Map, scale: PerChannel, bias: PerChannel, groups: int, epsilon: float
) -> tuple[Map, _Saved]:
    x32 = x.astype(jnp.float32)
    mean = _group_means(x32.mean((1, 2)), groups)
    variance = _group_means(jnp.square(x32 - mean).mean((1, 2)), groups)
    factor = jax.lax.rsqrt(variance + epsilon)
    y = (x32 - mean) * (factor * scale[None, None, None]) + bias[None, None, None]
    return y.astype(x.dtype), (x, mean, factor, scale)


def _backward(
    groups: int, epsilon: float, saved: _Saved, dy: Map
) -> tuple[Map, PerChannel, PerChannel]:
    del epsilon
    x, mean, factor, scale = saved
    positions = x.shape[1] * x.shape[2]
    dy32 = dy.astype(jnp.float32)
    normed = (x.astype(jnp.float32) - mean) * factor
    # What moves with the mean of a group, and what moves with its deviation.
    shift = dy32.sum((1, 2))
    stretch = (dy32 * normed).sum((1, 2))
    shifts = _group_means(shift * scale[None] / positions, groups)
    stretches = _group_means(stretch * scale[None] / positions, groups)
    dx = factor * (dy32 * scale[None, None, None] - shifts - normed * stretches)
    return dx.astype(x.dtype), stretch.sum(0), shift.sum(0)


_group_norm.defvjp(_forward, _backward)


def _group_means(
    channels: Float[Array, "B C"], groups: int
) -> Float[Array, "B 1 1 C"]:  # fmt: skip
    """Returns, for every channel, the mean over the channels of its group."""
    batch, count = channels.shape
    means = channels.reshape(batch, groups, count // groups).mean(2)
    return jnp.repeat(means, count // groups, axis=1)[:, None, None]
