"""Self-attention as one Pallas kernel for TPUs, for sequences that fit on the chip.

A step of the kernel's grid computes whole heads: logits, softmax and weighted values never leave
the chip's vector memory (VMEM). The backward pass computes the weights again from queries and keys.
So no [B, H, N, N] array reaches device memory, and the softmax is in float32. Queries, keys and
values come in one array, as they leave their projection, and their gradients leave in one.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from vit_jax.models.activation_sharding import Dimension, on_each_device

MAX_TOKENS = 1152
_LANES, _SUBLANES = 128, 8
# Blocks of one step of the grid, twice, because the next ones are loaded meanwhile. TPU v4 has
# 16 MiB of VMEM, and the logits of a head need some of it.
_BLOCK_BYTES = 10 * 2**20
_MAX_ROWS = 320

_QKV: tuple[Dimension, ...] = ("batch", None, None, "tensor", None)
_BIAS: tuple[Dimension, ...] = ("batch", "tensor", None, None)
_OUT: tuple[Dimension, ...] = ("batch", None, "tensor", None)


def attend_packed(
    qkv: Float[Array, "B N 3 H K"],
    bias: Float[Array, "B H N N"] | None = None,
    *,
    valid_tokens: int | None = None,
) -> Float[Array, "B N H K"]:
    """softmax(query key^T / sqrt(K) + bias) value, with gradients for `qkv` and `bias`.

    Under a mesh, each device computes its own images and heads. On other platforms than TPUs the
    kernel is interpreted, which is slow.

    Args:
        qkv: queries, keys and values.
        bias: f32, logits added before the softmax.
        valid_tokens: keys and values after the first `valid_tokens` are padding and get no weight.
    """
    return _attend(valid_tokens or qkv.shape[1], qkv, bias)


def fits(tokens: int, num_heads: int, head_dim: int, itemsize: int, *, has_bias: bool) -> bool:
    """Returns whether the kernel's blocks fit into the VMEM of every TPU since v4.

    Args:
        tokens: N.
        num_heads: H on a device.
        head_dim: K.
        itemsize: bytes of an element of queries, keys and values.
        has_bias: whether a position bias is added to the logits.
    """
    split = _split(1, tokens, tokens, num_heads, head_dim, itemsize, has_bias=has_bias)
    return split is not None and tokens <= MAX_TOKENS


@dataclasses.dataclass(frozen=True)
class _Split:
    """How the work of a call is split over the grid, and its sizes.

    Attributes:
        tokens: N.
        valid_tokens: keys after these get no weight.
        heads: H.
        head_dim: K.
        images: images of a step.
        heads_at_once: heads that are computed without a loop. Their features fill whole tiles of
            128 lanes, unless they are all heads.
        packed: a step has all heads of its images, and the gradients leave in one array.
            Otherwise, a step has `heads_at_once` of one image.
    """

    tokens: int
    valid_tokens: int
    heads: int
    head_dim: int
    images: int
    heads_at_once: int
    packed: bool

    @property
    def width(self) -> int:
        """Features of all heads."""
        return self.heads * self.head_dim

    @property
    def width_at_once(self) -> int:
        """Features of the heads that are computed without a loop."""
        return self.heads_at_once * self.head_dim

    @property
    def groups(self) -> int:
        """Groups of heads."""
        return self.heads // self.heads_at_once

    @property
    def columns(self) -> list[slice]:
        """The features of each head of a group."""
        size = self.head_dim
        return [slice(i * size, (i + 1) * size) for i in range(self.heads_at_once)]

    @property
    def rows(self) -> list[slice]:
        """Queries whose logits are computed at once."""
        tiles = math.ceil(self.tokens / _MAX_ROWS)
        size = _round_up(math.ceil(self.tokens / tiles), _SUBLANES)
        starts = range(0, self.tokens, size)
        return [slice(start, min(start + size, self.tokens)) for start in starts]


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _split(
    batch: int,
    tokens: int,
    valid_tokens: int,
    heads: int,
    head_dim: int,
    itemsize: int,
    *,
    has_bias: bool,
) -> _Split | None:
    """Returns the split with the most images in a step; None: nothing fits into VMEM."""
    filling = math.lcm(head_dim, _LANES) // head_dim
    at_once = filling if heads % filling == 0 else heads
    rows = _round_up(tokens, _SUBLANES)

    def size(heads: int) -> int:
        """Bytes of blocks of queries, keys, values, their gradients and that of the output."""
        blocks = 7 * _round_up(heads * head_dim, _LANES) * itemsize
        blocks += 2 * heads * _round_up(tokens, _LANES) * 4 if has_bias else 0
        return 2 * rows * blocks

    packed = not has_bias and size(heads) <= _BLOCK_BYTES
    if not packed and size(at_once) > _BLOCK_BYTES:
        return None
    most = _BLOCK_BYTES // size(heads) if packed else 1
    images = next(n for n in range(max(most, 1), 0, -1) if batch % n == 0)
    return _Split(tokens, valid_tokens, heads, head_dim, images, at_once, packed)


def _forward_kernel(split: _Split, has_bias: bool, *refs: Any) -> None:
    """Writes the attended values: qkv (or q, k, v) [, bias] -> out."""
    *inputs, out = refs
    bias = inputs.pop() if has_bias else None

    def attend(image: Any, q: Any, k: Any, v: Any, at: Callable[[int], Any]) -> None:
        for rows in split.rows:
            found = []
            for head, columns in enumerate(split.columns):
                powers, scale = _exponentials(
                    split, q[rows, columns], k[:, columns], bias, (image, head, rows)
                )
                found.append(_dot(powers.astype(v.dtype), v[:, columns], (1, 0)) * scale)
            out[image, rows, at(0)] = jnp.concatenate(found, axis=1).astype(out.dtype)

    _for_each_group(split, inputs, attend)


def _backward_kernel(split: _Split, has_bias: bool, *refs: Any) -> None:
    """Writes the gradients: qkv (or q, k, v) [, bias], d_out -> those of qkv (or q, k, v), bias."""
    arrays = 1 if split.packed else 3
    inputs, rest = refs[:arrays], list(refs[arrays:])
    bias = rest.pop(0) if has_bias else None
    d_bias = rest.pop() if has_bias else None
    d_out, *d_inputs = rest

    def write(part: int, image: Any, rows: slice, at: Callable[[int], Any], heads: Any) -> None:
        ref = d_inputs[0] if split.packed else d_inputs[part]
        found = jnp.concatenate(heads, axis=1).astype(ref.dtype)
        ref[image, rows, at(part if split.packed else 0)] = found

    def differentiate(image: Any, q: Any, k: Any, v: Any, at: Callable[[int], Any]) -> None:
        zero = jnp.zeros((split.tokens, split.head_dim), jnp.float32)
        dk, dv = [zero] * split.heads_at_once, [zero] * split.heads_at_once
        root = split.head_dim**-0.5
        for rows in split.rows:
            d, dq = d_out[image, rows, at(0)], []
            for head, columns in enumerate(split.columns):
                own_q, own_k = q[rows, columns], k[:, columns]
                powers, scale = _exponentials(split, own_q, own_k, bias, (image, head, rows))
                weights = powers * scale
                dv[head] += _dot(weights.astype(d.dtype), d[:, columns], (0, 0))
                dp = _dot(d[:, columns], v[:, columns], (1, 1))
                ds = (dp - (dp * weights).sum(-1, keepdims=True)) * weights
                if d_bias is not None:
                    d_bias[image, head, rows] = ds
                ds = ds.astype(d.dtype)
                dq.append(_dot(ds, own_k, (1, 0)) * root)
                dk[head] += _dot(ds, own_q, (0, 0)) * root
            write(0, image, rows, at, dq)
        write(1, image, slice(None), at, dk)
        write(2, image, slice(None), at, dv)

    _for_each_group(split, inputs, differentiate)


def _for_each_group(split: _Split, inputs: Any, body: Callable[..., None]) -> None:
    """Calls body(image, q, k, v, at) for all groups of heads of all images of a step.

    `at(part)` returns the group's columns in the part-th third of a packed array.
    """
    if not split.packed:
        body(0, *(ref[0] for ref in inputs), lambda part: slice(None))
        return

    def iteration(index: jax.Array, _: None) -> None:
        # Not // and %: their rules for negative numbers ask for the default device.
        image, group = jax.lax.div(index, split.groups), jax.lax.rem(index, split.groups)

        def at(part: int) -> Any:
            start = part * split.width
            if split.groups == 1:
                return slice(start, start + split.width)
            return pl.ds(
                pl.multiple_of(start + group * split.width_at_once, _LANES), split.width_at_once
            )

        body(image, *(inputs[0][image, :, at(part)] for part in range(3)), at)

    jax.lax.fori_loop(0, split.images * split.groups, iteration, None)


def _exponentials(
    split: _Split, q: jax.Array, k: jax.Array, bias: Any, at: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    """Returns exp(logits - the largest of the row), f32[R, N], and 1 / the sum of each row."""
    logits = _dot(q, k, (1, 1)) * split.head_dim**-0.5
    if bias is not None:
        logits += bias[at]
    if split.valid_tokens < split.tokens:
        column = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
        logits = jnp.where(column < split.valid_tokens, logits, -jnp.inf)
    powers = jnp.exp(logits - logits.max(-1, keepdims=True))
    return powers, 1 / powers.sum(-1, keepdims=True)


def _dot(a: jax.Array, b: jax.Array, contracted: tuple[int, int]) -> jax.Array:
    """Returns the product in float32, contracted over an axis of each."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    dims = (((contracted[0],), (contracted[1],)), ((), ()))
    return jax.lax.dot_general(a, b, dims, precision, preferred_element_type=jnp.float32)


