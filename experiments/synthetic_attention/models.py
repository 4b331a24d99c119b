"""Models of the synthetic tasks, and weights set by hand that solve the tasks.

That attention with relative positions can express a convolution is a theorem of arXiv:1911.03584.
The two other constructions are ours.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from experiments.synthetic_attention.tasks import Association, Convolution, DoubleIf, offset_table
from vit_jax.models.attention import SelfAttention
from vit_jax.models.block_options import BlockOptions
from vit_jax.models.layers import gelu, softmax
from vit_jax.models.mlp import Mlp

M = TypeVar("M", bound=nnx.Module)

_xavier_uniform = nnx.initializers.xavier_uniform()
_linear = partial(nnx.Linear, kernel_init=_xavier_uniform)
_linear_general = partial(nnx.LinearGeneral, kernel_init=_xavier_uniform)
# If a logit exceeds the others by this much, their weight is 0 in float32 (e^-120 underflows).
_SURE = 120.0
# Scales differences before the MLP, so that a difference of 0.05 counts as much as a large one.
_SHARPNESS = 100.0


class OffsetAttention(nnx.Module):
    """Attention whose logits are one learned number per head and offset.

    In `RelativeBias` of vit_jax, the query is multiplied by a vector for each offset; its bias lets
    it represent such numbers. Here they are parameters, so the learned kernel can be plotted, also
    on a torus.

    Args:
        grid: rows and columns of tokens on a torus.
        features: of a token, in and out.
        heads: H.
        head_dim: features of a head; with `features`, a head can represent any tap's matrix.
        rngs: for the initial values.
    """

    def __init__(
        self, grid: tuple[int, int], features: int, heads: int, head_dim: int, *, rngs: nnx.Rngs
    ):
        self.grid = grid
        self.bias = nnx.Param(0.02 * jax.random.normal(rngs.params(), (heads, math.prod(grid))))
        self.value = _linear_general(features, (heads, head_dim), rngs=rngs)
        self.out = _linear_general((heads, head_dim), features, axis=(-2, -1), rngs=rngs)

    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        weights = softmax(self.bias[...][:, offset_table(self.grid)])
        return self.out(jnp.einsum("hnm,bmhk->bnhk", weights, self.value(x)))


@dataclasses.dataclass(frozen=True)
class Shape:
    """Shape of a `SequenceModel`.

    A convolution over 3 tokens has 3 D^2 weights, as many as queries, keys and values. The linear
    layer after it has D^2, like the output layer of attention. So models of equal shape have equal
    size, except for 2 D biases per block that only attention has.
    """

    layers: int = 2
    width: int = 32
    heads: int = 4
    mlp_dim: int = 64
    kernel_size: int = 3


class Convolving(nnx.Module):
    """Convolution over neighbouring tokens, padded with zeros; GELU; linear layer."""

    def __init__(self, width: int, kernel_size: int, dilation: int, *, rngs: nnx.Rngs):
        self.convolution = _linear(kernel_size * width, width, rngs=rngs)
        self.out = _linear(width, width, rngs=rngs)
        self.offsets = tuple(dilation * (k - kernel_size // 2) for k in range(kernel_size))

    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        tokens, most = x.shape[1], max(self.offsets)
        padded = jnp.pad(x, ((0, 0), (most, most), (0, 0)))
        # One matmul over shifted copies is faster on a CPU than XLA's convolution.
        seen = [padded[:, most + o : most + o + tokens] for o in self.offsets]
        return self.out(gelu(self.convolution(jnp.concatenate(seen, axis=-1))))


class SequenceModel(nnx.Module):
    """Linear layer, residual blocks of a mixing layer and an MLP, linear layer.

    The model has no normalisation, so that its weights can be set by hand, and no positions, so
    that it takes sequences of any length.

    Args:
        kind: "attention", "cnn", or "dilated_cnn", whose dilation doubles from block to block.
        inputs: F, features of a token.
        outputs: features of an output token.
        shape: of the blocks.
        rngs: for the initial values.
    """

    def __init__(self, kind: str, inputs: int, outputs: int, shape: Shape, *, rngs: nnx.Rngs):
        width, options = shape.width, BlockOptions()
        self.embed = _linear(inputs, width, rngs=rngs)
        if kind == "attention":
            mixers = [
                SelfAttention(width, shape.heads, options, implementation="einsum", rngs=rngs)
                for _ in range(shape.layers)
            ]
        else:
            mixers = [
                Convolving(width, shape.kernel_size, dilation, rngs=rngs)
                for dilation in _dilations(kind, shape.layers)
            ]
        self.mixers = nnx.List(mixers)
        self.mlps = nnx.List([Mlp(width, shape.mlp_dim, options, rngs=rngs) for _ in mixers])
        self.head = _linear(width, outputs, rngs=rngs)

    def __call__(self, x: Float[Array, "B N F"]) -> Float[Array, "B N O"]:
        x = self.embed(x)
        for mixer, mlp in zip(self.mixers, self.mlps, strict=True):
            x = x + (mixer(x)[0] if isinstance(mixer, SelfAttention) else mixer(x))
            x = x + mlp(x)
        return self.head(x)


def _dilations(kind: str, layers: int) -> list[int]:
    return [2**i if kind == "dilated_cnn" else 1 for i in range(layers)]


def reach(kind: str, shape: Shape, length: int) -> int:
    """Returns the largest distance at which a token can change an output."""
    if kind in ("attention", "constructed"):
        return length - 1
    return sum(_dilations(kind, shape.layers)) * (shape.kernel_size // 2)


def count_parameters(model: nnx.Module) -> int:
    """Returns the number of trained values."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def solve_convolution(task: Convolution, heads: int) -> OffsetAttention:
    """Returns attention with one head per tap, which attends only to the tap's offset."""
    taps, features, rank = task.inner.shape
    model = _zeros(lambda: OffsetAttention(task.grid, features, heads, rank, rngs=nnx.Rngs(0)))
    head = np.arange(taps)
    bias = np.zeros((heads, math.prod(task.grid)))
    bias[head, task.taps] = _SURE
    value = np.zeros((features, heads, rank))
    value[:, head] = task.inner.transpose(1, 0, 2)
    out = np.zeros((heads, rank, features))
    out[head] = task.outer
    for param, array in ((model.bias, bias), (model.value.kernel, value), (model.out.kernel, out)):
        _set(param, array)
    return model


