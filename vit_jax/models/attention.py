"""Multi-head self-attention, and the choice of the kernel that computes it."""

import dataclasses
import functools
import logging
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from vit_jax.errors import ModelError
from vit_jax.models.activation_sharding import constrain, devices_along_tensor
from vit_jax.models.layers import LayerNorm, softmax
from vit_jax.models.position import RelativeBias, rotate
from vit_jax.models.stacking import keep

log = logging.getLogger(__name__)

_xavier_uniform = nnx.initializers.xavier_uniform()

Implementation = Literal["xla", "cudnn", "einsum", "pallas"]

# Number of tokens that are not padding: of all examples, or of each; None: there is no padding.
ValidTokens = int | Int[Array, " B"] | None
# True: the query (third axis) attends to the key (last axis).
Mask = Bool[Array, "#B 1 N M"]

# Of all images, or of each: [B, N, K].
Rope = tuple[Float[Array, "*B N K"], Float[Array, "*B N K"]]


@dataclasses.dataclass(frozen=True)
class AttentionChoice:
    """The kernel to use, the number of tokens to pad to, and the reason for the choice."""

    implementation: Implementation
    padded_tokens: int
    reason: str

    def padding(self, tokens: int) -> int:
        """Returns how many tokens to add to a sequence: cuDNN's kernel needs an even number."""
        return tokens % 2 if self.implementation == "cudnn" else 0


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
    there, which `plan` compiles for, these rules decide alone: compute capability 8.0 or newer
    (every GPU that `plan` knows), bfloat16 or float16, head dimension at most 128 and a multiple
    of 8, no learned bias, an even number of tokens after padding. Source: the checks in
    jax/_src/cudnn/fused_attention_stablehlo.py, which also allow head dimensions up to 256 from
    compute capability 9.0 on.

    The Pallas kernel is for TPUs. On a CPU it can be requested, but is interpreted, which is slow.
    On a machine with a TPU, `auto` compiles it once to see whether the compiler accepts it; plans
    for TPUs that are elsewhere only check that its blocks fit into the chip's memory.

    `requested` is "auto" or a kernel, `platform` "cpu", "gpu", "tpu" or None, the default backend.
    The tokens include class token and registers; `has_bias` means a position bias on the logits.
    """
    platform = platform or jax.default_backend()
    if requested in ("xla", "einsum"):
        return AttentionChoice(requested, tokens, "requested")
    if requested == "pallas" or (requested == "auto" and platform == "tpu"):
        problem = _pallas_problem(tokens, num_heads, head_dim, dtype, has_bias, platform)
        if problem is None:
            reason = "requested" if requested == "pallas" else "TPU, moves the fewest bytes"
            return AttentionChoice("pallas", tokens, reason)
        if requested == "pallas":
            raise ModelError(
                f"attention_implementation pallas, but {problem}",
                "a case that the kernel supports",
                "use auto",
            )
        return AttentionChoice("xla", tokens, problem)
    padded = tokens + tokens % 2
    problem = None
    if platform not in ("gpu", "cuda"):
        problem = f"cuDNN needs a GPU, this is a {platform}"
    elif dtype not in (jnp.bfloat16, jnp.float16):
        problem = f"cuDNN needs bfloat16, this is {jnp.dtype(dtype).name}"
    elif has_bias:
        problem = "cuDNN has no gradient for a learned position bias"
    elif head_dim > 128 or head_dim % 8:
        problem = f"cuDNN does not support head dimension {head_dim}"
    else:
        here = jax.default_backend() == "gpu"
        shape = padded, num_heads, head_dim, jnp.dtype(dtype).name
        failure = _cudnn_problem(*shape) if here else None
        problem = failure and f"cuDNN failed: {failure}"
    if problem is None:
        return AttentionChoice("cudnn", padded, "GPU, 16-bit, supported head dimension")
    if requested == "cudnn":
        raise ModelError(
            f"attention_implementation cudnn, but {problem}",
            "a case that cuDNN supports",
            "use auto",
        )
    if platform == "cpu":
        return AttentionChoice("einsum", tokens, "fastest on a CPU")
    return AttentionChoice("xla", tokens, problem)


def _cudnn_problem(tokens: int, num_heads: int, head_dim: int, dtype: str) -> str | None:
    """Compiles cuDNN attention and its gradient; returns the first line of the error, if any."""
    return _compiler_problem("cudnn", tokens, num_heads, head_dim, dtype, has_bias=False)


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
    """Compiles attention and its gradient; returns the first line of the error, if any."""
    shape = jax.ShapeDtypeStruct((2, tokens, num_heads, head_dim), jnp.dtype(dtype))
    bias = jax.ShapeDtypeStruct((2, num_heads, tokens, tokens), jnp.float32) if has_bias else None

    def total(q, k, v, bias):
        return attend(
            q, k, v, bias=bias, implementation=implementation, valid_tokens=tokens - 1
        ).sum()

    try:
        jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(shape, shape, shape, bias).compile()
    except Exception as error:  # Whatever the error is, XLA's kernel works.
        return str(error).strip().splitlines()[0][:200]
    return None


def _pallas_problem(
    tokens: int, num_heads: int, head_dim: int, dtype: DTypeLike, has_bias: bool, platform: str
) -> str | None:
    """Returns why the Pallas kernel cannot be used; None: it can."""
    from vit_jax.models import pallas_attention

    if platform not in ("tpu", "cpu"):
        return f"the Pallas kernel needs a TPU, this is a {platform}"
    if tokens > pallas_attention.MAX_TOKENS:
        return f"the Pallas kernel takes {pallas_attention.MAX_TOKENS} tokens, these are {tokens}"
    itemsize = jnp.dtype(dtype).itemsize
    if not pallas_attention.fits(tokens, num_heads, head_dim, itemsize, has_bias=has_bias):
        return f"{num_heads} heads of {tokens} tokens and {head_dim} features do not fit on a chip"
    if platform != "tpu" or jax.default_backend() != "tpu":
        return None
    failure = _compiler_problem(
        "pallas", tokens, num_heads, head_dim, jnp.dtype(dtype).name, has_bias=has_bias
    )
    return failure and f"the Pallas kernel failed: {failure}"


@functools.lru_cache
def log_choice(choice: AttentionChoice, tokens: int) -> None:
    """Logs a choice once per process."""
    padding = f", {tokens} tokens padded to {choice.padded_tokens}"
    log.info(
        "attention: %s%s (%s)",
        choice.implementation,
        padding if choice.padded_tokens != tokens else "",
        choice.reason,
    )


def attend(
    query: Float[Array, "B N H K"],
    key: Float[Array, "B M H K"],
    value: Float[Array, "B M H K"],
    *,
    bias: Float[Array, "B H N M"] | None = None,
    implementation: Implementation = "xla",
    valid_tokens: ValidTokens = None,
    mask: Mask | None = None,
) -> Float[Array, "B N H K"]:
    """softmax(query key^T / sqrt(K) + bias) value, softmax in float32.

    "xla" and "cudnn" are kernels of `jax.nn.dot_product_attention`. "einsum" is the formula written
    out, with a softmax that keeps only its result for the backward pass. On CPUs, where no kernel
    fuses these operations, it makes a training step about 10 % faster. "pallas" is
    `pallas_attention.attend_packed`, for self-attention.

    Keys and values after the first `valid_tokens` are padding and get no weight. The Pallas kernel
    cannot have one such number for each example, so "xla" replaces it. Keys where the mask is False
    get no weight either; only "einsum" and "xla" take a mask.
    """
    if implementation == "pallas" and isinstance(valid_tokens, jax.Array):
        implementation = "xla"
    if implementation == "einsum":
        weights = attention_weights(query, key, bias, valid_tokens, mask).astype(value.dtype)
        return jnp.einsum("bhnm,bmhk->bnhk", weights, value)
    if implementation == "pallas":
        from vit_jax.models.pallas_attention import attend_packed

        assert not isinstance(valid_tokens, jax.Array)
        packed = jnp.stack([query, key, value], 2)
        return attend_packed(packed, bias=bias, valid_tokens=valid_tokens)
    lengths = None
    if isinstance(valid_tokens, jax.Array):
        lengths = valid_tokens
    elif valid_tokens is not None and valid_tokens < key.shape[1]:
        lengths = jnp.full((key.shape[0],), valid_tokens, jnp.int32)
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias=bias,
        mask=mask,
        key_value_seq_lengths=lengths,
        implementation=implementation,
    )


def attention_weights(
    query: Float[Array, "B N H K"],
    key: Float[Array, "B M H K"],
    bias: Float[Array, "B H N M"] | None = None,
    valid_tokens: ValidTokens = None,
    mask: Mask | None = None,
) -> Float[Array, "B H N M"]:
    """Returns the weights that `attend` applies, f32, each row summing to 1."""
    scaled = query * query.shape[-1] ** -0.5
    logits = jnp.einsum("bnhk,bmhk->bhnm", scaled, key, preferred_element_type=jnp.float32)
    logits = logits if bias is None else logits + bias
    if mask is not None:  # Not -inf, so that a query without any key gets finite weights.
        logits = jnp.where(mask, logits, jnp.finfo(jnp.float32).min)
    if valid_tokens is not None:
        real = jnp.arange(key.shape[1])[None] < jnp.reshape(jnp.asarray(valid_tokens), (-1, 1))
        logits = jnp.where(real[:, None, None], logits, -jnp.inf)
    return softmax(logits)


class SelfAttention(nnx.Module):
    """Multi-head self-attention. Source: arXiv:2010.11929, appendix A.

    `qk_norm` is a LayerNorm over each query and key, with scale but no bias (arXiv:2302.05442).
    `relative` adds a `RelativeBias`, which needs the number of tokens. Dropout follows the output
    layer.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        tokens: int,
        relative: bool = False,
        qk_norm: bool = False,
        qkv_bias: bool = True,
        dropout_rate: float = 0.0,
        implementation: Implementation = "xla",
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        head_dim = width // num_heads
        self.qkv = nnx.LinearGeneral(
            width,
            (3, num_heads, head_dim),
            use_bias=qkv_bias,
            kernel_init=_qkv_init,
            dtype=dtype,
            rngs=rngs,
        )
        self.out = nnx.LinearGeneral(
            (num_heads, head_dim),
            width,
            axis=(-2, -1),
            kernel_init=_xavier_uniform,
            dtype=dtype,
            rngs=rngs,
        )
        make_norm = partial(LayerNorm, head_dim, use_bias=False, dtype=dtype)
        self.query_norm = make_norm() if qk_norm else None
        self.key_norm = make_norm() if qk_norm else None
        self.relative = RelativeBias(tokens, num_heads, head_dim, rngs=rngs) if relative else None
        self.dropout = nnx.Dropout(dropout_rate)
        self.implementation: Implementation = implementation

    def __call__(
        self,
        x: Float[Array, "B N D"],
        *,
        rope: Rope | None = None,
        valid_tokens: ValidTokens = None,
        mask: Mask | None = None,
        key: jax.Array | None = None,
        capture: tuple[str, ...] = (),
    ) -> tuple[Float[Array, "B N D"], dict[str, jax.Array]]:
        """Returns the attended tokens, and the values named in `capture`.

        "attention_weights" are [B, H, N, N]. Kernels do not return them, so they are computed a
        second time.
        `rope` has the cosines and sines of `position.rope_2d`. A key turns dropout on.
        """
        # The Pallas kernel adds the bias itself, unless something comes between.
        plain = self.query_norm is None and rope is None and self.relative is None and not capture
        packed = self.implementation == "pallas" and plain
        packed = packed and not isinstance(valid_tokens, jax.Array)
        packed_bias = self.qkv.bias if packed else None
        qkv = _project(self.qkv, x, add_bias=packed_bias is None)
        qkv = constrain(qkv, "batch", None, None, "tensor")
        q, k, v = jnp.moveaxis(qkv, -3, 0)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        bias = self.relative(q) if self.relative is not None else None
        if packed_bias is not None:
            from vit_jax.models.pallas_attention import attend_packed

            qkv_bias = packed_bias[...].astype(qkv.dtype).reshape(qkv.shape[2:])
            assert not isinstance(valid_tokens, jax.Array)
            attended = attend_packed(qkv, qkv_bias=qkv_bias, valid_tokens=valid_tokens)
        else:
            attended = attend(
                q,
                k,
                v,
                bias=bias,
                implementation=self.implementation,
                valid_tokens=valid_tokens,
                mask=mask,
            )
        attended = constrain(attended, "batch", None, "tensor")
        out = self.dropout(_project(self.out, attended), deterministic=key is None, rngs=key)
        found = {}
        if "attention_weights" in capture:
            found["attention_weights"] = attention_weights(q, k, bias, valid_tokens, mask)
        return out, found


