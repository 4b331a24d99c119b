"""Axial attention: each Transformer block becomes two, one over rows and one over columns.

A token attends to R + C tokens instead of R * C, at twice the parameters. Source:
arXiv:2010.11929, D.6 (AxialViT); arXiv:1912.12180 (axial attention).

What attention learns about positions, each with the options of global attention:

- relative: offsets along the row in one block, along the column in the other, each with a table of
  its own.
- rope_2d: the same angles as in global attention. All tokens of a row have the same row angle,
  which changes no logit among them, so a row block sees only columns, and the other way round.
"""

import dataclasses
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.errors import ModelError
from vit_jax.models.attention import (
    AttentionChoice,
    Rope,
    SelfAttention,
    ValidTokens,
    choose_attention,
)
from vit_jax.models.blocks import BlockSpec, Encoder, EncoderBlock

Axis = Literal["row", "column"]
Grid = tuple[int, int]


def choose_axial_attention(requested: str, *, grid: Grid, **case: Any) -> AttentionChoice:
    """Chooses one kernel for attention along rows and along columns.

    Rows and columns are never padded. If cuDNN would need it, "auto" takes XLA's kernel.

    Args:
        requested: "auto", "xla", "cudnn", "einsum" or "pallas".
        grid: rows and columns of patches.
        **case: other arguments of `choose_attention`.

    Raises:
        ModelError: the requested kernel does not support rows or columns of this length.
    """
    rows, columns = grid
    lengths = (columns, rows)
    choices = [choose_attention(requested, tokens=length, **case) for length in lengths]
    padded = [c.padded_tokens for c in choices] != list(lengths)
    if padded and requested == "cudnn":
        raise ModelError(
            f"attention_implementation cudnn with attention axial on a grid of {rows}x{columns}",
            "an even number of rows and of columns",
            "use auto",
        )
    if padded or choices[0].implementation != choices[1].implementation:
        reason = f"no faster kernel supports both rows and columns of a {rows}x{columns} grid"
        return AttentionChoice("xla", rows * columns, reason)
    return AttentionChoice(choices[0].implementation, rows * columns, choices[0].reason)


class AxialAttention(SelfAttention):
    """Self-attention among the tokens of each row, or of each column, of a grid of patches.

    Args:
        width: D, features in and out.
        num_heads: H.
        grid: rows R and columns C of patches.
        axis: "row": tokens attend to those of their row; "column": of their column.
        **options: other arguments of `SelfAttention`. Its `tokens` is the length of the axis.
    """

    def __init__(self, width: int, num_heads: int, *, grid: Grid, axis: Axis, **options: Any):
        super().__init__(width, num_heads, **options)
        self.grid = grid
        self.axis: Axis = axis

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        x: Float[Array, "B N D"],
        *,
        rope: Rope | None = None,
        valid_tokens: ValidTokens = None,
        key: jax.Array | None = None,
        capture: tuple[str, ...] = (),
    ) -> tuple[Float[Array, "B N D"], dict[str, jax.Array]]:
        """Returns the attended tokens, and "max_attention_logit" [B, H] if it is in `capture`.

        Args:
            x: patches in raster order.
            rope: cosines and sines of `position.rope_2d`, for all patches.
            valid_tokens: None, because rows and columns are not padded.
            key: turns dropout on.
            capture: "max_attention_logit".
        """
        assert valid_tokens is None, "rows and columns are not padded"
        assert "attention_weights" not in capture, "ViT.intermediates does not offer them"
        rows, columns = self.grid
        by_row = self.axis == "row"
        if rope is not None:
            # The other axis turns all queries and keys by one angle, which changes no logit.
            cos, sin = (r.reshape(rows, columns, -1) for r in rope)
            rope = (cos[0], sin[0]) if by_row else (cos[:, 0], sin[:, 0])
        lines = x.reshape(x.shape[0], rows, columns, -1)  # [B, R, C, D]
        lines = lines if by_row else lines.swapaxes(1, 2)
        flat = lines.reshape(-1, *lines.shape[2:])  # [B * R, C, D] or [B * C, R, D]
        attended, found = super().__call__(flat, rope=rope, key=key, capture=capture)
        attended = attended.reshape(lines.shape)
        attended = attended if by_row else attended.swapaxes(1, 2)
        each = {name: value.reshape(*lines.shape[:2], -1) for name, value in found.items()}
        return attended.reshape(x.shape), {name: value.max(1) for name, value in each.items()}


