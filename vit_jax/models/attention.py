"""Multi-head self-attention: softmax(q k^T / sqrt(d)) v. In shapes, the letter K is this d."""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from vit_jax.models.activation_sharding import constrain, devices_along
from vit_jax.models.block_options import BlockOptions
from vit_jax.models.layers import LayerNorm, softmax
from vit_jax.models.position import RelativeBias, rotate
from vit_jax.models.stacking import save_for_backward

_xavier_uniform = nnx.initializers.xavier_uniform()

# Number of tokens before the padding: one number, or one for each example [B]; None: no padding.
NumValid = int | Int[Array, " B"] | None
# Of N queries and M keys. True: the query attends to the key.
Mask = Bool[Array, "#B 1 N M"]
# Cosines and sines [N, K] for all images, or [B, N, K] for each.
Rope = tuple[Float[Array, "*B N K"], Float[Array, "*B N K"]]
# The code that computes attention, see `attend`.
Implementation = Literal["xla", "cudnn", "einsum", "pallas"]


class SelfAttention(nnx.Module):
    """Multi-head self-attention. Source: arXiv:2010.11929, appendix A.

    With `options.qk_norm`, each query and key has a LayerNorm, with scale but no bias
    (arXiv:2302.05442). `relative_tokens` is the number of tokens of a `RelativeBias`; None: there
    is none. Dropout follows the output layer.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        options: BlockOptions,
        *,
        implementation: Implementation,
        relative_tokens: int | None = None,
        rngs: nnx.Rngs,
    ):
        head_dim, dtype = width // num_heads, jnp.dtype(options.dtype)
        self.qkv = nnx.LinearGeneral(
            width,
            (3, num_heads, head_dim),
            use_bias=options.qkv_bias,
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
        self.query_norm = make_norm() if options.qk_norm else None
        self.key_norm: Any = make_norm() if options.qk_norm else None
        self.relative = (
            None
            if relative_tokens is None
            else RelativeBias(relative_tokens, num_heads, head_dim, rngs=rngs)
        )
        self.dropout = nnx.Dropout(options.dropout)
        self.implementation: Implementation = implementation

    def __call__(
        self,
        x: Float[Array, "B N D"],
        *,
        rope: Rope | None = None,
        num_valid: NumValid = None,
        mask: Mask | None = None,
        key: jax.Array | None = None,
        capture: tuple[str, ...] = (),
    ) -> tuple[Float[Array, "B N D"], dict[str, jax.Array]]:
        """Returns the output of self-attention, and the values named in `capture`.

        "attention_weights" are [B, H, N, N]. Fused kernels do not return them, so they are computed
        separately. `rope` has the cosines and sines of `position.rope_2d`. `key` is a random key,
        which turns dropout on.
        """
        captured = {}
        if self._can_fuse_qkv(rope, num_valid, mask, capture):
            heads = self._attend_fused_qkv(x, num_valid)
        else:
            qkv = constrain(_to_heads(self.qkv, x), "batch", None, None, "tensor")
            q, k, v = jnp.moveaxis(qkv, -3, 0)  # [B, N, 3, H, K] -> three of [B, N, H, K].
            if self.query_norm is not None:
                q, k = self.query_norm(q), self.key_norm(k)
            if rope is not None:
                q, k = rotate(q, rope), rotate(k, rope)
            bias = None if self.relative is None else self.relative(q)
            heads = attend(
                q,
                k,
                v,
                bias=bias,
                implementation=self.implementation,
                num_valid=num_valid,
                mask=mask,
            )
            if "attention_weights" in capture:
                captured["attention_weights"] = attention_weights(q, k, bias, num_valid, mask)
        out = _from_heads(self.out, constrain(heads, "batch", None, "tensor"))
        return self.dropout(out, deterministic=key is None, rngs=key), captured

    def _can_fuse_qkv(
        self,
        rope: Rope | None,
        num_valid: NumValid,
        mask: Mask | None,
        capture: tuple[str, ...],
    ) -> bool:
        """Whether Pallas takes `qkv`'s output as it is: no qk_norm, rope, relative bias or mask."""
        if self.implementation != "pallas" or isinstance(num_valid, jax.Array):
            return False
        additions = (self.query_norm, self.relative, rope, mask)
        return "attention_weights" not in capture and all(part is None for part in additions)

    def _attend_fused_qkv(self, x: Float[Array, "B N D"], num_valid: Any) -> jax.Array:
        """Attention by the Pallas kernel, which itself adds the layer's bias of q, k and v."""
        from vit_jax.models.pallas_attention import attend_qkv

        qkv = _to_heads(self.qkv, x, add_bias=False)
        qkv = constrain(qkv, "batch", None, None, "tensor")
        qkv_bias = self.qkv.bias
        if qkv_bias is not None:
            qkv_bias = qkv_bias[...].astype(qkv.dtype).reshape(qkv.shape[2:])
        return attend_qkv(qkv, qkv_bias=qkv_bias, num_valid=num_valid)