def _project(layer: nnx.LinearGeneral, x: jax.Array, *, add_bias: bool = True) -> jax.Array:
    """Returns layer(x), as one product of two matrices where heads are not sharded.

    XLA then writes rows of features, as the kernels read them. For several output axes (q, k, v,
    heads, features) it chooses layouts for a TPU that must be copied, a fifth of a step's traffic.
    """
    axes = len(layer.in_features)
    bias = layer.bias[...].astype(layer.dtype) if add_bias and layer.bias is not None else None
    x, kernel = x.astype(layer.dtype), layer.kernel[...].astype(layer.dtype)
    if devices_along_tensor() > 1:
        y = jnp.tensordot(keep(x) if axes > 1 else x, kernel, axes)
        return keep(y if bias is None else y + bias.reshape(*(1,) * (x.ndim - axes), *bias.shape))
    x = x.reshape(*x.shape[:-axes], -1)
    x = keep(x) if axes > 1 else x
    y = x @ kernel.reshape(x.shape[-1], -1)
    y = y if bias is None else y + bias.reshape(*(1,) * (y.ndim - 1), -1)
    y = keep(y) if axes == 1 else y
    return y.reshape(*y.shape[:-1], *layer.out_features)


def _qkv_init(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Xavier uniform, separately for the query, key and value matrices; `shape` is (D, 3D)."""
    each = [_xavier_uniform(k, (shape[0], shape[1] // 3), dtype) for k in jax.random.split(key, 3)]
    return jnp.concatenate(each, axis=1)
