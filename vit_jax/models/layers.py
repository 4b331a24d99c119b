"""LayerNorm, GELU and softmax in float32, with backward passes that save memory.

Automatic differentiation would keep every intermediate of these formulas, several times the size of
their input. The gradients written out here keep only the input (LayerNorm, GELU) or the output
(softmax) and recompute the rest. This saves memory, and time where memory bandwidth is the limit.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.stacking import save_for_backward


class LayerNorm(nnx.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis, computed in float32.

    `dtype` is the type of the result. Source: arXiv:1607.06450.
    """

    def __init__(
        self,
        width: int,
        *,
        use_bias: bool = True,
        epsilon: float = 1e-6,
        dtype: DTypeLike = jnp.float32,
    ):
        self.scale = nnx.Param(jnp.ones(width))
        self.bias = nnx.Param(jnp.zeros(width)) if use_bias else None
        self.epsilon = epsilon
        self.dtype = dtype

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        bias = None if self.bias is None else self.bias[...]
        return layer_norm(x, self.scale[...], bias, self.epsilon, self.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def layer_norm(
    x: Float[Array, "*B D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"] | None,
    epsilon: float = 1e-6,
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "*B D"]:
    """LayerNorm as a function; see `LayerNorm`."""
    return _layer_norm_fwd(x, scale, bias, epsilon, dtype)[0]


_Kept = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array | None]


def _layer_norm_fwd(
    x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float, dtype: DTypeLike
) -> tuple[jax.Array, _Kept]:
    single = x.astype(jnp.float32)
    mean = single.mean(-1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.square(single - mean).mean(-1, keepdims=True) + epsilon)
    mean, inverse = save_for_backward(mean), save_for_backward(inverse)
    rows = (1,) * (x.ndim - 1)
    y = (single - mean) * inverse * scale.reshape(*rows, -1)
    y = y if bias is None else y + bias.reshape(*rows, -1)
    return y.astype(dtype), (x, mean, inverse, scale, bias)


def _layer_norm_bwd(
    epsilon: float, dtype: DTypeLike, kept: _Kept, dy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    del epsilon, dtype
    x, mean, inverse, scale, bias = kept
    # Without the barrier, XLA's GPU compiler computes the mean again in every operation here, which
    # keeps it from fusing the product below with its sum.
    mean, inverse = jax.lax.optimization_barrier((mean, inverse))
    dy = dy.astype(jnp.float32)
    y = (x.astype(jnp.float32) - mean) * inverse
    d_scale = _sum_of_rows(dy * y).astype(scale.dtype)
    d_bias = None if bias is None else _sum_of_rows(dy).astype(bias.dtype)
    dy = dy * scale.reshape(*(1,) * (x.ndim - 1), -1)
    dx = dy - y * (dy * y).mean(-1, keepdims=True)
    dx = dx - dy.mean(-1, keepdims=True)
    return (dx * inverse).astype(x.dtype), d_scale, d_bias


def _sum_of_rows(x: jax.Array) -> jax.Array:
    """Sums over all axes but the last."""
    return x.sum(range(x.ndim - 1))


layer_norm.defvjp(_layer_norm_fwd, _layer_norm_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def gelu(x: jax.Array, approximate: bool = True) -> jax.Array:
    """Returns x * Phi(x), Phi the normal distribution function, exact or approximated by tanh.

    Source: arXiv:1606.08415, section 2.
    """
    return jax.nn.gelu(x, approximate=approximate)


def _gelu_fwd(x: jax.Array, approximate: bool) -> tuple[jax.Array, jax.Array]:
    return gelu(x, approximate), x


def _gelu_bwd(approximate: bool, x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    single = x.astype(jnp.float32)
    if approximate:
        root, cubic = math.sqrt(2 / math.pi), 0.044715
        tanh = jnp.tanh(root * (single + cubic * single**3))
        slope = 0.5 * (1 + tanh)
        slope += 0.5 * single * (1 - tanh**2) * root * (1 + 3 * cubic * single**2)
    else:
        slope = 0.5 * (1 + jax.lax.erf(single * math.sqrt(0.5)))
        slope += single * jnp.exp(-0.5 * single**2) / math.sqrt(2 * math.pi)
    return ((dy.astype(jnp.float32) * slope).astype(x.dtype),)


gelu.defvjp(_gelu_fwd, _gelu_bwd)


@jax.custom_vjp
def softmax(logits: jax.Array) -> jax.Array:
    """Softmax over the last axis; its backward pass needs only its result."""
    return jax.nn.softmax(logits, axis=-1)


def _softmax_fwd(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    weights = jax.nn.softmax(logits, axis=-1)
    return weights, weights


def _softmax_bwd(weights: jax.Array, d: jax.Array) -> tuple[jax.Array]:
    return (weights * (d - (weights * d).sum(-1, keepdims=True)),)


softmax.defvjp(_softmax_fwd, _softmax_bwd)
