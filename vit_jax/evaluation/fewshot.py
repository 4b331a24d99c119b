"""Few-shot evaluation: closed-form ridge regression from frozen features to {-1, 1}^C.

With whitened features z and a constant feature b (of value `bias`), the weights minimise

    sum over examples of |W z + w b - y|^2 + l2 (|W|^2 + |w|^2),

where y is 1 for the example's class and -1 for the others. One eigendecomposition of z'z (or of zz'
if there are fewer examples than features) gives the solution for every l2. Whitened features have
mean 0, so w and W can be solved separately. This keeps precision in float32, where a constant
feature of 100 would dominate the other features.

Source: arXiv:2010.11929, section 4.1. Whitening, bias and l2 follow big_vision's evaluator.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vit_jax.evaluation.threads import threads_for

# Added to the standard deviation, as in big_vision.
_EPSILON = 1e-5
# Number of examples to classify at once.
_ROWS = 4096
Dtype = Literal["float32", "float64"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RidgePath:
    """The ridge solutions for every l2, factored into R = min(N, D) components.

    Attributes:
        mean: [D], subtracted from the features.
        std: [D], the features are divided by it.
        lhs: [D', R]; D' is D, or D + 1 if the constant feature is one of them.
        rhs: [R, C].
        eigs: [R], eigenvalues, at least 0.
        sums: [C], sum of the targets over the examples.
        count: N.
    """

    mean: jax.Array
    std: jax.Array
    lhs: jax.Array
    rhs: jax.Array
    eigs: jax.Array
    sums: jax.Array
    count: jax.Array


def fit_ridge(
    features: Float[np.ndarray, "N D"],
    labels: Int[np.ndarray, " N"],
    *,
    num_classes: int,
    whiten: bool,
    bias: float | None,
    dtype: Dtype = "float32",
) -> RidgePath:
    """Solves ridge regression on the device for every l2 at once.

    Args:
        features: features of the shots.
        labels: classes of the shots.
        num_classes: C.
        whiten: subtract the mean of these features, divide by their standard deviation + 1e-5.
        bias: value of the constant feature; None: no constant feature.
        dtype: precision; float64 runs on the host if the device does not support it.
    """
    with precision(dtype), threads_for(features.size):
        x = jnp.asarray(np.asarray(features, dtype))
        found = _fit(x, jnp.asarray(labels), num_classes, whiten, bias)
        return jax.block_until_ready(found)


@contextlib.contextmanager
def precision(dtype: Dtype) -> Iterator[None]:
    """Enables float64 if `dtype` is float64, and the highest precision of matmuls."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.default_matmul_precision("highest"))
        if dtype == "float64":
            stack.enter_context(jax.enable_x64(True))
            if jax.default_backend() == "tpu":
                stack.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
        yield


@partial(jax.jit, static_argnums=(2, 3, 4))
def _fit(
    x: Float[Array, "N D"],
    labels: Int[Array, " N"],
    num_classes: int,
    whiten: bool,
    bias: float | None,
) -> RidgePath:
    count, width = x.shape
    mean, std = jnp.zeros((width,), x.dtype), jnp.ones((width,), x.dtype)
    if whiten:
        mean, std = x.mean(0), x.std(0) + jnp.asarray(_EPSILON, x.dtype)
    z = (x - mean[None]) / std[None]
    if bias is not None and not whiten:
        z = jnp.pad(z, ((0, 0), (0, 1)), constant_values=bias)
    y = 2 * jax.nn.one_hot(labels, num_classes, dtype=x.dtype) - 1
    if count >= z.shape[1]:
        eigs, q = jnp.linalg.eigh(z.T @ z)
        lhs, rhs = q, q.T @ (z.T @ y)
    else:
        eigs, q = jnp.linalg.eigh(z @ z.T)
        lhs, rhs = z.T @ q, q.T @ y
    eigs = jnp.maximum(eigs, 0)  # Rounding may make the smallest ones negative.
    return RidgePath(mean, std, lhs, rhs, eigs, y.sum(0), jnp.asarray(count, x.dtype))


@partial(jax.jit, static_argnums=(2, 3))
def solve(
    path: RidgePath, l2: Float[Array, ""], whiten: bool, bias: float | None
) -> tuple[Float[Array, "D C"], Float[Array, " C"]]:
    """Returns the weights for (features - mean) / std and the offsets, for one l2.

    Args:
        path: from `fit_ridge` with the same `whiten` and `bias`.
        l2: regularisation strength, above 0.
        whiten: see `fit_ridge`.
        bias: see `fit_ridge`.
    """
    weights = (path.lhs / (path.eigs + l2)[None]) @ path.rhs
    if bias is None:
        return weights, jnp.zeros_like(path.sums)
    constant = jnp.asarray(bias, path.sums.dtype)
    if not whiten:
        return weights[:-1], constant * weights[-1]
    return weights, constant**2 * path.sums / (constant**2 * path.count + l2)


@partial(jax.jit, static_argnums=(3, 4))
def _classify(
    path: RidgePath,
    x: Float[Array, "T D"],
    l2s: Float[Array, " L"],
    whiten: bool,
    bias: float | None,
) -> Int[Array, "L T"]:
    z = (x - path.mean[None]) / path.std[None]

    def classes(l2: jax.Array) -> jax.Array:
        weights, offset = solve(path, l2, whiten, bias)
        return jnp.argmax(z @ weights + offset[None], axis=1)

    return jax.lax.map(classes, l2s)


def accuracies(
    path: RidgePath,
    features: Float[np.ndarray, "T D"],
    labels: Int[np.ndarray, " T"],
    l2s: Sequence[float],
    *,
    whiten: bool,
    bias: float | None,
    dtype: Dtype = "float32",
) -> Float[np.ndarray, " L"]:
    """Returns the top-1 accuracy for each l2.

    Args:
        path: from `fit_ridge` with the same `whiten`, `bias` and `dtype`.
        features: any number of examples; the device gets a few thousand at a time.
        labels: classes of the examples.
        l2s: regularisation strengths.
        whiten: see `fit_ridge`.
        bias: see `fit_ridge`.
        dtype: see `fit_ridge`.
    """
    correct = np.zeros(len(l2s), np.int64)
    rows = min(_ROWS, len(features))
    with precision(dtype):
        strengths = jnp.asarray(np.asarray(l2s, dtype))
        for start in range(0, len(features), rows):
            part = np.asarray(features[start : start + rows], dtype)
            own = len(part)
            part = np.pad(part, ((0, rows - own), (0, 0)))  # One shape, so one compilation.
            found = np.asarray(_classify(path, jnp.asarray(part), strengths, whiten, bias))
            correct += (found[:, :own] == labels[None, start : start + own]).sum(1)
    return correct / len(features)
