"""The attention kernels of a device, for `bench step --compare=attention`.

Some are implementations of `models.attention`. The others are candidates: kernels for TPUs that
ship with JAX. No config key chooses a candidate. The benchmark traces a step with one to see
whether it should become an implementation.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.errors import ModelError
from vit_jax.models.activation_sharding import Dimension, on_each_device

_LANES = 128
# Longest block. The float32 logits of a block of queries and keys are then at most 1.6 MiB.
_MAX_BLOCK = 640
_HEADS_FIRST: tuple[Dimension, ...] = ("batch", "tensor", None, None)

IMPLEMENTATIONS = ("pallas", "cudnn", "xla", "einsum")
"""Values of `model.attention_implementation` that name a kernel."""


def flash(
    query: Float[Array, "B N H K"],
    key: Float[Array, "B M H K"],
    value: Float[Array, "B M H K"],
    *,
    bias: Float[Array, "B H N M"] | None = None,
    valid_tokens: int | None = None,
) -> Float[Array, "B N H K"]:
    """`attend` by JAX's flash attention for TPUs.

    Source: jax.experimental.pallas.ops.tpu.flash_attention. The kernel takes sequences of whole
    blocks and does not divide logits by sqrt(K). It scales the logits after it has added a bias.

    Args:
        query: [B, N, H, K].
        key: [B, M, H, K].
        value: [B, M, H, K].
        bias: logits added before the softmax.
        valid_tokens: keys and values after the first `valid_tokens` are padding and get no weight.
    """
    from jax.experimental.pallas.ops.tpu import flash_attention as library

    scale = query.shape[-1] ** -0.5

    def attend_part(q: jax.Array, k: jax.Array, v: jax.Array, *rest: jax.Array) -> jax.Array:
        q_block, k_block = _block(q.shape[2]), _block(k.shape[2])
        real = k.shape[2] if valid_tokens is None else valid_tokens
        q, k, v = _padded(q, q_block, 2), _padded(k, k_block, 2), _padded(v, k_block, 2)
        queries, keys = q.shape[2], k.shape[2]
        logits = None
        if rest:
            logits = _padded(_padded(rest[0] / scale, q_block, 2), k_block, 3)
        q_segments, k_segments = _segments(queries, keys, real)
        segments = library.SegmentIds(
            jnp.broadcast_to(q_segments[None], (len(q), queries)),
            jnp.broadcast_to(k_segments[None], (len(q), keys)),
        )
        blocks = library.BlockSizes(
            block_q=q_block,
            block_k_major=k_block,
            block_k=k_block,
            block_b=1,
            block_q_major_dkv=q_block,
            block_k_major_dkv=k_block,
            block_k_dkv=k_block,
            block_q_dkv=q_block,
            block_k_major_dq=k_block,
            block_k_dq=k_block,
            block_q_dq=q_block,
        )
        return library.flash_attention(
            q, k, v, logits, segments, sm_scale=scale, block_sizes=blocks
        )

    arrays = [jnp.swapaxes(x, 1, 2) for x in (query, key, value)]
    arrays += [] if bias is None else [bias]
    out = on_each_device(attend_part, [_HEADS_FIRST] * len(arrays), _HEADS_FIRST)(*arrays)
    return jnp.swapaxes(out[:, :, : query.shape[1]], 1, 2)


def splash(
    query: Float[Array, "B N H K"],
    key: Float[Array, "B M H K"],
    value: Float[Array, "B M H K"],
    *,
    bias: Float[Array, "B H N M"] | None = None,
    valid_tokens: int | None = None,
) -> Float[Array, "B N H K"]:
    """`attend` by JAX's splash attention for TPUs.

    Source: jax.experimental.pallas.ops.tpu.splash_attention. The kernel takes the heads of one
    image, sequences of whole blocks, and queries that are already divided by sqrt(K). One kernel
    computes all gradients.

    Args:
        query: [B, N, H, K].
        key: [B, M, H, K].
        value: [B, M, H, K].
        bias: must be None.
        valid_tokens: keys and values after the first `valid_tokens` are padding and get no weight.

    Raises:
        ModelError: there is a bias.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as library

    if bias is not None:
        raise ModelError(
            "splash attention with a position bias",
            "no bias, which its kernel cannot add",
            "use another attention kernel",
        )

    def attend_part(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        q_block, k_block = _block(q.shape[2]), _block(k.shape[2])
        real = k.shape[2] if valid_tokens is None else valid_tokens
        q, k, v = _padded(q, q_block, 2), _padded(k, k_block, 2), _padded(v, k_block, 2)
        queries, keys = q.shape[2], k.shape[2]
        every_key = library.FullMask((queries, keys))
        kernel: Any = library.make_splash_mha_single_device(
            mask=library.MultiHeadMask([every_key] * q.shape[1]),
            block_sizes=library.BlockSizes(
                block_q=q_block,
                block_kv=k_block,
                block_q_dkv=q_block,
                block_kv_dkv=k_block,
                use_fused_bwd_kernel=True,
            ),
        )
        segments = library.SegmentIds(*_segments(queries, keys, real))
        return jax.vmap(kernel, in_axes=(0, 0, 0, None))(q, k, v, segments)

    scaled = query * query.shape[-1] ** -0.5
    arrays = [jnp.swapaxes(x, 1, 2) for x in (scaled, key, value)]
    out = on_each_device(attend_part, [_HEADS_FIRST] * 3, _HEADS_FIRST)(*arrays)
    return jnp.swapaxes(out[:, :, : query.shape[1]], 1, 2)


CANDIDATES: dict[str, Callable[..., jax.Array]] = {"flash": flash, "splash": splash}
"""Kernels for TPUs that are not implementations, by name."""


def kernel_problem(name: str, platform: str) -> str | None:
    """Returns why a kernel is not timed on a platform; None: it is.

    Args:
        name: one of `IMPLEMENTATIONS` or `CANDIDATES`.
        platform: "cpu", "gpu" or "tpu".
    """
    needs = "gpu" if name == "cudnn" else "tpu" if name in ("pallas", *CANDIDATES) else platform
    if needs == platform:
        return None
    if platform == "cpu" and name == "pallas":
        return "a CPU interprets it, which is slow; attention_implementation=pallas measures it"
    return f"needs a {needs.upper()}, this is a {platform}"


def _block(tokens: int) -> int:
    """Returns the size of the fewest equal blocks, a multiple of 128.

    >>> [_block(tokens) for tokens in (5, 197, 577, 785, 1025)]
    [128, 256, 640, 512, 640]
    """
    blocks = math.ceil(tokens / _MAX_BLOCK)
    return math.ceil(tokens / blocks / _LANES) * _LANES


def _padded(x: jax.Array, block: int, axis: int) -> jax.Array:
    """Returns x with zeros at the end of an axis, which then has whole blocks."""
    missing = -x.shape[axis] % block
    return jnp.pad(x, [(0, missing if axis == i else 0) for i in range(x.ndim)])


def _segments(queries: int, keys: int, valid_tokens: int) -> tuple[jax.Array, jax.Array]:
    """Returns segment ids: queries attend to keys of the same segment, which are the valid ones."""
    return jnp.zeros(queries, jnp.int32), (jnp.arange(keys) >= valid_tokens).astype(jnp.int32)
