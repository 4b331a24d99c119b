"""The Transformer encoder: a stack of blocks of self-attention and MLP."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from vit_jax.models.activation_sharding import constrain, on_each_device
from vit_jax.models.attention import Implementation, Mask, NumValid, Rope, SelfAttention
from vit_jax.models.attention_choice import choose_attention
from vit_jax.models.block_options import BlockOptions
from vit_jax.models.embedding import TableSpec, build_table
from vit_jax.models.layers import LayerNorm
from vit_jax.models.mlp import build_mlp
from vit_jax.models.stacking import (
    build_stack,
    keys_and_drop_rates,
    layer_loop,
    save_for_backward,
    scan_stack,
)

BLOCK_INTERMEDIATES = (
    "attention_weights", "attention_output", "mlp_output", "block_output",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class EncoderShape:
    """The sizes of a Transformer encoder."""

    width: int  # D, features of a token.
    depth: int
    mlp_dim: int  # Hidden features of a block's MLP.
    num_heads: int


class EncoderBlock(nnx.Module):
    """Self-attention and MLP, each with LayerNorm, a residual and optionally a layer scale.

    With f the attention or the MLP, the norm placements are
    pre: x = x + f(norm(x));  post: x = norm(x + f(x));  res_post: x = x + norm(f(x)).
    A layer scale multiplies what is added to x: f(.), or norm(f(x)) in res_post. A block's own
    position table is added to its input.

    Source: arXiv:2010.11929, equations 2 and 3 (pre); arXiv:1706.03762, section 3.1 (post);
    arXiv:2111.09883, section 3.2 (res_post); arXiv:2010.11929, D.4 (a position table in every
    layer).
    """

    def __init__(
        self,
        shape: EncoderShape,
        options: BlockOptions,
        *,
        implementation: Implementation,
        position_table: TableSpec | None = None,
        relative_tokens: int | None = None,
        rngs: nnx.Rngs,
    ):
        width, dtype, scale = shape.width, jnp.dtype(options.dtype), options.layer_scale
        make_norm = partial(LayerNorm, width, epsilon=options.norm_epsilon, dtype=dtype)
        self.position_embedding = build_table(position_table, rngs=rngs) if position_table else None
        self.attention_norm = make_norm()
        self.attention = SelfAttention(
            width,
            shape.num_heads,
            options,
            implementation=implementation,
            relative_tokens=relative_tokens,
            rngs=rngs,
        )
        self.mlp_norm = make_norm()
        self.mlp = build_mlp(width, shape.mlp_dim, options, rngs=rngs)
        self.attention_scale = nnx.Param(jnp.full(width, scale)) if scale else None
        self.mlp_scale = nnx.Param(jnp.full(width, scale)) if scale else None
        self.norm_placement = options.norm_placement

    def __call__(
        self,
        x: Float[Array, "B N D"],
        *,
        rope: Rope | None = None,
        num_valid: NumValid = None,
        mask: Mask | None = None,
        key: jax.Array | None = None,
        drop_rate: Float[Array, ""] | None = None,
        capture: tuple[str, ...] = (),
    ) -> tuple[Float[Array, "B N D"], dict[str, jax.Array]]:
        """Returns the new tokens and those of BLOCK_INTERMEDIATES that `capture` names.

        A key turns dropout on. A `drop_rate`, which needs a key, turns on stochastic depth: it is
        the probability that an example skips a residual branch.
        """
        keys = (None,) * 4 if key is None else tuple(jax.random.split(key, 4))
        pre = self.norm_placement == "pre"
        if self.position_embedding is not None:
            x = x + self.position_embedding(x.shape[1]).astype(x.dtype)

        attention_output, captured = self.attention(
            self.attention_norm(x) if pre else x,
            rope=rope,
            num_valid=num_valid,
            mask=mask,
            key=keys[0],
            capture=capture,
        )
        norm, scale = self.attention_norm, self.attention_scale
        x = self._add_residual(x, attention_output, norm, scale, keys[1], drop_rate)

        mlp_output = self.mlp(self.mlp_norm(x) if pre else x, key=keys[2])
        x = self._add_residual(x, mlp_output, self.mlp_norm, self.mlp_scale, keys[3], drop_rate)

        captured |= {"attention_output": attention_output, "mlp_output": mlp_output}
        captured["block_output"] = x
        return x, {name: captured[name] for name in BLOCK_INTERMEDIATES if name in capture}

    def _add_residual(
        self,
        x: Float[Array, "B N D"],
        branch: Float[Array, "B N D"],
        norm: LayerNorm,
        scale: nnx.Param | None,
        key: jax.Array | None,
        drop_rate: Float[Array, ""] | None,
    ) -> Float[Array, "B N D"]:
        """Adds a branch to x: layer scale, stochastic depth, and the norms of res_post and post.

        `save_for_backward` marks what remat keeps; it changes no value.
        """
        branch = constrain(branch, "batch")
        if self.norm_placement == "res_post":
            branch = norm(save_for_backward(branch))
        if scale is not None:
            branch = save_for_backward(branch) * scale[...].astype(branch.dtype)[None, None]
        x = save_for_backward(x + drop_branch(branch, key, drop_rate))
        return norm(x) if self.norm_placement == "post" else x


def drop_branch(
    branch: Float[Array, "B N D"], key: Any, drop_rate: Float[Array, ""] | None
) -> Float[Array, "B N D"]:
    """Stochastic depth: zeroes the branch of random examples, divides others by 1 - drop_rate.

    Without a rate the branch is kept. With one, `key` is a random key.
    """
    if drop_rate is None:
        return branch
    is_kept = jax.random.bernoulli(key, 1 - drop_rate, (branch.shape[0], 1, 1))
    return jnp.where(is_kept, branch / (1 - drop_rate).astype(branch.dtype), 0)


def _row_major(x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
    """Makes XLA store each token's features contiguously.

    Each device does it for its own part, because XLA would gather a sharded array as a whole on
    every device.
    """

    def constrained(part: jax.Array) -> jax.Array:
        return with_layout_constraint(part, Layout(tuple(range(part.ndim))))

    return on_each_device(constrained, [("batch",)], ("batch",))(x)


class Encoder(nnx.Module):
    """L blocks of the same structure, one after the other.

    Every parameter of `blocks` has a leading axis L. The attention kernel is chosen for
    `num_tokens` tokens, and for `platform`, where the model will run; None: the default backend.
    `position_table` describes the table that each block has; with `relative`, each block has
    relative positions, see `position.RelativeBias`.
    """

    def __init__(
        self,
        shape: EncoderShape,
        options: BlockOptions,
        *,
        num_tokens: int,
        position_table: TableSpec | None = None,
        relative: bool = False,
        platform: str | None = None,
        rngs: nnx.Rngs,
    ):
        platform = platform or jax.default_backend()
        self.attention_choice = choose_attention(
            options.attention_implementation,
            tokens=num_tokens,
            head_dim=shape.width // shape.num_heads,
            num_heads=shape.num_heads,
            dtype=jnp.dtype(options.dtype),
            has_bias=relative,
            platform=platform,
        )
        make_block = partial(
            EncoderBlock,
            shape,
            options,
            implementation=self.attention_choice.implementation,
            position_table=position_table,
            relative_tokens=num_tokens if relative else None,
        )
        self.blocks = build_stack(lambda rngs: make_block(rngs=rngs), shape.depth, rngs)
        self.depth = shape.depth
        self.stochastic_depth = options.stochastic_depth
        self.has_constant_rate = options.stochastic_depth_rates == "constant"
        self.loop = layer_loop(options.scan, options.remat)
        # Without `_row_major`, XLA for GPUs used a layout that it converted before every matmul: a
        # tenth of the step's memory traffic.
        self.row_major = platform in ("gpu", "cuda")

    def __call__(
        self,
        x: Float[Array, "B N D"],
        *,
        position: Float[Array, "1 N D"] | None = None,
        rope: Rope | None = None,
        num_valid: NumValid = None,
        mask: Mask | None = None,
        key: jax.Array | None = None,
        capture: tuple[str, ...] = (),
        span: tuple[int, int] | None = None,
    ) -> tuple[Float[Array, "B N D"], dict[str, Float[Array, "L ..."]]]:
        """Returns the tokens after the last block, and the captured intermediates of the blocks.

        `position` is a table added to the input of every block. Only the first `num_valid`
        tokens are attended to. A key turns dropout and stochastic depth on. With a span (first,
        end), only `blocks[first:end]` are applied.
        """
        num_tokens = x.shape[1]
        # Some kernels need a multiple of `token_multiple` tokens. Padding gets no weight. Masks
        # are not padded: models that have a mask ask for "xla" or "einsum", which need no padding.
        padding = -num_tokens % self.attention_choice.token_multiple
        if padding:
            x, position, rope = jax.tree.map(
                lambda rows: jnp.pad(rows, [(0, 0)] * (rows.ndim - 2) + [(0, padding), (0, 0)]),
                (x, position, rope),
            )
            num_valid = num_tokens if num_valid is None else num_valid

        def apply_block(block: Any, x: jax.Array, key_and_rate: Any) -> tuple[jax.Array, Any]:
            key, drop_rate = key_and_rate
            x = constrain(_row_major(x) if self.row_major else x, "batch")
            return block(
                x if position is None else x + position.astype(x.dtype),
                rope=rope,
                num_valid=num_valid,
                mask=mask,
                key=key,
                drop_rate=drop_rate,
                capture=capture,
            )

        x, captured = scan_stack(
            self.blocks,
            apply_block,
            x,
            self.depth,
            span=span,
            per_layer=keys_and_drop_rates(
                key, self.depth, self.stochastic_depth, constant=self.has_constant_rate
            ),
            loop=self.loop,
        )
        if padding:
            x = x[:, :num_tokens]
            captured = {
                name: without_padding(name, value, num_tokens) for name, value in captured.items()
            }
        return constrain(x, "batch"), captured


def without_padding(name: str, value: jax.Array, num_tokens: int) -> jax.Array:
    """Returns the first `num_tokens` tokens of an intermediate."""
    value = value[..., :num_tokens, :]
    return value[..., :num_tokens] if name == "attention_weights" else value
