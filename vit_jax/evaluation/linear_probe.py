"""Logistic regression on frozen features, by scikit-learn or, for large data, by minibatches.

Both minimise the mean cross-entropy plus |W|^2 / (2 C N) on standardised features; the intercept is
not regularised. (With two classes scikit-learn regularises the difference of their weights, which
corresponds to half the C.)
"""

import logging
import warnings
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from vit_jax.evaluation.threads import threads_for
from vit_jax.rng import generator

log = logging.getLogger(__name__)

_EPSILON = 1e-5
_ITERATIONS = 1000
_ROWS = 8192
# Features that scikit-learn gets, in bytes; larger ones are for minibatch training.
_MEMORY = 2e9
# For minibatch training.
_BATCH_SIZE, _LEARNING_RATE, _EPOCHS = 1024, 0.02, 50
# Minimum number of steps per epoch. With few examples, the batches are smaller.
_MIN_STEPS = 16


def fits_in_memory(features: Float[np.ndarray, "N D"]) -> bool:
    """Returns whether the features fit in memory, as scikit-learn requires."""
    return features.shape[0] * features.shape[1] * 4 <= _MEMORY


def probe_accuracies(
    features: Float[np.ndarray, "N D"],
    labels: Int[np.ndarray, " N"],
    queries: Float[np.ndarray, "T D"],
    query_labels: Int[np.ndarray, " T"],
    strengths: Sequence[float],
    *,
    num_classes: int,
    by_gradient: bool,
    seed: int,
) -> Float[np.ndarray, " G"]:
    """Returns the top-1 accuracy for each C, the inverse regularisation strength.

    `by_gradient` trains with Adam on minibatches, in an order that `seed` draws, instead of
    scikit-learn's L-BFGS.
    """
    mean, std = _moments(features)
    if by_gradient:
        kernels, intercepts = train_by_gradient(
            features, labels, strengths, num_classes, mean, std, seed=seed
        )
    else:
        scaled = (features - mean) / std
        kernels, intercepts = train_by_lbfgs(scaled, labels, strengths, num_classes)
    correct = np.zeros(len(strengths), np.int64)
    for start in range(0, len(queries), _ROWS):
        part = (queries[start : start + _ROWS] - mean) / std
        outputs = part @ kernels + intercepts[:, None]  # G, T, C
        correct += (outputs.argmax(2) == query_labels[None, start : start + _ROWS]).sum(1)
    return correct / len(queries)


def _moments(
    features: Float[np.ndarray, "N D"],
) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"]]:
    mean = features.mean(0, dtype=np.float64)
    # In chunks, to avoid a second copy of all features.
    parts = range(0, len(features), _ROWS)
    square = sum(np.square(features[i : i + _ROWS] - mean).sum(0) for i in parts)
    std = np.sqrt(square / len(features)) + _EPSILON
    return mean.astype(np.float32), std.astype(np.float32)


def train_by_lbfgs(
    scaled: Float[np.ndarray, "N D"],
    labels: Int[np.ndarray, " N"],
    strengths: Sequence[float],
    num_classes: int,
) -> tuple[Float[np.ndarray, "G D C"], Float[np.ndarray, "G C"]]:
    """Trains with scikit-learn; returns kernels and intercepts for each C.

    The features have mean 0 and standard deviation 1. A class without training examples is never
    predicted.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    width = scaled.shape[1]
    kernels = np.zeros((len(strengths), width, num_classes), np.float32)
    intercepts = np.full((len(strengths), num_classes), -np.inf, np.float32)
    seen = np.unique(labels)
    if len(seen) == 1:  # Nothing to train.
        intercepts[:, seen[0]] = 0
        return kernels, intercepts
    # Each fit starts from the solution of the previous one, strongest regularisation first.
    order = np.argsort(strengths)
    model = LogisticRegression(max_iter=_ITERATIONS, warm_start=True)
    for place in order:
        model.C = float(strengths[place])
        with warnings.catch_warnings(record=True) as caught, threads_for(scaled.size):
            warnings.simplefilter("always", ConvergenceWarning)
            model.fit(scaled, labels)
        if any(issubclass(w.category, ConvergenceWarning) for w in caught):
            log.info("linear probe, C %g: not converged after %d steps", model.C, _ITERATIONS)
        coefficients, offsets = model.coef_, model.intercept_
        if len(seen) == 2:  # A single row, for the second class.
            coefficients = np.concatenate([-coefficients, coefficients]) / 2
            offsets = np.concatenate([-offsets, offsets]) / 2
        kernels[place][:, seen] = coefficients.T
        intercepts[place, seen] = offsets
    return kernels, intercepts


def train_by_gradient(
    features: Float[np.ndarray, "N D"],
    labels: Int[np.ndarray, " N"],
    strengths: Sequence[float],
    num_classes: int,
    mean: Float[np.ndarray, " D"],
    std: Float[np.ndarray, " D"],
    *,
    seed: int,
) -> tuple[Float[np.ndarray, "G D C"], Float[np.ndarray, "G C"]]:
    """Trains one probe for each C on the same minibatches; returns kernels and intercepts.

    Each minibatch of the features is standardised by their `mean` and `std`.
    """
    count, width = features.shape
    rows = max(1, min(_BATCH_SIZE, count // _MIN_STEPS))
    per_epoch = count // rows
    optimizer = optax.adam(optax.cosine_decay_schedule(_LEARNING_RATE, _EPOCHS * per_epoch))
    decay = jnp.asarray(1 / (np.asarray(strengths) * count), jnp.float32)
    params = (
        jnp.zeros((len(strengths), width, num_classes), jnp.float32),
        jnp.zeros((len(strengths), num_classes), jnp.float32),
    )
    state = optimizer.init(params)

    @jax.jit
    def step(
        params: tuple[Array, Array], state: optax.OptState, x: Array, y: Array
    ) -> tuple[tuple[Array, Array], optax.OptState]:
        def loss(params: tuple[Array, Array]) -> Array:
            kernels, intercepts = params
            logits = jnp.einsum("bd,gdc->gbc", x, kernels) + intercepts[:, None]
            losses = optax.softmax_cross_entropy_with_integer_labels(
                logits, jnp.broadcast_to(y[None], logits.shape[:2])
            )
            # The probes share no parameters, so the gradient of the sum trains each separately.
            return losses.mean(1).sum() + (decay * jnp.square(kernels).sum((1, 2))).sum() / 2

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        updated = optax.apply_updates(params, updates)
        return updated, state  # pyright: ignore[reportReturnType]

    with jax.default_matmul_precision("highest"):
        for epoch in range(_EPOCHS):
            order = generator(seed, "probe", epoch).permutation(count)
            for start in range(0, per_epoch * rows, rows):
                chosen = np.sort(order[start : start + rows])
                x = (features[chosen] - mean) / std
                params, state = step(params, state, jnp.asarray(x), jnp.asarray(labels[chosen]))
    return np.asarray(params[0]), np.asarray(params[1])
