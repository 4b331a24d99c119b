"""Times the attention kernels of this device in turn: forward and backward pass of one layer.

    python -m experiments.speed.attention_kernels --model=ViT-B/16 --batch_size=64

"pallas", "cudnn", "xla" and "einsum" are values of `model.attention_implementation`; `bench step
--config.model.attention_implementation=xla` times a whole step with one. "flash" and "splash" ship
with JAX for TPUs. No config key chooses them; they are here to see whether they should become an
implementation. A kernel that does not run on this device has the reason instead of a time.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.models.attention import attend
from vit_jax.models.registry import model_options, model_shape

_LANES = 128
# Longest block. The float32 logits of a block of queries and keys are then at most 1.6 MiB.
_MAX_BLOCK = 640


def flash(
    query: Float[Array, "B N H K"], key: Float[Array, "B N H K"], value: Float[Array, "B N H K"]
) -> Float[Array, "B N H K"]:
    """Attention by jax.experimental.pallas.ops.tpu.flash_attention.

    The kernel takes sequences of whole blocks and does not divide logits by sqrt(K).
    """
    from jax.experimental.pallas.ops.tpu import flash_attention as library

    tokens, block = query.shape[1], _block(query.shape[1])
    q, k, v = (_whole_blocks(x, block) for x in (query, key, value))
    q_segments, k_segments = _segments(q.shape[2], tokens)
    segments = library.SegmentIds(*(jnp.tile(s, (len(q), 1)) for s in (q_segments, k_segments)))
    names = (
        "block_q block_k_major block_k block_q_major_dkv block_k_major_dkv block_k_dkv block_q_dkv"
        " block_k_major_dq block_k_dq block_q_dq"
    )
    blocks = library.BlockSizes(block_b=1, **dict.fromkeys(names.split(), block))
    scale = query.shape[-1] ** -0.5
    out = library.flash_attention(q, k, v, None, segments, sm_scale=scale, block_sizes=blocks)
    return jnp.swapaxes(out[:, :, :tokens], 1, 2)


def splash(
    query: Float[Array, "B N H K"], key: Float[Array, "B N H K"], value: Float[Array, "B N H K"]
) -> Float[Array, "B N H K"]:
    """Attention by jax.experimental.pallas.ops.tpu.splash_attention.

    The kernel takes the heads of one image, sequences of whole blocks, and queries that are already
    divided by sqrt(K). One kernel computes all gradients.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as library

    tokens, block = query.shape[1], _block(query.shape[1])
    q, k, v = (_whole_blocks(x, block) for x in (query * query.shape[-1] ** -0.5, key, value))
    every_key = library.FullMask((q.shape[2], q.shape[2]))
    names = ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv")
    sizes: dict[str, Any] = dict.fromkeys(names, block)
    kernel: Any = library.make_splash_mha_single_device(
        mask=library.MultiHeadMask([every_key] * q.shape[1]),
        block_sizes=library.BlockSizes(**sizes, use_fused_bwd_kernel=True),
    )
    segments = library.SegmentIds(*_segments(q.shape[2], tokens))
    out = jax.vmap(kernel, in_axes=(0, 0, 0, None))(q, k, v, segments)
    return jnp.swapaxes(out[:, :, :tokens], 1, 2)


def _block(tokens: int) -> int:
    """Returns the size of the fewest equal blocks, a multiple of 128.

    >>> [_block(tokens) for tokens in (5, 197, 577, 785, 1025)]
    [128, 256, 640, 512, 640]
    """
    blocks = math.ceil(tokens / _MAX_BLOCK)
    return math.ceil(tokens / blocks / _LANES) * _LANES


def _whole_blocks(x: Float[Array, "B N H K"], block: int) -> Float[Array, "B H M K"]:
    padded = jnp.pad(x, ((0, 0), (0, -x.shape[1] % block), (0, 0), (0, 0)))
    return jnp.swapaxes(padded, 1, 2)


def _segments(length: int, tokens: int) -> tuple[jax.Array, jax.Array]:
    """Returns segment ids: queries attend to the keys of their segment, the real tokens."""
    return jnp.zeros(length, jnp.int32), (jnp.arange(length) >= tokens).astype(jnp.int32)


KERNELS: dict[str, Callable[..., jax.Array]] = {
    **{name: partial(attend, implementation=name) for name in ("pallas", "cudnn", "xla", "einsum")},
    "flash": flash,
    "splash": splash,
}
_NEEDS = {"pallas": "tpu", "cudnn": "gpu", "flash": "tpu", "splash": "tpu"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Times the kernels and prints the medians."""
    parser = argparse.ArgumentParser(prog="python -m experiments.speed.attention_kernels")
    parser.add_argument("--model", default="ViT-B/16", help="a ViT, for tokens, heads and features")
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=10, help="per round")
    args = parser.parse_args(arguments)
    shape: Any = model_shape(model_options(args.model))
    tokens = (args.image_size // shape.patch_size) ** 2 + 1
    size = (args.batch_size, tokens, shape.num_heads, shape.width // shape.num_heads)
    draws = np.random.default_rng(0).standard_normal((3, *size))
    inputs = jnp.asarray(draws, args.dtype)
    print(f"{args.model}: [B, N, H, K] = {size}, {args.dtype}, {jax.devices()[0].device_kind}")

    steps = {}
    for name, kernel in KERNELS.items():
        if _NEEDS.get(name, jax.default_backend()) != jax.default_backend():
            print(f"{name:10} needs a {_NEEDS[name].upper()}")
            continue
        step = jax.jit(jax.grad(lambda x, kernel=kernel: jnp.square(kernel(*x)).sum()))
        try:
            jax.block_until_ready(step(inputs))
        except Exception as error:  # Compilers raise various types; the others can be timed.
            print(f"{name:10} {str(error).splitlines()[0][:100]}")
        else:
            steps[name] = step
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(args.rounds):
        for name, step in steps.items():
            begin = time.perf_counter()
            for _ in range(args.calls):
                found = step(inputs)
            jax.block_until_ready(found)
            times[name].append((time.perf_counter() - begin) / args.calls)
    for name, seconds in times.items():
        low, median, high = (f(seconds) * 1e3 for f in (min, statistics.median, max))
        print(f"{name:10} {median:8.3f} ms ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
