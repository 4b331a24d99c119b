"""Few-shot evaluation: closed-form ridge regression from frozen features to {-1, 1}^C.

With whitened features z and a constant feature of value b = 100, the weights minimise

    sum over examples of |W z + w b - y|^2 + l2 (|W|^2 + |w|^2),

where y is 1 for the example's class and -1 for the others. One eigendecomposition of z'z (or of zz'
if there are fewer examples than features) gives the solution for every l2. Whitened features have
mean 0, so w and W can be solved separately. This keeps precision in float32, where a constant
feature of 100 would dominate the other features.

Source: arXiv:2010.11929, section 4.1. Whitening, bias and l2 follow big_vision's evaluator.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vit_jax.evaluation.threads import threads_for

# As in big_vision: added to the standard deviation, and the value of the constant feature.
_EPSILON, _BIAS = 1e-5, 100.0
# Number of examples to classify at once.
_ROWS = 4096


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RidgePath:
    """The ridge solutions for every l2, factored into R = min(N, D) components."""

    mean: jax.Array  # [D], subtracted from the features
    std: jax.Array  # [D], the features are divided by it
    lhs: jax.Array  # [D, R]
    rhs: jax.Array  # [R, C]
    eigs: jax.Array  # [R], eigenvalues, at least 0
    sums: jax.Array  # [C], sum of the targets over the examples
    count: jax.Array  # N


def fit_ridge(
    features: Float[np.ndarray, "N D"], labels: Int[np.ndarray, " N"], num_classes: int
) -> RidgePath:
    """Solves ridge regression on the device for every l2 at once."""
    with jax.default_matmul_precision("highest"), threads_for(features.size):
        found = _fit(jnp.asarray(features, jnp.float32), jnp.asarray(labels), num_classes)
        return jax.block_until_ready(found)


@partial(jax.jit, static_argnums=2)
def _fit(x: Float[Array, "N D"], labels: Int[Array, " N"], num_classes: int) -> RidgePath:
    mean, std = x.mean(0), x.std(0) + _EPSILON
    z = (x - mean[None]) / std[None]
    y = 2 * jax.nn.one_hot(labels, num_classes, dtype=x.dtype) - 1
    if len(z) >= z.shape[1]:
        eigs, q = jnp.linalg.eigh(z.T @ z)
        lhs, rhs = q, q.T @ (z.T @ y)
    else:
        eigs, q = jnp.linalg.eigh(z @ z.T)
        lhs, rhs = z.T @ q, q.T @ y
    eigs = jnp.maximum(eigs, 0)  # Rounding may make the smallest ones negative.
    return RidgePath(mean, std, lhs, rhs, eigs, y.sum(0), jnp.asarray(len(z), x.dtype))


@jax.jit
def solve(path: RidgePath, l2: Float[Array, ""]) -> tuple[Float[Array, "D C"], Float[Array, " C"]]:
    """Returns the weights for (features - mean) / std and the offsets, for one l2 above 0."""
    weights = (path.lhs / (path.eigs + l2)[None]) @ path.rhs
    return weights, _BIAS**2 * path.sums / (_BIAS**2 * path.count + l2)


@jax.jit
def _classify(
    path: RidgePath, x: Float[Array, "T D"], l2s: Float[Array, " L"]
) -> Int[Array, "L T"]:
    z = (x - path.mean[None]) / path.std[None]

    def classes(l2: jax.Array) -> jax.Array:
        weights, offset = solve(path, l2)
        return jnp.argmax(z @ weights + offset[None], axis=1)

    return jax.lax.map(classes, l2s)


def accuracies(
    path: RidgePath,
    features: Float[np.ndarray, "T D"],
    labels: Int[np.ndarray, " T"],
    l2s: Sequence[float],
) -> Float[np.ndarray, " L"]:
    """Returns the top-1 accuracy for each l2. The device gets a few thousand examples at a time."""
    correct = np.zeros(len(l2s), np.int64)
    rows = min(_ROWS, len(features))
    with jax.default_matmul_precision("highest"):
        strengths = jnp.asarray(l2s, jnp.float32)
        for start in range(0, len(features), rows):
            part = np.asarray(features[start : start + rows], np.float32)
            own = len(part)
            part = np.pad(part, ((0, rows - own), (0, 0)))  # One shape, so one compilation.
            found = np.asarray(_classify(path, jnp.asarray(part), strengths))
            correct += (found[:, :own] == labels[None, start : start + own]).sum(1)
    return correct / len(features)
