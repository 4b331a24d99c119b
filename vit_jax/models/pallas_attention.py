"""Self-attention as one Pallas kernel for TPUs, for sequences that fit on the chip.

A step of the kernel's grid computes whole heads: logits, softmax and weighted values never leave
the chip's vector memory (VMEM). The backward pass computes the weights again from queries and keys.
So no [B, H, N, N] array reaches device memory, and the softmax is in float32. Queries, keys and
values come in one array, as they leave their projection, and their gradients leave in one.
"""

import contextlib
import contextvars
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
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
_BLOCK_BYTES = 12 * 2**20
_MAX_ROWS = 320

_QKV: tuple[Dimension, ...] = ("batch", None, None, "tensor", None)
_QKV_BIAS: tuple[Dimension, ...] = (None, "tensor", None)
_QKV_BIASES: tuple[Dimension, ...] = ("batch", None, "tensor", None)
_BIAS: tuple[Dimension, ...] = ("batch", "tensor", None, None)
_OUT: tuple[Dimension, ...] = ("batch", None, "tensor", None)


def attend_qkv(
    qkv: Float[Array, "B N 3 H K"],
    *,
    qkv_bias: Float[Array, "3 H K"] | None = None,
    bias: Float[Array, "B H N N"] | None = None,
    num_valid: int | None = None,
) -> Float[Array, "B N H K"]:
    """softmax(query key^T / sqrt(K) + bias) value, with gradients for all arrays.

    Under a mesh, each device computes its own images and heads. On other platforms than TPUs the
    kernel is interpreted, which is slow.

    `qkv_bias`, of the type of `qkv`, is added to it. The kernel sums its gradient on the chip,
    which saves a pass over the gradient of `qkv`. `bias` is f32. Keys and values after the first
    `num_valid` are padding and get no weight.
    """
    return _attend(num_valid or qkv.shape[1], qkv, qkv_bias, bias)


def fits(tokens: int, num_heads: int, head_dim: int, itemsize: int, *, has_bias: bool) -> bool:
    """Whether the blocks of a device's heads fit into the VMEM of every TPU since v4."""
    split = _split(1, tokens, tokens, num_heads, head_dim, itemsize, has_bias=has_bias)
    return split is not None and tokens <= MAX_TOKENS


@dataclasses.dataclass(frozen=True)
class Split:
    """How the work of a call is split over the grid, and its sizes.

    Attributes:
        tokens: N.
        num_valid: keys after these get no weight.
        heads: H.
        head_dim: K.
        images: images of a step.
        heads_at_once: heads that are computed without a loop. Their features fill whole tiles of
            128 lanes, unless they are all heads.
        packed: a step has all heads of its images, and the gradients leave in one array.
            Otherwise, a step has `heads_at_once` of one image.
        has_qkv_bias: whether queries, keys and values have a bias.
        has_bias: whether a position bias is added to the logits.
    """

    tokens: int
    num_valid: int
    heads: int
    head_dim: int
    images: int
    heads_at_once: int
    packed: bool
    has_qkv_bias: bool
    has_bias: bool

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


@dataclasses.dataclass(frozen=True)
class Call:
    """The program that a device runs for a call of the kernel: its split, and the arrays' type."""

    split: Split
    dtype: str

    @property
    def small_batch(self) -> int:
        """Images of two steps of the grid; of one, if two would be computed in one step."""
        split, itemsize = self.split, jnp.dtype(self.dtype).itemsize
        sizes = split.tokens, split.num_valid, split.heads, split.head_dim, itemsize
        biases = {"has_qkv_bias": split.has_qkv_bias, "has_bias": split.has_bias}
        two = 2 * split.images
        return two if _split(two, *sizes, **biases) == split else split.images


# The calls that are traced inside `noted_calls`; None: outside of it.
_noted: contextvars.ContextVar[set[Call] | None] = contextvars.ContextVar("calls", default=None)


@contextlib.contextmanager
def noted_calls() -> Iterator[set[Call]]:
    """Yields a set to which each call of the kernel that is traced in the block is added.

    With several devices, this also adds the call that one device would make for all of them.
    """
    calls: set[Call] = set()
    token = _noted.set(calls)
    try:
        yield calls
    finally:
        _noted.reset(token)


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _split(
    batch: int,
    tokens: int,
    num_valid: int,
    heads: int,
    head_dim: int,
    itemsize: int,
    *,
    has_qkv_bias: bool = False,
    has_bias: bool,
) -> Split | None:
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
    return Split(
        tokens, num_valid, heads, head_dim, images, at_once, packed, has_qkv_bias, has_bias
    )


