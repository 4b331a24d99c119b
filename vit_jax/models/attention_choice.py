"""The choice of the kernel that computes attention: for the device, the sizes and the options."""

import dataclasses
import functools
import logging

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vit_jax.errors import ModelError
from vit_jax.models.attention import Implementation, attend

log = logging.getLogger(__name__)

# Why a kernel is chosen where it can be used.
_REASONS = {
    "pallas": "TPU, moves the fewest bytes",
    "cudnn": "GPU, 16-bit, supported head dimension",
}


@dataclasses.dataclass(frozen=True)
class AttentionChoice:
    """The kernel to use, what the number of tokens must be divisible by, and why it is chosen."""

    implementation: Implementation
    token_multiple: int
    reason: str


def choose_attention(
    requested: str,
    *,
    tokens: int,
    head_dim: int,
    num_heads: int,
    dtype: DTypeLike,
    has_bias: bool,
    platform: str | None = None,
) -> AttentionChoice:
    """Chooses the attention kernel for a shape.

    cuDNN's flash attention can only train with an even number of tokens. An odd number, as in most
    ViTs with a class token, is padded by one token, which `key_value_seq_lengths` masks.

    On a GPU the shape is compiled once to see whether cuDNN supports it. For GPUs that are not
    there, which `plan` compiles for, only the rules of `_cudnn_problem` count; all GPUs that `plan`
    knows have compute capability 8.0 or newer.

    The Pallas kernel is for TPUs. On a CPU it can be requested, but is interpreted, which is slow.
    On a machine with a TPU, `auto` compiles it once to see whether the compiler accepts it; plans
    for TPUs that are elsewhere only check that its blocks fit into the chip's memory.

    `requested` is "auto" or a kernel, `platform` "cpu", "gpu", "tpu" or None, the default backend.
    The tokens include class token and registers; `has_bias` means a position bias on the logits.
    """
    platform = platform or jax.default_backend()
    if requested in ("xla", "einsum"):
        return AttentionChoice(requested, 1, "requested")
    is_pallas = requested == "pallas" or (requested == "auto" and platform == "tpu")
    kernel = "pallas" if is_pallas else "cudnn"
    multiple = 2 if kernel == "cudnn" else 1
    find_problem = {"pallas": _pallas_problem, "cudnn": _cudnn_problem}[kernel]
    problem = find_problem(
        tokens + -tokens % multiple, num_heads, head_dim, jnp.dtype(dtype), has_bias, platform
    )
    if problem is None:
        reason = "requested" if requested == kernel else _REASONS[kernel]
        return AttentionChoice(kernel, multiple, reason)
    if requested == kernel:
        raise ModelError(
            f"attention_implementation {kernel}, but {problem}",
            "a case that the kernel supports",
            "use auto",
        )
    if platform == "cpu":
        return AttentionChoice("einsum", 1, "fastest on a CPU")
    return AttentionChoice("xla", 1, problem)


def _cudnn_problem(
    tokens: int, num_heads: int, head_dim: int, dtype: jnp.dtype, has_bias: bool, platform: str
) -> str | None:
    """Returns why cuDNN's flash attention cannot be used; None: it can.

    Source: the checks in jax/_src/cudnn/fused_attention_stablehlo.py, which also allow head
    dimensions up to 256 from compute capability 9.0 on.
    """
    if platform not in ("gpu", "cuda"):
        return f"cuDNN needs a GPU, this is a {platform}"
    if dtype not in (jnp.bfloat16, jnp.float16):
        return f"cuDNN needs bfloat16, this is {dtype.name}"
    if has_bias:
        return "cuDNN has no gradient for a learned position bias"
    if head_dim > 128 or head_dim % 8:
        return f"cuDNN does not support head dimension {head_dim}"
    if jax.default_backend() != "gpu":
        return None
    return _compiler_problem("cudnn", tokens, num_heads, head_dim, dtype.name, has_bias=False)


@functools.lru_cache
def _compiler_problem(
    implementation: Implementation,
    tokens: int,
    num_heads: int,
    head_dim: int,
    dtype: str,
    *,
    has_bias: bool,
) -> str | None:
    """Compiles attention and its gradient; returns the kernel's first line of errors, if any."""
    shape = jax.ShapeDtypeStruct((2, tokens, num_heads, head_dim), jnp.dtype(dtype))
    bias = jax.ShapeDtypeStruct((2, num_heads, tokens, tokens), jnp.float32) if has_bias else None

    def total(q, k, v, bias):
        return attend(q, k, v, bias=bias, implementation=implementation, num_valid=tokens - 1).sum()

    try:
        jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(shape, shape, shape, bias).compile()
    except Exception as error:  # Whatever the error is, XLA's kernel works.
        names = {"cudnn": "cuDNN", "pallas": "the Pallas kernel"}
        first_line = str(error).strip().splitlines()[0][:200]
        return f"{names[implementation]} failed: {first_line}"
    return None


def _pallas_problem(
    tokens: int, num_heads: int, head_dim: int, dtype: jnp.dtype, has_bias: bool, platform: str
) -> str | None:
    """Returns why the Pallas kernel cannot be used; None: it can."""
    from vit_jax.models import pallas_attention

    if platform not in ("tpu", "cpu"):
        return f"the Pallas kernel needs a TPU, this is a {platform}"
    if tokens > pallas_attention.MAX_TOKENS:
        return f"the Pallas kernel takes {pallas_attention.MAX_TOKENS} tokens, these are {tokens}"
    if not pallas_attention.fits(tokens, num_heads, head_dim, dtype.itemsize, has_bias=has_bias):
        return f"{num_heads} heads of {tokens} tokens and {head_dim} features do not fit on a chip"
    if platform != "tpu" or jax.default_backend() != "tpu":
        return None
    return _compiler_problem("pallas", tokens, num_heads, head_dim, dtype.name, has_bias=has_bias)


@functools.lru_cache
def log_choice(choice: AttentionChoice, tokens: int) -> None:
    """Logs a choice once per process."""
    padding = -tokens % choice.token_multiple
    log.info(
        "attention: %s%s (%s)",
        choice.implementation,
        f", {tokens} tokens padded to {tokens + padding}" if padding else "",
        choice.reason,
    )
