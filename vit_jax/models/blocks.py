"""The Transformer encoder: a stack of identical blocks of self-attention and MLP."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.activation_sharding import constrain, on_each_device
from vit_jax.models.attention import Implementation, Mask, Rope, SelfAttention, ValidTokens
from vit_jax.models.layers import LayerNorm
from vit_jax.models.mlp import Mlp, SwiGlu
from vit_jax.models.position import TableSpec, build_table
from vit_jax.models.stacking import Remat, build_stack, keep, keys_and_drop_rates, scan_stack

BLOCK_INTERMEDIATES = (
    "attention_weights", "attention_output", "mlp_output", "block_output",
)  # fmt: skip

# Function of a block's captured intermediates by name.
Reduce = Callable[[dict[str, jax.Array]], dict[str, jax.Array]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockSpec:
    """Sizes and options of an encoder block; the same for all blocks of an encoder."""

    width: int
    num_heads: int
    tokens: int
    position_table: TableSpec | None
    mlp: Literal["gelu", "quick_gelu", "swiglu"]
    mlp_hidden: int
    gelu_approximate: bool
    norm_placement: Literal["pre", "post", "res_post"]
    norm_epsilon: float
    layer_scale: float | None
    relative: bool
    qk_norm: bool
    qkv_bias: bool
    dropout: float
    attention_implementation: Implementation
    dtype: DTypeLike


class EncoderBlock(nnx.Module):
    """Self-attention and MLP, each with LayerNorm, a residual and optionally a layer scale.

    pre: x = x + f(norm(x));  post: x = norm(x + f(x));  res_post: x = x + norm(f(x)).
    A layer scale multiplies the branch last, just before it is added. If the block has its own
    position table, it is added to the input.

    Source: arXiv:2010.11929, equations 2 and 3 (pre); arXiv:1706.03762, section 3.1 (post);
    arXiv:2111.09883, section 3.2 (res_post); arXiv:2010.11929, D.4 (a position table in every
    layer).
    """

    def __init__(self, spec: BlockSpec, *, rngs: nnx.Rngs):
        make = partial(LayerNorm, spec.width, epsilon=spec.norm_epsilon, dtype=spec.dtype)
        table = spec.position_table
        self.position_embedding = None if table is None else build_table(table, rngs=rngs)
        self.attention_norm = make()
        self.attention = SelfAttention(
            spec.width,
            spec.num_heads,
            tokens=spec.tokens,
            relative=spec.relative,
            qk_norm=spec.qk_norm,
            qkv_bias=spec.qkv_bias,
            dropout_rate=spec.dropout,
            implementation=spec.attention_implementation,
            dtype=spec.dtype,
            rngs=rngs,
        )
        self.mlp_norm = make()
        shared = {"dropout_rate": spec.dropout, "dtype": spec.dtype, "rngs": rngs}
        if spec.mlp == "swiglu":
            self.mlp = SwiGlu(spec.width, spec.mlp_hidden, **shared)
        else:
            self.mlp = Mlp(
                spec.width,
                spec.mlp_hidden,
                gelu_approximate=spec.gelu_approximate,
                quick_gelu=spec.mlp == "quick_gelu",
                **shared,
            )
        scale = spec.layer_scale
        self.attention_scale = nnx.Param(jnp.full(spec.width, scale)) if scale else None
        self.mlp_scale = nnx.Param(jnp.full(spec.width, scale)) if scale else None
        self.norm_placement = spec.norm_placement

    def __call__(
        self,
        x: Float[Array, "B N D"],
        *,
        rope: Rope | None = None,
        valid_tokens: ValidTokens = None,
        mask: Mask | None = None,
        key: jax.Array | None = None,
        drop_rate: Float[Array, ""] | None = None,
        capture: tuple[str, ...] = (),
        reduce: Reduce | None = None,
    ) -> tuple[Float[Array, "B N D"], dict[str, jax.Array]]:
        """Returns the new tokens and those of BLOCK_INTERMEDIATES that `capture` names.

        A key turns dropout and stochastic depth on; `drop_rate` is the probability that an example
        skips a residual branch. `reduce` is applied to the captured intermediates.
        """
        keys = (None,) * 4 if key is None else tuple(jax.random.split(key, 4))
        pre, post = (self.norm_placement == placement for placement in ("pre", "post"))
        if self.position_embedding is not None:
            x = x + self.position_embedding(x.shape[1]).astype(x.dtype)

        attended, found = self.attention(
            self.attention_norm(x) if pre else x,
            rope=rope,
            valid_tokens=valid_tokens,
            **({} if mask is None else {"mask": mask}),
            key=keys[0],
            capture=capture,
        )
        branch = self._branch(attended, self.attention_norm)
        x = keep(x + residual_branch(branch, self.attention_scale, keys[1], drop_rate))
        x = self.attention_norm(x) if post else x

        processed = self.mlp(self.mlp_norm(x) if pre else x, key=keys[2])
        branch = self._branch(processed, self.mlp_norm)
        x = x + residual_branch(branch, self.mlp_scale, keys[3], drop_rate)
        x = self.mlp_norm(x) if post else x

        found |= {"attention_output": attended, "mlp_output": processed, "block_output": x}
        captured = {name: found[name] for name in BLOCK_INTERMEDIATES if name in capture}
        return x, captured if reduce is None else reduce(captured)

    def _branch(self, output: Float[Array, "B N D"], norm: LayerNorm) -> Float[Array, "B N D"]:
        output = constrain(output, "batch")
        return norm(keep(output)) if self.norm_placement == "res_post" else output


def _add_position(
    x: Float[Array, "B N D"], position: Float[Array, "1 N D"] | None
) -> Float[Array, "B N D"]:
    return x if position is None else x + position.astype(x.dtype)


def residual_branch(
    branch: Float[Array, "B N D"],
    scale: nnx.Param | None,
    key: jax.Array | None,
    drop_rate: Float[Array, ""] | None,
) -> Float[Array, "B N D"]:
    """Scales a residual branch, and drops it for whole examples without changing its mean."""
    if scale is not None:
        branch = keep(branch) * scale[...].astype(branch.dtype)[None, None]
    if key is None or drop_rate is None:
        return branch
    stays = jax.random.bernoulli(key, 1 - drop_rate, (branch.shape[0], 1, 1))
    return jnp.where(stays, branch / (1 - drop_rate).astype(branch.dtype), 0)


def _store_rows(x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
    """Returns x, which XLA stores with the features of each token side by side.

    On each device by itself: a constraint on a sharded array would gather it on every device.
    """

    def constrained(part: jax.Array) -> jax.Array:
        return with_layout_constraint(part, Layout(tuple(range(part.ndim))))

    return on_each_device(constrained, [("batch",)], ("batch",))(x)


class Encoder(nnx.Module):
    """`depth` identical blocks. Every parameter of `blocks` has a leading axis of size depth.

    The rate `stochastic_depth` is that of the last block and grows linearly from 0 at the first, or
    with `constant_depth` that of all blocks. `remat` and `scan` are those of `stacking.scan_stack`.
    `token_rows` stores each token's features as one row: XLA's GPU compiler may else choose a
    layout that is converted at every matmul, a tenth of a step's traffic.
    """

    def __init__(
        self,
        spec: BlockSpec,
        depth: int,
        *,
        stochastic_depth: float = 0.0,
        constant_depth: bool = False,
        remat: Remat | Literal["auto"] = "auto",
        scan: bool | Literal["auto"] = "auto",
        token_rows: bool = False,
        rngs: nnx.Rngs,
    ):
        self.token_rows = token_rows
        self.blocks = build_stack(lambda rngs: EncoderBlock(spec, rngs=rngs), depth, rngs)
        self.depth = depth
        self.stochastic_depth = stochastic_depth
        self.constant_depth = constant_depth
        self.remat: Remat | Literal["auto"] = remat
        self.scan: bool | Literal["auto"] = scan

    def __call__(
        self,
        x: Float[Array, "B N D"],
        *,
        position: Float[Array, "1 N D"] | None = None,
        rope: Rope | None = None,
        valid_tokens: ValidTokens = None,
        mask: Mask | None = None,
        key: jax.Array | None = None,
        capture: tuple[str, ...] = (),
        reduce: Reduce | None = None,
        span: tuple[int, int] | None = None,
    ) -> tuple[Float[Array, "B N D"], dict[str, Float[Array, "L ..."]]]:
        """Returns the tokens after the last block, and the captured intermediates of all blocks.

        `position` is a table added to the input of every block. A key turns dropout and stochastic
        depth on. `reduce` is applied to the intermediates of each block. With a span (first, end),
        only the blocks first to end - 1 are applied, counted from 0.
        """

        def body(block: Any, x: jax.Array, layer: Any) -> tuple[jax.Array, Any]:
            key, drop_rate = layer
            if self.token_rows:
                x = _store_rows(x)
            return block(
                _add_position(constrain(x, "batch"), position),
                rope=rope,
                valid_tokens=valid_tokens,
                **({} if mask is None else {"mask": mask}),
                key=key,
                drop_rate=drop_rate,
                capture=capture,
                reduce=reduce,
            )

        return scan_stack(
            self.blocks,
            body,
            x,
            self.depth,
            span=span,
            per_layer=keys_and_drop_rates(
                key, self.depth, self.stochastic_depth, constant=self.constant_depth
            ),
            remat=self.remat,
            scan=self.scan,
        )


def reduce_intermediates(
    found: dict[str, jax.Array],
    *,
    functions: Mapping[str, Callable[[jax.Array], jax.Array]],
    tokens: int,
) -> dict[str, jax.Array]:
    """Removes the tokens after the first `tokens` from intermediates, then applies `functions`."""
    real = {name: _unpad(name, value, tokens) for name, value in found.items()}
    return {n: functions[n](value) if n in functions else value for n, value in real.items()}


def _unpad(name: str, value: jax.Array, tokens: int) -> jax.Array:
    if name == "attention_weights":
        return value[..., :tokens, :tokens]
    return value[..., :tokens, :]
