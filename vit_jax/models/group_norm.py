"""Group normalisation with a custom backward pass."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Map = Float[Array, "B H W C"]
PerChannel = Float[Array, " C"]
_Saved = tuple[Map, Float[Array, "B 1 1 C"], Float[Array, "B 1 1 C"], PerChannel]


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def group_norm(x: Map, scale: PerChannel, bias: PerChannel, groups: int, epsilon: float) -> Map:
    """Returns (x - mean) / sqrt(variance + epsilon) * scale + bias, in the type of `x`.

    Mean and variance are over the positions and the channels of a group, in float32; `groups`
    divides C. The backward pass keeps only `x` and two numbers per group, while automatic
    differentiation would keep float32 copies of `x`. Sums are over positions first and then over a
    group's channels: on a CPU this is several times faster than summing over both at once.

    Source: arXiv:1803.08494, equations 1 to 6; gradients by hand.
    """
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
    # Gradients of bias and scale, per example.
    dbias = dy32.sum((1, 2))
    dscale = (dy32 * normed).sum((1, 2))
    # Gradients through the mean and the variance of each group.
    mean_term = _group_means(dbias * scale[None] / positions, groups)
    variance_term = _group_means(dscale * scale[None] / positions, groups)
    dx = factor * (dy32 * scale[None, None, None] - mean_term - normed * variance_term)
    return dx.astype(x.dtype), dscale.sum(0), dbias.sum(0)


group_norm.defvjp(_forward, _backward)


def _group_means(channels: Float[Array, "B C"], groups: int) -> Float[Array, "B 1 1 C"]:
    """Returns, for every channel, the mean over the channels of its group."""
    batch, count = channels.shape
    means = channels.reshape(batch, groups, count // groups).mean(2)
    return jnp.repeat(means, count // groups, axis=1)[:, None, None]