class AxialBlock(nnx.Module):
    """An encoder block with attention over rows, then one with attention over columns.

    Both have an MLP, and all options of an `EncoderBlock`. A position table of every layer is added
    once, to the input of the row block.

    Args:
        spec: shape of a block with global attention.
        grid: rows and columns of patches.
        rngs: source of the initial values.
    """

    def __init__(self, spec: BlockSpec, grid: Grid, *, rngs: nnx.Rngs):
        def make(axis: Axis, **changes: Any) -> EncoderBlock:
            own = dataclasses.replace(spec, **changes)
            attention = partial(AxialAttention, grid=grid, axis=axis)
            return EncoderBlock(own, attention=attention, rngs=rngs)

        self.row = make("row", tokens=grid[1])
        self.column = make("column", tokens=grid[0], position_table=None)

    def __call__(
        self,
        x: Float[Array, "B N D"],
        *,
        axes: tuple[Axis, ...] = ("row", "column"),
        key: jax.Array | None = None,
        **inputs: Any,
    ) -> tuple[Float[Array, "B N D"], dict[str, jax.Array]]:
        """Returns the new tokens, and the blocks' intermediates with a leading axis over them.

        Args:
            x: patches in raster order.
            axes: which of the two blocks to apply.
            key: turns dropout and stochastic depth on.
            **inputs: other arguments of an `EncoderBlock`, the same for both. At the same rate of
                stochastic depth, they are dropped independently.
        """
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        parts = {"row": (self.row, keys[0]), "column": (self.column, keys[1])}
        found = []
        for axis in axes:
            block, own_key = parts[axis]
            x, captured = block(x, key=own_key, **inputs)
            found.append(captured)
        return x, {name: jnp.stack([each[name] for each in found]) for name in found[0]}


class AxialEncoder(Encoder):
    """`depth` pairs of a row block and a column block.

    Args:
        spec: shape of a block with global attention.
        depth: number of pairs.
        grid: rows and columns of patches.
        **options: other arguments of `Encoder`.
    """

    def __init__(self, spec: BlockSpec, depth: int, *, grid: Grid, **options: Any):
        super().__init__(spec, depth, block=partial(AxialBlock, grid=grid), **options)
        self.num_blocks = 2 * depth

    def __call__(
        self,
        x: Float[Array, "B N D"],
        *,
        position: Float[Array, "1 N D"] | None = None,
        span: tuple[int, int] | None = None,
        **inputs: Any,
    ) -> tuple[Float[Array, "B N D"], dict[str, Float[Array, "M ..."]]]:
        """Returns the tokens after the last block, and the captured intermediates of all blocks.

        The intermediates' leading axis counts both blocks of each pair: row, column, row, ...

        Args:
            x: patches in raster order.
            position: a table added to the input of every pair.
            span: (first, end): apply only the blocks first to end - 1, counted from 0 over both
                blocks of each pair. It may begin or end inside a pair.
            **inputs: other arguments of an `Encoder`.
        """
        start, end = span or (0, self.num_blocks)
        found = []
        while start < end:
            axes: tuple[Axis, ...] = ("row", "column")
            stop = end - end % 2
            if start % 2:
                axes, stop = axes[1:], start + 1
            elif end == start + 1:
                axes, stop = axes[:1], end
            x, captured = super().__call__(
                x,
                position=position if "row" in axes else None,
                span=(start // 2, -(-stop // 2)),
                axes=axes,
                **inputs,
            )
            found.append({name: v.reshape(-1, *v.shape[2:]) for name, v in captured.items()})
            start = stop
        return x, jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)
