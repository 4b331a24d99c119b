"""Counts the cost of a self-attention, convolution or recurrent layer.

A layer of each kind maps N tokens of D features to N tokens of D features. Parameters are counted
in the module, multiply-accumulates in the traced program; steps and path follow from the kind.

Source: arXiv:1706.03762, section 4 and Table 1.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.errors import ModelError
from vit_jax.models.attention import SelfAttention
from vit_jax.models.block_options import BlockOptions
from vit_jax.models.flops import count_macs
from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import build_model, model_shape

# Side of the kernel of both convolutions.
KERNEL = 3


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of layer.

    Attributes:
        name: in tables.
        formulas: of its parameters, multiply-accumulates, steps and path; N is the number of
            tokens, G the number of patches among them, D the width.
        build: (layer, rngs) -> module.
        apply: (layer, module, tokens f32[B, N, D]) -> f32[B, N, D].
        path: layer -> how often it must be applied until the last token depends on the first; of a
            recurrence, its cells.
        on_grid: whether it leaves out the class token and registers, which are not on the grid.
        is_sequential: whether its N steps wait for each other.
    """

    name: str
    formulas: tuple[str, str, str, str]
    build: Callable[["Layer", nnx.Rngs], nnx.Module]
    apply: Callable[["Layer", Any, Float[Array, "B N D"]], Float[Array, "B N D"]]
    path: Callable[["Layer"], int]
    on_grid: bool = False
    is_sequential: bool = False


@dataclasses.dataclass(frozen=True)
class Layer:
    """A kind of layer at a size."""

    kind: Kind
    width: int  # D.
    num_heads: int
    grid: tuple[int, int]  # Rows and columns of patches.
    num_prefix: int  # Class token and registers, which come before the patches.

    @property
    def tokens(self) -> int:
        """Tokens that the layer maps: N, or G if it leaves prefix tokens out."""
        return math.prod(self.grid) + (0 if self.kind.on_grid else self.num_prefix)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of a layer for one image."""

    parameters: int
    macs: int  # of the whole sequence, padding included
    steps: int  # that wait for each other
    path: int  # see Kind.path


KINDS = (
    Kind(
        "self-attention",
        ("4D² + 4D", "4ND² + 2N²D", "1", "1"),
        lambda layer, rngs: SelfAttention(
            layer.width, layer.num_heads, BlockOptions(), implementation="einsum", rngs=rngs
        ),
        lambda layer, module, tokens: module(tokens)[0],
        lambda layer: 1,
    ),
    Kind(
        "convolution, 3x3 on the grid",
        ("9D² + D", "9GD²", "1", "longer side - 1"),
        lambda layer, rngs: nnx.Conv(layer.width, layer.width, (KERNEL, KERNEL), rngs=rngs),
        lambda layer, module, tokens: module(tokens.reshape(-1, *layer.grid, layer.width)).reshape(
            tokens.shape
        ),
        lambda layer: max(1, max(layer.grid) - 1),
        on_grid=True,
    ),
    Kind(
        "convolution, 3 in sequence",
        ("3D² + D", "3ND²", "1", "N - 1"),
        lambda layer, rngs: nnx.Conv(layer.width, layer.width, (KERNEL,), rngs=rngs),
        lambda layer, module, tokens: module(tokens),
        lambda layer: max(1, layer.tokens - 1),
    ),
    Kind(  # h' = tanh(W x + b + U h), from the first token to the last.
        "recurrence (tanh RNN)",
        ("2D² + D", "2ND²", "N", "N"),
        lambda layer, rngs: nnx.RNN(
            nnx.SimpleCell(layer.width, layer.width, rngs=rngs), rngs=False
        ),
        lambda layer, module, tokens: module(
            tokens, initial_carry=jnp.zeros((len(tokens), layer.width))
        ),
        lambda layer: layer.tokens,
        is_sequential=True,
    ),
)


def comparable_layers(options: ModelConfig, image_size: int) -> list[Layer]:
    """Returns one layer of each kind with the width, heads and tokens of a model."""
    sizes = {"num_classes": 0, "image_size": image_size, "key": jax.random.key(0)}
    model = nnx.eval_shape(lambda: build_model(options.on_any_platform(), **sizes))
    if model.num_heads is None:
        raise ModelError(
            f"{options.name}, which has no self-attention", "a ViT or a hybrid", "e.g. ViT-B/16"
        )
    width = model_shape(options).width
    return [Layer(kind, width, model.num_heads, model.grid, model.num_prefix) for kind in KINDS]


def count(layer: Layer) -> Cost:
    """Counts the cost of a layer, which is traced at its own width, but not run.

    >>> count(Layer(KINDS[0], width=768, num_heads=12, grid=(14, 14), num_prefix=1))
    Cost(parameters=2362368, macs=524391936, steps=1, path=1)
    """
    kind = layer.kind
    graphdef, state = nnx.split(nnx.eval_shape(lambda: kind.build(layer, nnx.Rngs(0))))
    tokens = jax.ShapeDtypeStruct((1, layer.tokens, layer.width), jnp.float32)
    traced = jax.make_jaxpr(lambda s, x: kind.apply(layer, nnx.merge(graphdef, s), x))(
        state, tokens
    )
    return Cost(
        sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state)),
        count_macs(traced.jaxpr),
        layer.tokens if kind.is_sequential else 1,
        kind.path(layer),
    )
