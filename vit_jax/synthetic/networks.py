"""Small models of tokens in which one layer is exchanged: self-attention or a convolution.

Both are [mixing layer, MLP] blocks with residual connections between a linear layer in and one out.
They have no normalisation, so that weights that solve a task can be set by hand, and no positions:
they take sequences of any length.

A convolution over 3 tokens has 3 D^2 weights, as have queries, keys and values; the linear layer
behind it D^2, as the one behind attention. So models of equal shape are of equal size, but for 2 D
biases a block that only attention has.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.config.synthetic import NetworkConfig
from vit_jax.models.attention import SelfAttention
from vit_jax.models.layers import gelu
from vit_jax.models.mlp import Mlp

_linear = partial(nnx.Linear, kernel_init=nnx.initializers.xavier_uniform())


class Attending(nnx.Module):
    """Self-attention among all tokens, as in the ViTs of this package."""

    def __init__(self, width: int, heads: int, *, rngs: nnx.Rngs):
        # The number of tokens serves positions alone, which there are not.
        self.attention = SelfAttention(
            width, heads, tokens=0, implementation="einsum", rngs=rngs
        )  # fmt: skip

    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        return self.attention(x)[0]


class Convolving(nnx.Module):
    """Convolution over neighbouring tokens, GELU, linear layer; zeros beyond the ends.

    Args:
        width: D, features in and out.
        kernel_size: tokens, odd.
        dilation: tokens from one that is seen to the next.
        rngs: source of the initial values.
    """

    def __init__(self, width: int, kernel_size: int, dilation: int, *, rngs: nnx.Rngs):
        self.convolution = _linear(kernel_size * width, width, rngs=rngs)
        self.out = _linear(width, width, rngs=rngs)
        self.offsets = tuple(dilation * (k - kernel_size // 2) for k in range(kernel_size))

    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        tokens, most = x.shape[1], max(self.offsets)
        padded = jnp.pad(x, ((0, 0), (most, most), (0, 0)))
        # One product over shifted copies: on a CPU faster than XLA's convolution.
        seen = [padded[:, most + o : most + o + tokens] for o in self.offsets]
        return self.out(gelu(self.convolution(jnp.concatenate(seen, axis=-1))))


class SequenceModel(nnx.Module):
    """Linear layer, blocks, linear layer.

    Args:
        kind: "attention", "cnn", or "dilated_cnn" whose dilation doubles from block to block.
        inputs: F, features of a token.
        outputs: of a token.
        config: shape.
        rngs: source of the initial values.
    """

    def __init__(
        self, kind: str, inputs: int, outputs: int, config: NetworkConfig, *, rngs: nnx.Rngs
    ):
        width = config.width
        self.embed = _linear(inputs, width, rngs=rngs)
        if kind == "attention":
            mixers = [Attending(width, config.heads, rngs=rngs) for _ in range(config.layers)]
        else:
            mixers = [
                Convolving(width, config.kernel_size, dilation, rngs=rngs)
                for dilation in dilations(kind, config.layers)
            ]
        self.mixers = nnx.List(mixers)
        self.mlps = nnx.List([Mlp(width, config.mlp_dim, rngs=rngs) for _ in mixers])
        self.head = _linear(width, outputs, rngs=rngs)

    def __call__(self, x: Float[Array, "B N F"]) -> Float[Array, "B N O"]:
        x = self.embed(x)
        for mixer, mlp in zip(self.mixers, self.mlps, strict=True):
            x = x + mixer(x)
            x = x + mlp(x)
        return self.head(x)


def dilations(kind: str, layers: int) -> list[int]:
    """Returns the dilation of each convolution.

    >>> dilations("dilated_cnn", 4)
    [1, 2, 4, 8]
    """
    return [2**i if kind == "dilated_cnn" else 1 for i in range(layers)]


def reach(kind: str, config: NetworkConfig, length: int) -> int:
    """Returns how many tokens away a token may lie and still count for an output.

    >>> reach("cnn", NetworkConfig(layers=4), 32), reach("dilated_cnn", NetworkConfig(layers=4), 32)
    (4, 15)
    """
    if kind in ("attention", "constructed"):
        return length - 1
    return sum(dilations(kind, config.layers)) * (config.kernel_size // 2)


def count_parameters(model: nnx.Module) -> int:
    """Returns the number of learned values."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