def _forward_kernel(split: Split, *refs: Any) -> None:
    """Writes the attended values: qkv [, its bias], or q, k, v [, bias] -> out."""
    *inputs, out = refs
    bias = inputs.pop() if split.has_bias else None

    def attend(image: Any, head: int, q: jax.Array, k: jax.Array, v: jax.Array) -> list[jax.Array]:
        found = []
        for rows in split.rows:
            powers, scale = _exponentials(split, q[rows], k, bias, (image, head, rows))
            found.append(_dot(powers.astype(v.dtype), v, (1, 0)) * scale)
        return [jnp.concatenate(found)]

    def write(part: int, image: Any, columns: Any, found: jax.Array) -> None:
        del part
        out[image, :, columns] = found.astype(out.dtype)

    _for_each_head(split, inputs, attend, write)


def _backward_kernel(split: Split, *refs: Any) -> None:
    """Writes the gradients of its inputs: those of `_forward_kernel`, d_out -> gradients."""
    arrays = 3 if not split.packed else 2 if split.has_qkv_bias else 1
    inputs, rest = refs[:arrays], list(refs[arrays:])
    bias = rest.pop(0) if split.has_bias else None
    d_bias = rest.pop() if split.has_bias else None
    d_out, *d_inputs = rest

    def differentiate(
        image: Any, head: int, q: jax.Array, k: jax.Array, v: jax.Array, d: jax.Array
    ) -> list[jax.Array]:
        dq, dk, dv = [], jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
        for rows in split.rows:
            powers, scale = _exponentials(split, q[rows], k, bias, (image, head, rows))
            weights = powers * scale
            dv += _dot(weights.astype(d.dtype), d[rows], (0, 0))
            dp = _dot(d[rows], v, (1, 1))
            ds = (dp - (dp * weights).sum(-1, keepdims=True)) * weights
            if d_bias is not None:
                d_bias[image, head, rows] = ds
            ds = ds.astype(d.dtype)
            dq.append(_dot(ds, k, (1, 0)))
            dk += _dot(ds, q[rows], (0, 0))
        root = split.head_dim**-0.5
        return [jnp.concatenate(dq) * root, dk * root, dv]

    def write(part: int, image: Any, columns: Any, found: jax.Array) -> None:
        ref = d_inputs[0] if split.packed else d_inputs[part]
        ref[image, :, columns] = found.astype(ref.dtype)
        if split.packed and split.has_qkv_bias:
            d_inputs[1][image, :, columns] = found.sum(0, keepdims=True)

    _for_each_head(split, inputs, differentiate, write, d_out)


def _for_each_head(
    split: Split,
    inputs: Any,
    compute: Callable[..., list[jax.Array]],
    write: Callable[[int, Any, Any, jax.Array], None],
    d_out: Any = None,
) -> None:
    """Computes all heads of all images of a step, and writes the results.

    `inputs` refers to qkv [and its bias], or to q, k and v. `compute` maps (image, head of its
    group, q, k, v[, d]) to results, each f32[N, K]; `write` takes (index of the result, image,
    columns, result). `d_out` refers to the gradient of the output, if `compute` takes it.
    """

    def columns_of(group: Any, part: int, head: int | None = None) -> Any:
        """Columns of a group, or of one of its heads, in the part-th third of a packed array."""
        start = part * split.width if split.packed else 0
        if not split.packed or split.groups == 1:
            own = slice(0, split.width_at_once) if head is None else split.columns[head]
            return slice(start + own.start, start + own.stop)
        start = pl.multiple_of(start + group * split.width_at_once, _LANES)
        return pl.ds(start, split.width_at_once)

    def one_group(image: Any, group: Any) -> None:
        def load(part: int) -> jax.Array:
            if not split.packed:
                return inputs[part][image]
            rows = inputs[0][image, :, columns_of(group, part)]
            if split.has_qkv_bias:
                rows += inputs[1][0, :, columns_of(group, part)]
            return rows

        arrays = [load(part) for part in range(3)]
        if d_out is not None:
            arrays.append(d_out[image, :, columns_of(group, 0)])
        found = []
        for head, columns in enumerate(split.columns):
            results = compute(image, head, *(array[:, columns] for array in arrays))
            if split.packed and split.groups == 1:
                for part, result in enumerate(results):
                    write(part, image, columns_of(0, part, head), result)
            else:  # Columns that are not static must be whole tiles.
                found.append(results)
        for part, results in enumerate(zip(*found, strict=True)):
            write(part, image, columns_of(group, part), jnp.concatenate(results, axis=1))

    def iteration(index: jax.Array, _: None) -> None:
        # Not // and %: their rules for negative numbers ask for the default device.
        one_group(jax.lax.div(index, split.groups), jax.lax.rem(index, split.groups))

    if split.packed:
        jax.lax.fori_loop(0, split.images * split.groups, iteration, None)
    else:
        one_group(0, 0)