def solve_association(task: Association) -> SequenceModel:
    """Returns one block: the head adds -U x_1 to every token, the MLP tests whether 0 remains.

    For each feature z the MLP computes GELU(z) + GELU(-z), which is 0 at 0 and near |z| elsewhere.
    A token that differs from U x_1 by less than 0.012 times the square root of the number of
    features may be marked too.
    """
    size = task.matrix.shape[0]
    width, content, flag, slot = size + 2, slice(0, size), size, size + 1
    shape = Shape(layers=1, width=width, heads=1, mlp_dim=2 * size)
    model = _zeros(lambda: SequenceModel("attention", task.inputs, 2, shape, rngs=nnx.Rngs(0)))
    qkv, bias, out = _attention_arrays(width)
    bias[0, 0, 0] = _SURE * np.sqrt(width)
    qkv[flag, 1, 0, 0] = 1  # Every token attends to the first.
    qkv[content, 2, 0, content] = np.eye(size)
    out[0, content, content] = -np.asarray(task.matrix).T
    expand = np.zeros((width, 2 * size))
    expand[content] = _SHARPNESS * np.concatenate([np.eye(size), -np.eye(size)], axis=1)
    contract = np.zeros((2 * size, width))
    contract[:, slot] = 1
    head = np.zeros((width, 2))
    head[slot, 1] = -1
    _set_block(model, task.inputs, qkv, bias, out, head, np.array([0.0, 1.0]))
    _set(model.mlps[0].expand.kernel, expand)
    _set(model.mlps[0].contract.kernel, contract)
    return model


def solve_double_if(task: DoubleIf) -> SequenceModel:
    """Returns one block whose first token attends to itself and to the tokens to count.

    Its query matches b if the token is a, and d if it is c. With n such tokens, 1 / (1 + n) of
    the attention stays with the first token, at any length. The head compares this share s with the
    share t of each count: 2 s t - t^2 is largest for the t nearest to s.
    """
    a, b, c, d, flag, slot, width = 0, 1, 2, 3, 5, 6, 7
    shape = Shape(layers=1, width=width, heads=1, mlp_dim=1)
    model = _zeros(
        lambda: SequenceModel("attention", task.inputs, task.classes, shape, rngs=nnx.Rngs(0))
    )
    qkv, bias, out = _attention_arrays(width)
    sure = _SURE * np.sqrt(width)
    qkv[a, 0, 0, 0], qkv[b, 1, 0, 0] = sure, 1
    qkv[c, 0, 0, 1], qkv[d, 1, 0, 1] = sure, 1
    bias[0, 0, 2], qkv[flag, 1, 0, 2] = sure, 1
    qkv[flag, 2, 0, 0] = 1
    out[0, 0, slot] = 1
    shares = 1 / (1 + np.arange(task.classes))
    head = np.zeros((width, task.classes))
    head[slot] = 2 * shares
    _set_block(model, task.inputs, qkv, bias, out, head, -(shares**2))
    return model


def _zeros(make: Callable[[], M]) -> M:
    """Returns a model whose parameters are all 0."""
    model = nnx.eval_shape(make)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), nnx.state(model, nnx.Param))
    nnx.update(model, zeros)
    return model


def _attention_arrays(width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns zeros for kernel and bias of queries, keys and values, and for the output kernel."""
    return np.zeros((width, 3, 1, width)), np.zeros((3, 1, width)), np.zeros((1, width, width))


def _set_block(
    model: SequenceModel,
    inputs: int,
    qkv: np.ndarray,
    bias: np.ndarray,
    out: np.ndarray,
    head: np.ndarray,
    head_bias: np.ndarray,
) -> None:
    attention = model.mixers[0]
    assert isinstance(attention, SelfAttention)
    _set(model.embed.kernel, np.eye(inputs, model.embed.out_features))
    _set(attention.qkv.kernel, qkv)
    _set(attention.qkv.bias, bias)
    _set(attention.out.kernel, out)
    _set(model.head.kernel, head)
    _set(model.head.bias, head_bias)


def _set(param: nnx.Variable | None, value: np.ndarray) -> None:
    assert param is not None
    assert param.shape == value.shape
    param[...] = jnp.asarray(value, jnp.float32)
