"""Weights, set by hand, with which attention solves the tasks exactly: for any input, any length.

That a convolution is among the functions of attention with relative positions is a theorem of
arXiv:1911.03584; the two others are ours.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.config.synthetic import NetworkConfig
from vit_jax.synthetic.convolution import Convolution, OffsetAttention
from vit_jax.synthetic.networks import Attending, SequenceModel
from vit_jax.synthetic.tasks import Association, DoubleIf

M = TypeVar("M", bound=nnx.Module)

# A logit so much above the others that these get no weight in float32: e^-120 is 0 there.
_SURE = 120.0
# Of differences before the MLP, so that those of 0.05 count as much as large ones.
_SHARPNESS = 100.0


def solve_convolution(task: Convolution, heads: int) -> OffsetAttention:
    """Returns attention with one head a tap, which looks at the tap's offset alone."""
    features, rank = task.inner.shape[1:]
    model = _zeros(
        lambda: OffsetAttention(
            task.grid, features, heads, rank, content=False, rngs=nnx.Rngs(0)
        )
    )  # fmt: skip
    head = np.arange(len(task.taps))
    bias = np.zeros((heads, task.length))
    bias[head, task.taps] = _SURE
    _set(model.bias, bias)
    value = np.zeros((features, heads, rank))
    value[:, head] = task.inner.transpose(1, 0, 2)
    _set(model.value.kernel, value)
    out = np.zeros((heads, rank, features))
    out[head] = task.outer
    _set(model.out.kernel, out)
    return model


def solve_association(task: Association) -> SequenceModel:
    """Returns one block: the head brings -U x_1 to every token, the MLP asks whether all is 0 then.

    The MLP has GELU(z) + GELU(-z), which is 0 at 0 and near |z| elsewhere, of each feature. Tokens
    may be marked, too, that differ from U x_1 by less than 0.012 times the root of the features.
    """
    size = task.matrix.shape[0]
    width, content, flag, slot = size + 2, slice(0, size), size, size + 1
    shape = NetworkConfig(layers=1, width=width, heads=1, mlp_dim=2 * size)
    model = _zeros(lambda: SequenceModel("attention", task.inputs, 2, shape, rngs=nnx.Rngs(0)))
    _set(model.embed.kernel, np.eye(task.inputs, width))
    qkv, bias, out = _attention_arrays(width)
    bias[0, 0, 0] = _SURE * np.sqrt(width)
    qkv[flag, 1, 0, 0] = 1  # All look at the first token.
    qkv[content, 2, 0, content] = np.eye(size)
    out[0, content, content] = -np.asarray(task.matrix).T
    _set_attention(model, qkv, bias, out)
    expand = np.zeros((width, 2 * size))
    expand[content] = _SHARPNESS * np.concatenate([np.eye(size), -np.eye(size)], axis=1)
    contract = np.zeros((2 * size, width))
    contract[:, slot] = 1
    _set(model.mlps[0].expand.kernel, expand)
    _set(model.mlps[0].contract.kernel, contract)
    head = np.zeros((width, 2))
    head[slot, 1] = -1
    _set(model.head.kernel, head)
    _set(model.head.bias, np.array([0.0, 1.0]))
    return model


def solve_double_if(task: DoubleIf) -> SequenceModel:
    """Returns one block whose first token looks at itself and at those that it asks for.

    Its query asks for b if it is a, for d if it is c. With n of them, 1 / (1 + n) of its attention
    stays with itself, whatever the length. The head compares this with what each count gives:
    2 s t - t^2 is largest for the t that is nearest to s.
    """
    a, b, c, d, flag, slot, width = 0, 1, 2, 3, 5, 6, 7
    shape = NetworkConfig(layers=1, width=width, heads=1, mlp_dim=1)
    model = _zeros(
        lambda: SequenceModel("attention", task.inputs, task.classes, shape, rngs=nnx.Rngs(0))
    )
    _set(model.embed.kernel, np.eye(task.inputs, width))
    qkv, bias, out = _attention_arrays(width)
    sure = _SURE * np.sqrt(width)
    qkv[a, 0, 0, 0], qkv[b, 1, 0, 0] = sure, 1
    qkv[c, 0, 0, 1], qkv[d, 1, 0, 1] = sure, 1
    bias[0, 0, 2], qkv[flag, 1, 0, 2] = sure, 1
    qkv[flag, 2, 0, 0] = 1
    out[0, 0, slot] = 1
    _set_attention(model, qkv, bias, out)
    shares = 1 / (1 + np.arange(task.classes))
    head = np.zeros((width, task.classes))
    head[slot] = 2 * shares
    _set(model.head.kernel, head)
    _set(model.head.bias, -(shares**2))
    return model


def _zeros(make: Callable[[], M]) -> M:
    """Returns a model whose parameters are 0, without making its initial values first."""
    model = nnx.eval_shape(make)
    state = nnx.state(model, nnx.Param)
    nnx.update(model, jax.tree.map(lambda x: jnp.asarray(np.zeros(x.shape, x.dtype)), state))
    return model


def _set(param: nnx.Variable | None, value: np.ndarray) -> None:
    assert param is not None
    assert param.shape == value.shape
    param[...] = jnp.asarray(value, jnp.float32)


def _attention_arrays(width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns zeros for the kernel and bias of queries, keys and values, and for the output."""
    return np.zeros((width, 3, 1, width)), np.zeros((3, 1, width)), np.zeros((1, width, width))


def _set_attention(
    model: SequenceModel, qkv: np.ndarray, bias: np.ndarray, out: np.ndarray
) -> None:
    mixer = model.mixers[0]
    assert isinstance(mixer, Attending)
    _set(mixer.attention.qkv.kernel, qkv)
    _set(mixer.attention.qkv.bias, bias)
    _set(mixer.attention.out.kernel, out)
