"""Products with parameters, whose gradients are summed in a stated type.

The gradient of a parameter is a sum over all examples: first over those of a device, then over
devices. Automatic differentiation takes both sums in the type that the layer computes in, since the
sum over devices takes up the result of the first. Under a placement with a `gradient_dtype`
(`vit_jax.models.placement`) the functions here write their gradients out: kernels of matmuls and
convolutions are summed in that type. Vectors (biases, scales, tokens, position tables), which are
small, are then summed in float32. The table of a `RelativeBias` is summed as its layer computes.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from vit_jax.models.placement import current_placement

Padding = tuple[tuple[int, int], ...]
_CONV = ("NHWC", "HWIO", "NHWC")


class Linear(nnx.Linear):
    """`nnx.Linear` over the last axis, with the gradients of this file."""

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        """Returns inputs @ kernel + bias."""
        if current_placement().gradient_dtype is None:
            return super().__call__(inputs, out_sharding)
        return _affine(self, inputs)


class LinearGeneral(nnx.LinearGeneral):
    """`nnx.LinearGeneral` over the last axes, with the gradients of this file."""

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        """Returns inputs @ kernel + bias, the sum taken over all axes of `axis`."""
        if current_placement().gradient_dtype is None:
            return super().__call__(inputs, out_sharding)
        return _affine(self, inputs)


def _affine(layer: nnx.Linear | nnx.LinearGeneral, inputs: Array) -> Array:
    kernel = layer.kernel[...]
    outputs = layer.out_features
    contracted = kernel.ndim - (1 if isinstance(outputs, int) else len(outputs))
    dtype = layer.dtype or jnp.promote_types(inputs.dtype, kernel.dtype)
    y = contract(inputs.astype(dtype), kernel, contracted)
    return y if layer.bias is None else y + spread(layer.bias[...], y.shape, y.dtype)


def contract(x: Array, kernel: Array, contracted: int = 1) -> Array:
    """Returns the sum over the last axes of x and the first of the kernel, in the type of x.

    Args:
        x: [..., I...].
        kernel: parameter [I..., O...].
        contracted: number of axes I.
    """
    gradient_dtype = current_placement().gradient_dtype
    if gradient_dtype is None:
        return _contract_fwd(x, kernel, contracted, "")[0]
    return _contract(x, kernel, contracted, gradient_dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _contract(x: Array, kernel: Array, contracted: int, gradient_dtype: str) -> Array:
    return _contract_fwd(x, kernel, contracted, gradient_dtype)[0]


def _contract_fwd(
    x: Array, kernel: Array, contracted: int, gradient_dtype: str
) -> tuple[Array, tuple[Array, Array]]:
    del gradient_dtype
    cast = kernel.astype(x.dtype)
    inner = (tuple(range(x.ndim - contracted, x.ndim)), tuple(range(contracted)))
    return lax.dot_general(x, cast, (inner, ((), ()))), (x, cast)


def _contract_bwd(
    contracted: int, gradient_dtype: str, kept: tuple[Array, Array], dy: Array
) -> tuple[Array, Array]:
    x, kernel = kept
    outer = tuple(range(x.ndim - contracted))
    outputs = tuple(range(len(outer), dy.ndim))
    dx = lax.dot_general(dy, kernel, ((outputs, tuple(range(contracted, kernel.ndim))), ((), ())))
    dkernel = lax.dot_general(
        x, dy, ((outer, outer), ((), ())), preferred_element_type=jnp.dtype(gradient_dtype)
    )
    return dx, dkernel.astype(jnp.float32)


_contract.defvjp(_contract_fwd, _contract_bwd)


def spread(vector: Array, shape: tuple[Any, ...], dtype: Any) -> Array:
    """Broadcasts a float32 parameter to a shape, in a type.

    Args:
        vector: of the last dimensions of the shape, or with a 1 in place of some.
        shape: of the result; the number of examples may be a symbol.
        dtype: of the result.
    """
    if current_placement().gradient_dtype is None:
        return _spread_fwd(vector, shape, dtype)[0]
    return _spread(vector, shape, dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _spread(vector: Array, shape: tuple[Any, ...], dtype: Any) -> Array:
    return _spread_fwd(vector, shape, dtype)[0]


def _spread_fwd(vector: Array, shape: tuple[Any, ...], dtype: Any) -> tuple[Array, tuple[int, ...]]:
    full = vector.reshape((1,) * (len(shape) - vector.ndim) + vector.shape)
    return jnp.broadcast_to(full.astype(dtype), shape), vector.shape


def _spread_bwd(
    shape: tuple[Any, ...], dtype: Any, kept: tuple[int, ...], dy: Array
) -> tuple[Array]:
    del dtype
    full = (1,) * (len(shape) - len(kept)) + kept
    axes = tuple(i for i, (a, b) in enumerate(zip(full, shape, strict=True)) if a != b)
    return (dy.astype(jnp.float32).sum(axes).reshape(kept),)


_spread.defvjp(_spread_fwd, _spread_bwd)


def rescale(x: Float[Array, "*B D"], vector: Float[Array, " D"]) -> Float[Array, "*B D"]:
    """Multiplies each feature by its own factor, a float32 parameter, in the type of x."""
    if current_placement().gradient_dtype is None:
        return _rescale_fwd(x, vector)[0]
    return _rescale(x, vector)


@jax.custom_vjp
def _rescale(x: Array, vector: Array) -> Array:
    return _rescale_fwd(x, vector)[0]


def _rescale_fwd(x: Array, vector: Array) -> tuple[Array, tuple[Array, Array]]:
    # Not through `spread`: what is broadcast would be kept for the backward pass in full.
    row = vector.astype(x.dtype).reshape((1,) * (x.ndim - 1) + vector.shape)
    return x * row, (x, vector)


def _rescale_bwd(kept: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, vector = kept
    products = dy.astype(jnp.float32) * x.astype(jnp.float32)
    return _rescale_fwd(dy, vector)[0], products.sum(tuple(range(x.ndim - 1)))


_rescale.defvjp(_rescale_fwd, _rescale_bwd)


def convolve(
    x: Float[Array, "B H W I"], kernel: Float[Array, "K L I O"], stride: int, padding: Any
) -> Float[Array, "B h w O"]:
    """Returns the convolution of images with a kernel made of a parameter, in the type of x.

    Args:
        x: feature maps.
        kernel: float32.
        stride: down and across.
        padding: "SAME", or (before, after) of height and width.
    """
    gradient_dtype = current_placement().gradient_dtype
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], (stride, stride), padding)
    pads: Padding = tuple((int(a), int(b)) for a, b in padding)
    if kernel.shape[:2] == (1, 1) and not any(map(any, pads)):
        # A matmul: on a CPU several times faster than XLA's convolution and its gradients.
        return contract(x[:, ::stride, ::stride], kernel[0, 0])
    return _convolve(x, kernel, stride, pads, gradient_dtype or x.dtype.name)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _convolve(x: Array, kernel: Array, stride: int, padding: Padding, gradient_dtype: str) -> Array:
    return _convolve_fwd(x, kernel, stride, padding, gradient_dtype)[0]


def _plain_convolution(x: Array, kernel: Array, stride: int, padding: Padding) -> Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=_CONV)


def _convolve_fwd(
    x: Array, kernel: Array, stride: int, padding: Padding, gradient_dtype: str
) -> tuple[Array, tuple[Array, Array]]:
    del gradient_dtype
    cast = kernel.astype(x.dtype)
    return _plain_convolution(x, cast, stride, padding), (x, cast)


def _convolve_bwd(
    stride: int, padding: Padding, gradient_dtype: str, kept: tuple[Array, Array], dy: Array
) -> tuple[Array, Array]:
    x, kernel = kept
    dtype = jnp.dtype(gradient_dtype)
    dx_by_convolution = functools.partial(_input_gradient, x, stride, padding)
    dx = lax.platform_dependent(
        kernel, dy,
        cpu=functools.partial(_turned, padding) if stride == 1 else dx_by_convolution,
        default=dx_by_convolution,
    )  # fmt: skip
    dkernel = lax.platform_dependent(
        x, dy,
        cpu=functools.partial(_kernel_gradient_by_matmul, kernel.shape, stride, padding, dtype),
        default=functools.partial(_kernel_gradient, kernel.shape, stride, padding, dtype),
    )  # fmt: skip
    return dx, dkernel.astype(jnp.float32)


def _input_gradient(x: Array, stride: int, padding: Padding, kernel: Array, dy: Array) -> Array:
    """Returns the gradient of the input, of the shape and type of `x`."""
    (dx,) = jax.linear_transpose(lambda x: _plain_convolution(x, kernel, stride, padding), x)(dy)
    return dx


def _turned(padding: Padding, kernel: Array, dy: Array) -> Array:
    """Returns the same at stride 1: a convolution with the kernel turned around.

    XLA's fast convolution on CPUs takes no kernel that is only said to be turned: the barrier keeps
    the turning from becoming part of the convolution.
    """
    turned = lax.optimization_barrier(kernel[::-1, ::-1].swapaxes(2, 3))
    sides = zip(kernel.shape[:2], padding, strict=True)
    pads = tuple((side - 1 - before, side - 1 - after) for side, (before, after) in sides)
    return _plain_convolution(dy, turned, 1, pads)


def _kernel_gradient(
    shape: tuple[int, ...], stride: int, padding: Padding, dtype: jnp.dtype, x: Array, dy: Array
) -> Array:
    """Returns the gradient of a kernel [K, L, I, O], summed in a type.

    [k, l, i, o] is the sum over b, h, w of x[b, stride h + k, stride w + l, i] dy[b, h, w, o]: a
    convolution whose batch are the input channels, and whose channels are the examples.
    """
    after = [
        shape[d] + (dy.shape[1 + d] - 1) * stride - x.shape[1 + d] - padding[d][0] for d in (0, 1)
    ]
    if dtype.itemsize < x.dtype.itemsize:  # A convolution's result is no narrower than its factors.
        x, dy = x.astype(dtype), dy.astype(dtype)
    return lax.conv_general_dilated(
        x, dy, (1, 1), [(padding[d][0], after[d]) for d in (0, 1)], rhs_dilation=(stride, stride),
        dimension_numbers=("CHWN", "IHWO", "HWNC"), preferred_element_type=dtype,
    )  # fmt: skip


def _kernel_gradient_by_matmul(
    shape: tuple[int, ...], stride: int, padding: Padding, dtype: jnp.dtype, x: Array, dy: Array
) -> Array:
    """Returns the same; XLA's convolution with a window of a whole feature map is slow on CPUs."""
    _, height, width, _ = dy.shape
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    rows, columns = (height - 1) * stride + 1, (width - 1) * stride + 1
    shifted = [
        x[:, top : top + rows : stride, left : left + columns : stride]
        for top in range(shape[0])
        for left in range(shape[1])
    ]
    # One product, so that on several devices one gradient is summed and not one of each position.
    positions = ((0, 1, 2), (0, 1, 2))
    gradient = lax.dot_general(
        jnp.concatenate(shifted, -1), dy, (positions, ((), ())), preferred_element_type=dtype
    )
    return gradient.reshape(shape)


_convolve.defvjp(_convolve_fwd, _convolve_bwd)
