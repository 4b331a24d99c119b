"""Measures the cost of a self-attention, convolution or recurrent layer.

A layer of each kind maps N tokens of D features to N tokens of D features. Parameters are counted
in the module, multiply-accumulates and sequential steps in the traced program.

Source: arXiv:1706.03762, section 4 and Table 1.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend import core
from jaxtyping import Array, Float

from vit_jax.errors import ModelError
from vit_jax.models.attention import SelfAttention
from vit_jax.models.flops import count_macs, sub_jaxprs
from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import build_model, model_shape

# Side of the kernel of both convolutions.
KERNEL = 3


@dataclasses.dataclass(frozen=True)
class Formulas:
    """Formulas of a layer's costs, exact and as orders of growth.

    N is the number of tokens, G the number of patches among them, D the width, K = 3 the kernel's
    side. Source of `order_*`: arXiv:1706.03762, Table 1, but section 4 for the paths of contiguous
    kernels, because the table's O(log N) holds for dilated ones.
    """

    parameters: str
    macs: str
    steps: str
    path: str
    order_macs: str
    order_steps: str
    order_path: str


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of a layer for one image."""

    parameters: int
    macs: int  # of the whole sequence, padding included
    steps: int  # sequential scan iterations; 1 without a scan
    path: int  # the maximum over all pairs of tokens, see Layer.path


@dataclasses.dataclass(frozen=True)
class Layer(ABC):
    """One kind of layer at a size."""

    width: int  # D.
    num_heads: int
    grid: tuple[int, int]  # Rows and columns of patches.
    num_prefix: int  # Class token and registers, which come before the patches.

    name: ClassVar[str]
    formulas: ClassVar[Formulas]

    @property
    def tokens(self) -> int:
        """Tokens that the layer maps: N, or G if it leaves prefix tokens out."""
        return self.num_prefix + math.prod(self.grid)

    @abstractmethod
    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        """Makes the module."""

    @abstractmethod
    def apply(self, module: Any, tokens: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Maps a batch of sequences."""

    @abstractmethod
    def path(self) -> int:
        """Returns how often the layer must be applied until the last token depends on the first.

        A recurrence counts its cells.
        """


class Attention(Layer):
    """Multi-head self-attention, as in each block of a ViT."""

    name = "self-attention"
    formulas = Formulas("4D² + 4D", "4ND² + 2N²D", "1", "1", "O(N²·D)", "O(1)", "O(1)")

    def build(self, rngs: nnx.Rngs) -> SelfAttention:
        return SelfAttention(
            self.width, self.num_heads, tokens=self.tokens, implementation="einsum", rngs=rngs
        )

    def apply(self, module: Any, tokens: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        return module(tokens)[0]

    def path(self) -> int:
        return 1


class GridConvolution(Layer):
    """A 3x3 convolution over the grid of patches, with bias and zero padding.

    Prefix tokens are left out, because they are not on the grid.
    """

    name = "convolution, 3x3 on the grid"
    formulas = Formulas(
        "9D² + D", "9GD²", "1", "longer side - 1", "O(K²·N·D²)", "O(1)", "O(√N / K)"
    )

    @property
    def tokens(self) -> int:
        return math.prod(self.grid)

    def build(self, rngs: nnx.Rngs) -> nnx.Conv:
        return nnx.Conv(self.width, self.width, (KERNEL, KERNEL), padding="SAME", rngs=rngs)

    def apply(self, module: Any, tokens: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        return module(tokens.reshape(-1, *self.grid, self.width)).reshape(tokens.shape)

    def path(self) -> int:
        return max(1, max(self.grid) - 1)


class SequenceConvolution(Layer):
    """A convolution over 3 neighbours in the sequence, with bias and zero padding."""

    name = "convolution, 3 in sequence"
    formulas = Formulas("3D² + D", "3ND²", "1", "N - 1", "O(K·N·D²)", "O(1)", "O(N / K)")

    def build(self, rngs: nnx.Rngs) -> nnx.Conv:
        return nnx.Conv(self.width, self.width, (KERNEL,), padding="SAME", rngs=rngs)

    def apply(self, module: Any, tokens: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        return module(tokens)

    def path(self) -> int:
        return max(1, self.tokens - 1)


class Recurrence(Layer):
    """The simplest recurrent network, h' = tanh(W x + b + U h), from the first token to the last.

    A GRU has three such pairs of matrices and an LSTM four, with the same number of steps.
    """

    name = "recurrence (tanh RNN)"
    formulas = Formulas("2D² + D", "2ND²", "N", "N", "O(N·D²)", "O(N)", "O(N)")

    def build(self, rngs: nnx.Rngs) -> nnx.RNN:
        return nnx.RNN(nnx.SimpleCell(self.width, self.width, rngs=rngs), rngs=False)

    def apply(self, module: Any, tokens: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        return module(tokens, initial_carry=jnp.zeros((len(tokens), self.width)))

    def path(self) -> int:
        return self.tokens


LAYERS: tuple[type[Layer], ...] = (Attention, GridConvolution, SequenceConvolution, Recurrence)


def comparable_layers(options: ModelConfig, image_size: int) -> list[Layer]:
    """Returns one layer of each kind with the width, heads and tokens of a model."""
    sizes = {"num_classes": 0, "image_size": image_size, "key": jax.random.key(0)}
    model = nnx.eval_shape(lambda: build_model(options.on_any_platform(), **sizes))
    if model.num_heads is None:
        raise ModelError(
            f"{options.name}, which has no self-attention", "a ViT or a hybrid", "e.g. ViT-B/16"
        )
    width = model_shape(options).width
    return [layer(width, model.num_heads, model.grid, model.num_prefix) for layer in LAYERS]


def measure(layer: Layer) -> Cost:
    """Measures the cost of a layer. The layer is traced at its own width, but not run.

    >>> measure(Attention(width=768, num_heads=12, grid=(14, 14), num_prefix=1))
    Cost(parameters=2362368, macs=524391936, steps=1, path=1)
    """
    module = nnx.eval_shape(lambda: layer.build(nnx.Rngs(0)))
    graphdef, state = nnx.split(module)
    parameters = jax.tree.leaves(nnx.to_pure_dict(nnx.state(module, nnx.Param)))
    tokens = jax.ShapeDtypeStruct((1, layer.tokens, layer.width), jnp.float32)
    traced = jax.make_jaxpr(lambda s, x: layer.apply(nnx.merge(graphdef, s), x))(state, tokens)
    return Cost(
        parameters=sum(math.prod(p.shape) for p in parameters),
        macs=count_macs(traced.jaxpr),
        steps=max(1, longest_scan_chain(traced.jaxpr)),
        path=layer.path(),
    )


def longest_scan_chain(jaxpr: core.Jaxpr) -> int:
    """Returns the length of the longest chain of scan iterations that depend on each other.

    Consecutive scans are added, nested scans are multiplied, and of independent scans the longest
    counts.
    """
    ready: dict[Any, int] = {}
    for eqn in jaxpr.eqns:
        waited = max((ready.get(v, 0) for v in eqn.invars if _is_variable(v)), default=0)
        inner = max((longest_scan_chain(sub) for sub in sub_jaxprs(eqn)), default=0)
        if eqn.primitive.name == "scan":
            inner = eqn.params["length"] * max(1, inner)
        ready.update(dict.fromkeys(eqn.outvars, waited + inner))
    return max((ready.get(v, 0) for v in jaxpr.outvars if _is_variable(v)), default=0)


def _is_variable(value: Any) -> bool:
    return not isinstance(value, core.Literal)