def _call(
    valid_tokens: int, qkv: jax.Array, bias: jax.Array | None, d_out: jax.Array | None
) -> tuple[jax.Array, ...]:
    """Returns (out,), or if `d_out` is given, the gradients of qkv and bias, on one device."""
    B, N, _, H, K = qkv.shape
    has_bias = bias is not None
    split = _split(B, N, valid_tokens, H, K, qkv.dtype.itemsize, has_bias=has_bias)
    assert split is not None, "choose_attention checks that the kernel fits"
    grid = (B // split.images,) if split.packed else (B, split.groups)

    def block(width: int, part: int = 0) -> pl.BlockSpec:
        if split.packed:
            return pl.BlockSpec((split.images, N, width), lambda i: (i, 0, 0))
        return pl.BlockSpec((1, N, width), lambda i, j: (i, 0, part * split.groups + j))

    bias_block = pl.BlockSpec((1, split.heads_at_once, N, N), lambda i, j: (i, j, 0, 0))
    flat = qkv.reshape(B, N, 3 * split.width)
    own = split.width if split.packed else split.width_at_once
    parts = [block(3 * own)] if split.packed else [block(own, part) for part in range(3)]
    inputs, in_specs = [flat] * len(parts), list(parts)
    if bias is not None:
        inputs, in_specs = [*inputs, bias], [*in_specs, bias_block]
    if d_out is None:
        kernel, out_specs, shapes = _forward_kernel, [block(own)], [(B, N, split.width)]
    else:
        inputs, in_specs = [*inputs, d_out.reshape(B, N, split.width)], [*in_specs, block(own)]
        kernel = _backward_kernel
        out_specs = list(parts) if split.packed else [block(own)] * 3
        shapes = [flat.shape] if split.packed else [(B, N, split.width)] * 3
    out_shape = [jax.ShapeDtypeStruct(shape, qkv.dtype) for shape in shapes]
    if bias is not None and d_out is not None:
        out_specs, out_shape = [*out_specs, bias_block], [*out_shape, bias]
    products = 2 if d_out is None else 5
    call = functools.partial(
        pl.pallas_call,
        functools.partial(kernel, split, has_bias),
        grid=grid,
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=out_shape,
        cost_estimate=pl.CostEstimate(
            flops=2 * products * B * H * N * N * K,
            transcendentals=B * H * N * N,
            bytes_accessed=sum(
                x.size * x.dtype.itemsize
                for x in {id(x): x for x in (*inputs, *out_shape)}.values()
            ),
        ),
    )
    found = jax.lax.platform_dependent(
        *inputs,
        tpu=call(
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * len(grid))
        ),
        default=call(interpret=True),
    )
    if d_out is None:
        return (found[0].reshape(B, N, H, K),)
    d_parts = found[: len(out_shape) - has_bias]
    d_flat = d_parts[0] if split.packed else jnp.concatenate(d_parts, axis=-1)
    return d_flat.reshape(qkv.shape), *found[len(d_parts) :]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(valid_tokens: int, qkv: jax.Array, bias: jax.Array | None) -> jax.Array:
    def forward(qkv: jax.Array, *bias: jax.Array) -> jax.Array:
        return _call(valid_tokens, qkv, bias[0] if bias else None, None)[0]

    if bias is None:
        return on_each_device(forward, [_QKV], _OUT)(qkv)
    return on_each_device(forward, [_QKV, _BIAS], _OUT)(qkv, bias)


def _attend_fwd(
    valid_tokens: int, qkv: jax.Array, bias: jax.Array | None
) -> tuple[jax.Array, tuple[jax.Array, jax.Array | None]]:
    return _attend(valid_tokens, qkv, bias), (qkv, bias)


def _attend_bwd(
    valid_tokens: int, kept: tuple[jax.Array, jax.Array | None], d_out: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    def backward(qkv: jax.Array, d_out: jax.Array, *bias: jax.Array) -> tuple[jax.Array, ...]:
        return _call(valid_tokens, qkv, bias[0] if bias else None, d_out)

    qkv, bias = kept
    if bias is None:
        return *on_each_device(backward, [_QKV, _OUT], (_QKV,))(qkv, d_out), None
    return on_each_device(backward, [_QKV, _OUT, _BIAS], (_QKV, _BIAS))(qkv, d_out, bias)


_attend.defvjp(_attend_fwd, _attend_bwd)
