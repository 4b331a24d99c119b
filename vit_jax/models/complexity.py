"""Measures the cost of a self-attention, convolution or recurrent layer.

A layer of each kind maps N tokens of D features to N tokens of D features. Parameters are counted
in the module. Multiply-accumulates and sequential steps are counted in the traced program. The path
length is measured by following gradients from token to token.

Source: arXiv:1706.03762, section 4 and Table 1.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.extend import core
from jaxtyping import Array, Float

from vit_jax.errors import ModelError
from vit_jax.models.attention import SelfAttention
from vit_jax.models.flops import count_macs, sub_jaxprs
from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import build_model, model_shape

# Paths are measured up to this many tokens, because attention's gradient takes N^2 floats.
MEASURED_TOKENS = 4096
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

    parameters: int  # Weights and biases.
    macs: int  # For the whole sequence, padding included.
    steps: int  # Sequential scan iterations; 1 without a scan.
    path: int  # Applications until the last token depends on the first, the most of any pair.


@dataclasses.dataclass(frozen=True)
class Layer(ABC):
    """One kind of layer at a size."""

    width: int  # D.
    num_heads: int
    grid: tuple[int, int]  # Rows and columns of patches.
    num_prefix: int  # Class token and registers, which come before the patches.

    name: ClassVar[str]
    formulas: ClassVar[Formulas]
    # Whether each application reads the layer's input as well as the previous application's result.
    recurrent: ClassVar[bool] = False

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
        """Returns the path length by formula."""

    def propagate(
        self, module: Any, tokens: Float[Array, "1 N D"], inputs: Float[Array, "1 N D"]
    ) -> Float[Array, "1 N D"]:
        """Applies the layer, or all cells of it at once, to the previous application's result."""
        del inputs
        return self.apply(module, tokens)


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
    recurrent = True
    formulas = Formulas("2D² + D", "2ND²", "N", "N", "O(N·D²)", "O(N)", "O(N)")

    def build(self, rngs: nnx.Rngs) -> nnx.RNN:
        return nnx.RNN(nnx.SimpleCell(self.width, self.width, rngs=rngs), rngs=False)

    def apply(self, module: Any, tokens: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        return module(tokens, initial_carry=jnp.zeros((len(tokens), self.width)))

    def path(self) -> int:
        return self.tokens

    def propagate(
        self, module: Any, tokens: Float[Array, "1 N D"], inputs: Float[Array, "1 N D"]
    ) -> Float[Array, "1 N D"]:
        """Applies the cell at every position to its input and the previous position's state."""
        before = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0), (0, 0)))
        return module.cell(before, inputs)[1]


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

    With more than MEASURED_TOKENS tokens, the path comes from the formula instead of a measurement.

    >>> measure(Attention(width=768, num_heads=12, grid=(14, 14), num_prefix=1))
    Cost(parameters=2362368, macs=524391936, steps=1, path=1)
    """
    module = nnx.eval_shape(lambda: layer.build(nnx.Rngs(0)))
    graphdef, state = nnx.split(module)
    parameters = jax.tree.leaves(nnx.to_pure_dict(nnx.state(module, nnx.Param)))
    tokens = jax.ShapeDtypeStruct((1, layer.tokens, layer.width), jnp.float32)
    traced = jax.make_jaxpr(lambda s, x: layer.apply(nnx.merge(graphdef, s), x))(state, tokens)
    path = measure_path(layer) if layer.tokens <= MEASURED_TOKENS else layer.path()
    assert path is not None, "the last token never depends on the first"
    return Cost(
        parameters=sum(math.prod(p.shape) for p in parameters),
        macs=count_macs(traced.jaxpr),
        steps=max(1, longest_scan_chain(traced.jaxpr)),
        path=path,
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


def measure_path(layer: Layer, source: int = 0, target: int = -1) -> int | None:
    """Returns how many times a layer must be applied until one token depends on another.

    Runs the layer's code at a width of 4 with random parameters and follows gradients from the
    target back to the source: tokens whose gradient is not zero are reached. Each application
    starts from random numbers at the tokens reached so far, so that gradients do not vanish. Of a
    recurrence, applications of its cell are counted. None: the target never depends on the source.
    """
    layer = dataclasses.replace(layer, width=4, num_heads=1)
    graphdef, state = nnx.split(nnx.eval_shape(lambda: layer.build(nnx.Rngs(0))))
    draw = np.random.default_rng(0).standard_normal

    def propagate(params: Any, tokens: jax.Array, inputs: jax.Array) -> jax.Array:
        return layer.propagate(nnx.merge(graphdef, params), tokens, inputs)

    @jax.jit
    def search(params: Any, noise: jax.Array, inputs: jax.Array, start: jax.Array) -> tuple:
        def one_more(carry: tuple) -> tuple:
            count, reached, _ = carry
            back = jax.vjp(lambda *both: propagate(params, *both), inputs, inputs)[1]
            gradients = back(jnp.where(reached[None, :, None], noise, 0))
            reached, read = ((g != 0).any((0, 2)) for g in gradients)
            return count + 1, reached, (read if layer.recurrent else reached)[source]

        # No shortest path visits a token twice.
        return jax.lax.while_loop(
            lambda carry: ~carry[2] & (carry[0] < layer.tokens), one_more, (0, start, False)
        )

    # Small numbers, so that tanh does not saturate and softmax weights do not vanish.
    params = jax.tree.map(lambda p: 0.3 * draw(p.shape).astype(p.dtype), nnx.to_pure_dict(state))
    noise, inputs = draw((2, 1, layer.tokens, layer.width)).astype(np.float32)
    start = np.zeros(layer.tokens, bool)
    start[target] = True
    count, _, found = search(params, noise, inputs, start)
    return int(count) if found else None