def attend(
    query: Float[Array, "B N H K"],
    key: Float[Array, "B M H K"],
    value: Float[Array, "B M H K"],
    *,
    bias: Float[Array, "B H N M"] | None = None,
    implementation: Implementation = "xla",
    num_valid: NumValid = None,
    mask: Mask | None = None,
) -> Float[Array, "B N H K"]:
    """softmax(query key^T / sqrt(K) + bias) value, softmax in float32.

    Keys and values after the first `num_valid` are padding and get no weight, nor do keys where
    the mask is False.

    Implementations: "einsum" is the formula written out; on CPUs a training step is about 10 %
    faster with it than with "xla". "xla" and "cudnn" are kernels of
    `jax.nn.dot_product_attention`. "pallas" is `pallas_attention.attend_qkv`, for
    self-attention; it takes no mask and no `num_valid` of shape [B]: with these, "xla" is used.
    """
    if implementation == "einsum":
        weights = attention_weights(query, key, bias, num_valid, mask).astype(value.dtype)
        return jnp.einsum("bhnm,bmhk->bnhk", weights, value)
    if implementation == "pallas" and mask is None and not isinstance(num_valid, jax.Array):
        from vit_jax.models.pallas_attention import attend_qkv

        return attend_qkv(jnp.stack([query, key, value], 2), bias=bias, num_valid=num_valid)
    lengths = num_valid
    if isinstance(lengths, int):
        lengths = jnp.full((key.shape[0],), lengths, jnp.int32)
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias=bias,
        mask=mask,
        key_value_seq_lengths=lengths,
        implementation="cudnn" if implementation == "cudnn" else "xla",
    )


def attention_weights(
    query: Float[Array, "B N H K"],
    key: Float[Array, "B M H K"],
    bias: Float[Array, "B H N M"] | None = None,
    num_valid: NumValid = None,
    mask: Mask | None = None,
) -> Float[Array, "B H N M"]:
    """Returns the weights that `attend` applies, float32, each row summing to 1."""
    scaled_query = query * query.shape[-1] ** -0.5
    logits = jnp.einsum("bnhk,bmhk->bhnm", scaled_query, key, preferred_element_type=jnp.float32)
    logits = logits if bias is None else logits + bias
    if mask is not None:  # Not -inf, so that a query without any key gets finite weights.
        logits = jnp.where(mask, logits, jnp.finfo(jnp.float32).min)
    if num_valid is not None:  # -inf is safe here: every example has a valid token.
        is_valid = jnp.arange(key.shape[1])[None] < jnp.reshape(jnp.asarray(num_valid), (-1, 1))
        logits = jnp.where(is_valid[:, None, None], logits, -jnp.inf)
    return softmax(logits)


def _to_heads(
    layer: nnx.LinearGeneral, x: Float[Array, "B N D"], *, add_bias: bool = True
) -> Float[Array, "B N *S"]:
    """Returns layer(x); S is the layer's output axes (3, H, K).

    If heads are not sharded over the mesh axis `tensor`, the weights are one matrix [D, 3 * H * K].
    Then XLA writes the features of each token contiguously, as attention kernels read them. With
    separate axes (3, H, K), XLA for TPUs chose other layouts; converting them was a fifth of a
    step's memory traffic.
    """
    kernel = layer.kernel[...].astype(layer.dtype)
    if devices_along("tensor") == 1:
        kernel = kernel.reshape(x.shape[-1], -1)
    y = jnp.tensordot(x.astype(layer.dtype), kernel, 1)
    if add_bias and layer.bias is not None:
        # The bias gets the shape of y's last axes: (3 * H * K), or (3, H, K) if heads are sharded.
        y = y + layer.bias[...].astype(layer.dtype).reshape(1, 1, *kernel.shape[1:])
    return save_for_backward(y).reshape(*x.shape[:-1], *layer.out_features)


def _from_heads(layer: nnx.LinearGeneral, x: Float[Array, "B N H K"]) -> Float[Array, "B N D"]:
    """Returns layer(x), see `_to_heads`."""
    x, kernel = x.astype(layer.dtype), layer.kernel[...].astype(layer.dtype)
    if devices_along("tensor") == 1:
        x, kernel = x.reshape(*x.shape[:2], -1), kernel.reshape(-1, kernel.shape[-1])
    contracted_axes = x.ndim - 2
    y = jnp.tensordot(save_for_backward(x), kernel, contracted_axes)
    assert layer.bias is not None
    return y + layer.bias[...].astype(layer.dtype)[None, None]


def _qkv_init(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Xavier uniform for each of the query, key and value matrices.

    `nnx.LinearGeneral` passes the shape of its weights with flattened output axes: (D, 3 * D).
    """
    each = [_xavier_uniform(k, (shape[0], shape[1] // 3), dtype) for k in jax.random.split(key, 3)]
    return jnp.concatenate(each, axis=1)
