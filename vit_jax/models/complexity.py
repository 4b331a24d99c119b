"""What one layer of self-attention, convolution or recurrence costs, measured from real modules.

A layer of each kind maps N tokens of D features to as many. Its parameters are counted in the
module, its multiply-accumulates and sequential steps in the program that the module traces to, and
its path length by asking which tokens a gradient reaches.

Source: arXiv:1706.03762, section 4 and Table 1.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.extend import core
from jaxtyping import Array, Float

from vit_jax.errors import ModelError
from vit_jax.models.attention import SelfAttention
from vit_jax.models.flops import forward_macs
from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import list_models, model_options, resolve
from vit_jax.models.resnet import ResNetShape
from vit_jax.models.summary import usual_image_size
from vit_jax.models.vit import check_sizes, has_class_token

# Paths are measured up to this many tokens; attention's gradient takes N^2 floats.
MEASURED_TOKENS = 4096
# Positions in a kernel's row; both convolutions have it.
KERNEL = 3


@dataclasses.dataclass(frozen=True)
class Formulas:
    """A layer's costs in D, N, K = 3 and G, the tokens that are patches: exact, then their order.

    Source of `order_*`: arXiv:1706.03762, Table 1, and section 4 for the paths of contiguous
    kernels (the table's O(log N) is that of dilated ones); on a grid the same with its side.
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
    """What a layer costs for one image.

    Attributes:
        parameters: weights and biases.
        macs: multiply-accumulates for the whole sequence; padding counts.
        steps: scan iterations that wait for each other, 1 where there is no scan.
        path: applications of layer or cell until the last token depends on the first, which is the
            most that any two tokens need.
    """

    parameters: int
    macs: int
    steps: int
    path: int


@dataclasses.dataclass(frozen=True)
class Layer(ABC):
    """One kind of layer at a size.

    Attributes:
        width: D.
        num_heads: of self-attention.
        grid: rows and columns of patches.
        num_prefix: class token and registers, which stand before the patches in a sequence.
    """

    width: int
    num_heads: int
    grid: tuple[int, int]
    num_prefix: int

    name: ClassVar[str]
    formulas: ClassVar[Formulas]
    # Whether every sweep reads the input, beside what the last sweep gave.
    recurrent: ClassVar[bool] = False

    @property
    def tokens(self) -> int:
        """Tokens that the layer maps: N, or G where prefix tokens have no place in it."""
        return self.num_prefix + math.prod(self.grid)

    @abstractmethod
    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        """Makes the module."""

    @abstractmethod
    def apply(self, module: Any, tokens: Float[Array, "1 N D"]) -> Float[Array, "1 N D"]:
        """Maps a sequence."""

    @abstractmethod
    def path(self) -> int:
        """Returns the path length that the formula gives."""

    def sweep(
        self, module: Any, tokens: Float[Array, "1 N D"], inputs: Float[Array, "1 N D"]
    ) -> Float[Array, "1 N D"]:
        """Applies the layer, or every cell of it at once, to what the last sweep gave."""
        del inputs
        return self.apply(module, tokens)


class Attention(Layer):
    """Multi-head self-attention as in every block of a ViT."""

    name = "self-attention"
    formulas = Formulas("4D² + 4D", "4ND² + 2N²D", "1", "1", "O(N²·D)", "O(1)", "O(1)")

    def build(self, rngs: nnx.Rngs) -> SelfAttention:
        return SelfAttention(
            self.width, self.num_heads, tokens=self.tokens, implementation="einsum", rngs=rngs
        )

    def apply(self, module: Any, tokens: Float[Array, "1 N D"]) -> Float[Array, "1 N D"]:
        return module(tokens)[0]

    def path(self) -> int:
        return 1


class GridConvolution(Layer):
    """A convolution of 3x3 patches with bias, zeros around the grid.

    Prefix tokens have no place on the grid and are left out.
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

    def apply(self, module: Any, tokens: Float[Array, "1 N D"]) -> Float[Array, "1 N D"]:
        return module(tokens.reshape(1, *self.grid, self.width)).reshape(tokens.shape)

    def path(self) -> int:
        return max(1, max(self.grid) - 1)


class SequenceConvolution(Layer):
    """A convolution of 3 neighbours in the sequence, with bias, zeros at its ends."""

    name = "convolution, 3 in sequence"
    formulas = Formulas("3D² + D", "3ND²", "1", "N - 1", "O(K·N·D²)", "O(1)", "O(N / K)")

    def build(self, rngs: nnx.Rngs) -> nnx.Conv:
        return nnx.Conv(self.width, self.width, (KERNEL,), padding="SAME", rngs=rngs)

    def apply(self, module: Any, tokens: Float[Array, "1 N D"]) -> Float[Array, "1 N D"]:
        return module(tokens)

    def path(self) -> int:
        return max(1, self.tokens - 1)


class Recurrence(Layer):
    """The plainest recurrent network, h' = tanh(W x + b + U h), from the first token to the last.

    A GRU has three, an LSTM four such pairs of matrices, and as many steps.
    """

    name = "recurrence (tanh RNN)"
    recurrent = True
    formulas = Formulas("2D² + D", "2ND²", "N", "N", "O(N·D²)", "O(N)", "O(N)")

    def build(self, rngs: nnx.Rngs) -> nnx.RNN:
        return nnx.RNN(nnx.SimpleCell(self.width, self.width, rngs=rngs), rngs=False)

    def apply(self, module: Any, tokens: Float[Array, "1 N D"]) -> Float[Array, "1 N D"]:
        return module(tokens, initial_carry=jnp.zeros((1, self.width)))

    def path(self) -> int:
        return self.tokens

    def sweep(
        self, module: Any, tokens: Float[Array, "1 N D"], inputs: Float[Array, "1 N D"]
    ) -> Float[Array, "1 N D"]:
        """Applies the cell at every place to its input and to the state of the place before."""
        before = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0), (0, 0)))
        return module.cell(before, inputs)[1]


LAYERS: tuple[type[Layer], ...] = (Attention, GridConvolution, SequenceConvolution, Recurrence)


def layers_of(options: ModelConfig, image_size: int) -> list[Layer]:
    """Returns one layer of each kind with the width, heads and tokens of a model.

    Args:
        options: the model section of a config.
        image_size: side in pixels.

    Raises:
        ModelError: unknown name, a ResNet, or sizes that do not go together.
    """
    shape = resolve(options)
    if isinstance(shape, ResNetShape):
        raise ModelError(
            f"{options.name}, a ResNet, which has no tokens",
            "a ViT or a hybrid",
            f"{_vit_of_similar_cost(options)} costs about as much",
        )
    check_sizes(shape, options, (image_size, image_size))
    side = image_size // shape.stride
    prefix = has_class_token(options) + options.num_registers
    return [layer(shape.width, shape.num_heads, (side, side), prefix) for layer in LAYERS]


def _vit_of_similar_cost(options: ModelConfig) -> str:
    side = usual_image_size(options.name)

    def log_macs(name: str) -> float:
        config = model_options(name)
        return math.log(forward_macs(config, num_classes=1000, image_size=(side, side)))

    vits = [
        name
        for name in list_models()
        if name.startswith("ViT-")
        and name.endswith(("/16", "Mini/4", "Micro/4", "Nano/4"))
        and usual_image_size(name) == side
    ]
    wanted = log_macs(options.name)
    return min(vits, key=lambda name: abs(log_macs(name) - wanted))


def measure(layer: Layer) -> Cost:
    """Counts what a layer costs; nothing of its width is computed, whatever its size.

    Beyond MEASURED_TOKENS the path is the formula's.

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


def count_macs(jaxpr: core.Jaxpr) -> int:
    """Returns the multiply-accumulates of a program's matmuls and convolutions.

    The body of a scan counts as often as it runs, of a condition the dearest branch; additions,
    normalisations and the like do not count.

    Raises:
        ValueError: a while loop with matmuls, whose number of turns no trace tells.
    """
    total = 0
    for eqn in jaxpr.eqns:
        inner = [count_macs(sub) for sub in _sub_jaxprs(eqn)]
        kind = eqn.primitive.name
        if kind == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            left = _shape(eqn.invars[0])
            total += math.prod(_shape(eqn.outvars[0])) * math.prod(left[i] for i in contracted)
        elif kind == "conv_general_dilated":
            kernel = _shape(eqn.invars[1])
            outputs = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
            total += math.prod(_shape(eqn.outvars[0])) * math.prod(kernel) // outputs
        elif kind == "while" and any(inner):
            raise ValueError("matmuls in a while loop: unknown how often")
        elif kind == "cond":
            total += max(inner)
        else:
            total += sum(inner) * eqn.params.get("length", 1)
    return total


def longest_scan_chain(jaxpr: core.Jaxpr) -> int:
    """Returns the most scan iterations of a program of which each waits for the one before.

    Scans after one another add up, scans side by side do not, nested ones multiply.
    """
    ready: dict[Any, int] = {}
    for eqn in jaxpr.eqns:
        waited = max((ready.get(v, 0) for v in eqn.invars if _is_variable(v)), default=0)
        inner = max((longest_scan_chain(sub) for sub in _sub_jaxprs(eqn)), default=0)
        if eqn.primitive.name == "scan":
            inner = eqn.params["length"] * max(1, inner)
        ready.update(dict.fromkeys(eqn.outvars, waited + inner))
    return max((ready.get(v, 0) for v in jaxpr.outvars if _is_variable(v)), default=0)


def _sub_jaxprs(eqn: Any) -> Iterator[core.Jaxpr]:
    for value in eqn.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


def _is_variable(value: Any) -> bool:
    return not isinstance(value, core.Literal)


def measure_path(layer: Layer, source: int = 0, target: int = -1) -> int | None:
    """Returns how often a layer is applied until one token depends on another.

    Applies the layer's code, at a width of 4 with random parameters, and follows gradients from the
    target back to the source: a token is reached where its gradient is not zero. Each application
    starts with random numbers at the tokens reached so far, so that no path fades away.

    Args:
        layer: only its tokens matter.
        source: index of the token to depend on, among those that the layer maps.
        target: index of the token that is to depend on it.

    Returns:
        The number of applications of the layer, or of a recurrence's cell; None: never.
    """
    layer = dataclasses.replace(layer, width=4, num_heads=1)
    graphdef, state = nnx.split(nnx.eval_shape(lambda: layer.build(nnx.Rngs(0))))
    draw = np.random.default_rng(0).standard_normal

    def sweep(params: Any, tokens: jax.Array, inputs: jax.Array) -> jax.Array:
        return layer.sweep(nnx.merge(graphdef, params), tokens, inputs)

    @jax.jit
    def search(params: Any, noise: jax.Array, inputs: jax.Array, start: jax.Array) -> tuple:
        def one_more(carry: tuple) -> tuple:
            count, reached, _ = carry
            back = jax.vjp(lambda *both: sweep(params, *both), inputs, inputs)[1]
            gradients = back(jnp.where(reached[None, :, None], noise, 0))
            reached, read = ((g != 0).any((0, 2)) for g in gradients)
            return count + 1, reached, (read if layer.recurrent else reached)[source]

        # No shortest path visits a token twice.
        return jax.lax.while_loop(
            lambda carry: ~carry[2] & (carry[0] < layer.tokens), one_more, (0, start, False)
        )

    # Small ones: neither does tanh saturate nor a softmax weight vanish.
    params = jax.tree.map(lambda p: 0.3 * draw(p.shape).astype(p.dtype), nnx.to_pure_dict(state))
    noise, inputs = draw((2, 1, layer.tokens, layer.width)).astype(np.float32)
    start = np.zeros(layer.tokens, bool)
    start[target] = True
    count, _, found = search(params, noise, inputs, start)
    return int(count) if found else None