def _exponentials(
    split: Split, q: jax.Array, k: jax.Array, bias: Any, at: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    """Returns exp(logits - the largest of the row), f32[R, N], and 1 / the sum of each row."""
    logits = _dot(q, k, (1, 1)) * split.head_dim**-0.5
    if bias is not None:
        logits += bias[at]
    if split.num_valid < split.tokens:
        column = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
        logits = jnp.where(column < split.num_valid, logits, -jnp.inf)
    powers = jnp.exp(logits - logits.max(-1, keepdims=True))
    return powers, 1 / powers.sum(-1, keepdims=True)


def _dot(a: jax.Array, b: jax.Array, contracted: tuple[int, int]) -> jax.Array:
    """Returns the product in float32, contracted over an axis of each."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    dims = (((contracted[0],), (contracted[1],)), ((), ()))
    return jax.lax.dot_general(a, b, dims, precision, preferred_element_type=jnp.float32)


def _call(
    num_valid: int,
    qkv: jax.Array,
    qkv_bias: jax.Array | None,
    bias: jax.Array | None,
    d_out: jax.Array | None,
) -> tuple[jax.Array, ...]:
    """Returns (out,), or if `d_out` is given, the gradients of the arrays, on one device.

    The gradient of `qkv_bias` is not yet summed over the images: f32[B, 3, H, K].
    """
    B, N, _, H, K = qkv.shape
    split = _split(
        B,
        N,
        num_valid,
        H,
        K,
        qkv.dtype.itemsize,
        has_qkv_bias=qkv_bias is not None,
        has_bias=bias is not None,
    )
    assert split is not None, "choose_attention checks that the kernel fits"
    if (noted := _noted.get()) is not None:
        noted.add(Call(split, qkv.dtype.name))
    if not split.packed and qkv_bias is not None:
        qkv = qkv + qkv_bias[None, None]
    flat = qkv.reshape(B, N, 3 * split.width)
    own = split.width if split.packed else split.width_at_once

    def block(width: int, part: int = 0) -> pl.BlockSpec:
        if split.packed:
            return pl.BlockSpec((split.images, N, width), lambda i: (i, 0, 0))
        return pl.BlockSpec((1, N, width), lambda i, j: (i, 0, part * split.groups + j))

    # (array, block) of each input, (shape and type, block) of each gradient.
    inputs: list[tuple[jax.Array, pl.BlockSpec]]
    if split.packed:
        inputs = [(flat, block(3 * own))]
        gradients = [(jax.ShapeDtypeStruct(flat.shape, qkv.dtype), block(3 * own))]
        if qkv_bias is not None:
            one_row = (1, 1, 3 * own)
            inputs.append((qkv_bias.reshape(one_row), pl.BlockSpec(one_row, lambda i: (0, 0, 0))))
            gradients.append(
                (
                    jax.ShapeDtypeStruct((B, 1, 3 * own), jnp.float32),
                    pl.BlockSpec((split.images, 1, 3 * own), lambda i: (i, 0, 0)),
                )
            )
    else:
        inputs = [(flat, block(own, part)) for part in range(3)]
        part_shape = jax.ShapeDtypeStruct((B, N, split.width), qkv.dtype)
        gradients = [(part_shape, block(own))] * 3
    if bias is not None:
        heads = (1, split.heads_at_once, N, N)
        inputs.append((bias, pl.BlockSpec(heads, lambda i, j: (i, j, 0, 0))))
        gradients.append((jax.ShapeDtypeStruct(bias.shape, bias.dtype), inputs[-1][1]))
    grid = (B // split.images,) if split.packed else (B, split.groups)
    if d_out is None:
        out = jax.ShapeDtypeStruct((B, N, split.width), qkv.dtype)
        (found,) = _run(_forward_kernel, split, grid, inputs, [(out, block(own))], products=2)
        return (found.reshape(B, N, H, K),)
    inputs.append((d_out.reshape(B, N, split.width), block(own)))
    found = _run(_backward_kernel, split, grid, inputs, gradients, products=5)
    d_bias = (found.pop(),) if bias is not None else ()
    d_flat = found[0] if split.packed else jnp.concatenate(found, axis=-1)
    if qkv_bias is None:
        return d_flat.reshape(qkv.shape), *d_bias
    d_rows = found[1] if split.packed else d_flat.astype(jnp.float32).sum(1)
    return d_flat.reshape(qkv.shape), d_rows.reshape(B, 3, H, K), *d_bias


def _run(
    kernel: Callable[..., None],
    split: Split,
    grid: tuple[int, ...],
    inputs: list[tuple[jax.Array, pl.BlockSpec]],
    outputs: list[tuple[jax.ShapeDtypeStruct, pl.BlockSpec]],
    *,
    products: int,
) -> list[jax.Array]:
    """Runs a kernel that computes a number of [N, N] x K products for each head."""
    arrays, in_specs = zip(*inputs, strict=True)
    shapes, out_specs = zip(*outputs, strict=True)
    logits = arrays[0].shape[0] * split.heads * split.tokens**2
    # An array that is read in three parts is listed three times.
    moved = {id(array): array for array in (*arrays, *shapes)}.values()
    call = functools.partial(
        pl.pallas_call,
        functools.partial(kernel, split),
        grid=grid,
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=shapes,
        cost_estimate=pl.CostEstimate(
            flops=2 * products * logits * split.head_dim,
            transcendentals=logits,
            bytes_accessed=sum(array.size * array.dtype.itemsize for array in moved),
        ),
    )
    any_order = pltpu.CompilerParams(dimension_semantics=("parallel",) * len(grid))
    return list(
        jax.lax.platform_dependent(
            *arrays, tpu=call(compiler_params=any_order), default=call(interpret=True)
        )
    )


def _given(*pairs: tuple[Any, Any]) -> tuple[list[Any], list[Any]]:
    """Returns the arrays that are not None, and what belongs to them."""
    given = [pair for pair in pairs if pair[0] is not None]
    return [array for array, _ in given], [other for _, other in given]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    num_valid: int, qkv: jax.Array, qkv_bias: jax.Array | None, bias: jax.Array | None
) -> jax.Array:
    def forward(qkv: jax.Array, *rest: jax.Array) -> jax.Array:
        left = list(rest)
        own_qkv_bias = None if qkv_bias is None else left.pop(0)
        own_bias = None if bias is None else left.pop(0)
        return _call(num_valid, qkv, own_qkv_bias, own_bias, None)[0]

    arrays, dimensions = _given((qkv, _QKV), (qkv_bias, _QKV_BIAS), (bias, _BIAS))
    return on_each_device(forward, dimensions, _OUT)(*arrays)


_Arrays = tuple[jax.Array, jax.Array | None, jax.Array | None]


def _attend_fwd(
    num_valid: int, qkv: jax.Array, qkv_bias: jax.Array | None, bias: jax.Array | None
) -> tuple[jax.Array, _Arrays]:
    return _attend(num_valid, qkv, qkv_bias, bias), (qkv, qkv_bias, bias)


def _attend_bwd(num_valid: int, kept: _Arrays, d_out: jax.Array) -> _Arrays:
    qkv, qkv_bias, bias = kept

    def backward(qkv: jax.Array, d_out: jax.Array, *rest: jax.Array) -> tuple[jax.Array, ...]:
        left = list(rest)
        own_qkv_bias = None if qkv_bias is None else left.pop(0)
        own_bias = None if bias is None else left.pop(0)
        return _call(num_valid, qkv, own_qkv_bias, own_bias, d_out)

    arrays, dimensions = _given((qkv, _QKV), (d_out, _OUT), (qkv_bias, _QKV_BIAS), (bias, _BIAS))
    _, results = _given((qkv, _QKV), (qkv_bias, _QKV_BIASES), (bias, _BIAS))
    d_qkv, *left = on_each_device(backward, dimensions, tuple(results))(*arrays)
    d_qkv_bias = None if qkv_bias is None else left.pop(0).sum(0).astype(qkv_bias.dtype)
    return d_qkv, d_qkv_bias, left.pop(0) if left else None


_attend.defvjp(_attend_fwd, _attend_bwd)
