"""Self-attention as one Pallas kernel for TPUs, for sequences that fit on the chip.

A grid step computes whole heads of a few images: logits, softmax and weighted values stay in the
chip's vector memory (VMEM). The backward pass computes the weights again from queries and keys. So
no [B, H, N, N] array ever reaches device memory (HBM), and softmax stays in float32.

Queries, keys and values come as one array, as they leave their projection, and their gradients
leave as one array, so nothing is copied apart or together.
"""

import dataclasses
import functools
import math
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
    """Sizes of a call, and how its work is split.

    Attributes:
        tokens: N.
        valid_tokens: keys after these get no weight.
        heads: H.
        head_dim: K.
        images: images of a grid step.
        unrolled_heads: heads of one iteration of the loop over heads. Their features fill whole
            tiles of 128 lanes, unless they are all heads.
    """

    tokens: int
    valid_tokens: int
    heads: int
    head_dim: int
    images: int
    unrolled_heads: int

    @property
    def row_tiles(self) -> list[slice]:
        """Rows of logits that are computed at once."""
        starts = range(0, self.tokens, _ROWS)
        return [slice(start, min(start + _ROWS, self.tokens)) for start in starts]


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
    """Writes the attended values: (qkv[, bias]) -> out."""
    qkv, *biases, out = refs

    def attend(image: Any, head: Any, q: Any, k: Any, v: Any, columns: Any) -> None:
        for rows in shape.row_tiles:
            found = []
            for i, part in enumerate(_heads(shape)):
                bias = biases[0][image, head + i, rows] if has_bias else None
                powers, scale = _exponentials(shape, q[rows, part], k[:, part], bias)
                found.append(_dot(powers.astype(v.dtype), v[:, part], (1, 0)) * scale)
            out[image, rows, columns] = jnp.concatenate(found, axis=1).astype(out.dtype)

    _for_all_heads(shape, qkv, attend)


def _backward_kernel(shape: _Shape, has_bias: bool, *refs: Any) -> None:
    """Writes the gradients: (qkv[, bias], d_out) -> d_qkv[, d_bias]."""
    count = 2 if has_bias else 1
    (qkv, *biases), d_out, (d_qkv, *d_biases) = refs[:count], refs[count], refs[count + 1 :]
    width = shape.heads * shape.head_dim

    def differentiate(image: Any, head: Any, q: Any, k: Any, v: Any, columns: Any) -> None:
        dk = dv = [jnp.zeros((shape.tokens, shape.head_dim), jnp.float32)] * shape.unrolled_heads
        for rows in shape.row_tiles:
            d, dq = d_out[image, rows, columns], []
            for i, part in enumerate(_heads(shape)):
                bias = biases[0][image, head + i, rows] if has_bias else None
                powers, scale = _exponentials(shape, q[rows, part], k[:, part], bias)
                scaled = (d[:, part] * scale).astype(q.dtype)
                dv = _add(dv, i, _dot(powers.astype(q.dtype), scaled, (0, 0)))
                dp = _dot(scaled, v[:, part], (1, 1))
                ds = (dp - (dp * powers).sum(-1, keepdims=True) * scale) * powers
                if has_bias:
                    d_biases[0][image, head + i, rows] = ds
                ds = ds.astype(q.dtype)
                dq.append(_dot(ds, k[:, part], (1, 0)) * shape.head_dim**-0.5)
                dk = _add(dk, i, _dot(ds, q[rows, part], (0, 0)) * shape.head_dim**-0.5)
            d_qkv[image, rows, columns] = jnp.concatenate(dq, axis=1).astype(d_qkv.dtype)
        for i, found in ((1, dk), (2, dv)):
            at = _shift(columns, i * width)
            d_qkv[image, :, at] = jnp.concatenate(found, axis=1).astype(d_qkv.dtype)

    _for_all_heads(shape, qkv, differentiate)


def _add(totals: list[jax.Array], index: int, value: jax.Array) -> list[jax.Array]:
    return [t + value if i == index else t for i, t in enumerate(totals)]


def _heads(shape: _Shape) -> list[slice]:
    """Columns of the heads of one iteration."""
    size = shape.head_dim
    return [slice(i * size, (i + 1) * size) for i in range(shape.unrolled_heads)]


def _for_all_heads(shape: _Shape, qkv: Any, body: Any) -> None:
    width = shape.heads * shape.head_dim
    own = shape.unrolled_heads * shape.head_dim
    groups = shape.heads // shape.unrolled_heads

    def iteration(index: jax.Array, _: None) -> None:
        image, group = jax.lax.div(index, groups), jax.lax.rem(index, groups)
        columns = slice(0, own) if groups == 1 else pl.ds(pl.multiple_of(group * own, _LANES), own)
        q, k, v = (qkv[image, :, _shift(columns, i * width)] for i in range(3))
        body(image, group * shape.unrolled_heads, q, k, v, columns)

    jax.lax.fori_loop(0, shape.images * groups, iteration, None)


def _shift(columns: Any, by: int) -> Any:
    if isinstance(columns, slice):
        return slice(columns.start + by, columns.stop + by)
    return pl.ds(pl.multiple_of(columns.start + by, _LANES), columns.size)


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
    fill = math.lcm(K, _LANES) // K
    shape = _Shape(N, valid_tokens or N, H, K, images, fill if H % fill == 0 else H)
    return _attend(shape, qkv.reshape(B, N, 3 * H * K), bias).reshape(B, N, H, K)
