"""Self-attention as one Pallas kernel for TPUs, for sequences that fit on the chip.

A grid step computes whole heads of a few images: logits, softmax and weighted values stay in the
chip's vector memory (VMEM). The backward pass computes the weights again from queries and keys. So
no [B, H, N, N] array ever reaches device memory (HBM), and softmax stays in float32.

Queries, keys and values come as one array, as they leave their projection, and their gradients
leave as one array, so nothing is copied apart or together.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

_LANES = 128
# Rows of logits that are computed at once.
_ROWS = 256


@dataclasses.dataclass(frozen=True)
class _Shape:
    """Sizes of a call, and how its work is split over the grid.

    Attributes:
        tokens: N.
        valid_tokens: keys after these get no weight.
        heads: H.
        head_dim: K.
        images: images of a grid step.
        groups: grid steps for the heads of an image. If there are several, the heads of each fill
            whole tiles of 128 lanes.
    """

    tokens: int
    valid_tokens: int
    heads: int
    head_dim: int
    images: int
    groups: int

    @property
    def width(self) -> int:
        """Features of the heads of a grid step."""
        return self.heads * self.head_dim // self.groups

    def heads_of_group(self) -> Iterator[tuple[int, slice]]:
        for head in range(self.heads // self.groups):
            yield head, slice(head * self.head_dim, (head + 1) * self.head_dim)

    def row_tiles(self) -> Iterator[slice]:
        for start in range(0, self.tokens, _ROWS):
            yield slice(start, min(start + _ROWS, self.tokens))


def _dot(a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    dims = (((contract[0],), (contract[1],)), ((), ()))
    return jax.lax.dot_general(a, b, dims, precision, preferred_element_type=jnp.float32)


def _exponentials(
    shape: _Shape, q: jax.Array, k: jax.Array, bias: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Returns exp(logits - largest), f32[R, N], and 1 / the sum of each row."""
    logits = _dot(q, k, (1, 1)) * shape.head_dim**-0.5
    if bias is not None:
        logits += bias
    if shape.valid_tokens < shape.tokens:
        column = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
        logits = jnp.where(column < shape.valid_tokens, logits, -jnp.inf)
    powers = jnp.exp(logits - logits.max(-1, keepdims=True))
    return powers, 1 / powers.sum(-1, keepdims=True)


def _forward_kernel(shape: _Shape, has_bias: bool, *refs: Any) -> None:
    *inputs, out = refs
    bias = inputs.pop() if has_bias else None
    part = _parts(shape, inputs)

    def one_image(image: jax.Array, _: None) -> None:
        for head, columns in shape.heads_of_group():
            k, v = (part(i, image, slice(None), columns) for i in (1, 2))
            for rows in shape.row_tiles():
                q = part(0, image, rows, columns)
                own = None if bias is None else bias[image, head, rows]
                powers, scale = _exponentials(shape, q, k, own)
                found = _dot(powers.astype(v.dtype), v, (1, 0)) * scale
                out[image, rows, columns] = found.astype(out.dtype)

    jax.lax.fori_loop(0, shape.images, one_image, None)


def _backward_kernel(shape: _Shape, has_bias: bool, *refs: Any) -> None:
    inputs, outputs = list(refs), []
    d_bias = inputs.pop() if has_bias else None
    d_qkv = inputs.pop()
    d_out = inputs.pop()
    bias = inputs.pop() if has_bias else None
    part = _parts(shape, inputs)
    del outputs
    whole = shape.heads * shape.head_dim

    def one_image(image: jax.Array, _: None) -> None:
        for head, columns in shape.heads_of_group():
            k, v = (part(i, image, slice(None), columns) for i in (1, 2))
            dk = dv = jnp.zeros(k.shape, jnp.float32)
            for rows in shape.row_tiles():
                q = part(0, image, rows, columns)
                own = None if bias is None else bias[image, head, rows]
                powers, scale = _exponentials(shape, q, k, own)
                d = (d_out[image, rows, columns] * scale).astype(q.dtype)
                dv += _dot(powers.astype(q.dtype), d, (0, 0))
                dp = _dot(d, v, (1, 1))
                mean = (dp * powers).sum(-1, keepdims=True) * scale
                ds = (dp - mean) * powers
                if d_bias is not None:
                    d_bias[image, head, rows] = ds
                ds = ds.astype(q.dtype)
                dq = _dot(ds, k, (1, 0)) * shape.head_dim**-0.5
                d_qkv[image, rows, columns] = dq.astype(q.dtype)
                dk += _dot(ds, q, (0, 0))
            dk *= shape.head_dim**-0.5
            for i, found in ((1, dk), (2, dv)):
                at = slice(i * whole + columns.start, i * whole + columns.stop)
                d_qkv[image, :, at] = found.astype(d_qkv.dtype)

    jax.lax.fori_loop(0, shape.images, one_image, None)


def _parts(shape: _Shape, refs: list[Any]) -> Any:
    whole = shape.heads * shape.head_dim

    def part(index: int, image: Any, rows: slice, columns: slice) -> jax.Array:
        start = index * whole
        return refs[0][image, rows, start + columns.start : start + columns.stop]

    return part


def _call(shape: _Shape, qkv: jax.Array, bias: Any, d_out: Any) -> Any:
    B, N, width = qkv.shape
    m = shape.images
    def block(w): return pl.BlockSpec((m, N, w), lambda i: (i, 0, 0))
    inputs, specs = [qkv], [block(width)]
    if bias is not None:
        inputs.append(bias)
        specs.append(pl.BlockSpec((m, shape.heads, N, N), lambda i: (i, 0, 0, 0)))
    if d_out is None:
        outs, shapes = [block(width // 3)], [jax.ShapeDtypeStruct((B, N, width // 3), qkv.dtype)]
        body = _forward_kernel
    else:
        inputs.append(d_out)
        specs.append(block(width // 3))
        outs, shapes = [block(width)], [jax.ShapeDtypeStruct(qkv.shape, qkv.dtype)]
        body = _backward_kernel
        if bias is not None:
            outs.append(specs[1])
            shapes.append(jax.ShapeDtypeStruct(bias.shape, bias.dtype))
    def run(interpret):
        def go(*args):
            return pl.pallas_call(
                functools.partial(body, shape, bias is not None), grid=(B // m,), in_specs=specs, out_specs=outs, out_shape=shapes,
                interpret=interpret,
                compiler_params=None if interpret else pltpu.CompilerParams(dimension_semantics=("parallel",)))(*args)
        return go
    return jax.lax.platform_dependent(*inputs, tpu=run(False), default=run(True))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(shape: _Shape, qkv: jax.Array, bias: Any) -> jax.Array:
    return _call(shape, qkv, bias, None)[0]

def _fwd(shape, qkv, bias):
    return _attend(shape, qkv, bias), (qkv, bias)

def _bwd(shape, kept, d_out):
    qkv, bias = kept
    found = _call(shape, qkv, bias, d_out)
    return found[0], (found[1] if bias is not None else None)

_attend.defvjp(_fwd, _bwd)


def attend_packed(qkv: Float[Array, "B N 3 H K"], *, bias=None, valid_tokens=None, images=1):
    B, N, _, H, K = qkv.shape
    shape = _Shape(N, valid_tokens or N, H, K, images, 1)
    return _attend(shape, qkv.reshape(B, N, 3 * H * K), bias).reshape(B, N, H, K)
