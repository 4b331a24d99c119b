"""Logistic regression on frozen features: scikit-learn's, or by minibatch gradients where many.

Both minimise the same: the mean cross-entropy plus |W|^2 / (2 C N), the intercept left out, on
features minus their mean over the training examples, divided by their standard deviation. (Of two
classes scikit-learn regularises the difference of their weights, which is a C half as large.)
"""

import logging
import warnings
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from vit_jax.evaluation.fewshot import precision
from vit_jax.evaluation.threads import threads_for
from vit_jax.rng import generator

log = logging.getLogger(__name__)

_EPSILON = 1e-5
_ITERATIONS = 1000
_ROWS = 8192
# Of the gradient-trained probe.
_BATCH_SIZE, _LEARNING_RATE = 1024, 0.02
# Steps an epoch has at least, with smaller batches where there are few examples.
_STEPS = 16


def fits_in_memory(features: Float[np.ndarray, "N D"], memory_mb: int) -> bool:
    """Returns whether features are few enough for scikit-learn, which holds all of them at once."""
    return features.shape[0] * features.shape[1] * 4 <= memory_mb * 1e6


def probe_accuracies(
    features: Float[np.ndarray, "N D"],
    labels: Int[np.ndarray, " N"],
    queries: Float[np.ndarray, "T D"],
    query_labels: Int[np.ndarray, " T"],
    strengths: Sequence[float],
    *,
    num_classes: int,
    by_gradient: bool,
    epochs: int,
    seed: int,
) -> Float[np.ndarray, " G"]:
    """Returns the share of queries that get their own class, for each C.

    Args:
        features: of the training examples.
        labels: their classes.
        queries: features of the examples to classify.
        query_labels: their classes.
        strengths: C, the inverse of the regularisation.
        num_classes: of the dataset.
        by_gradient: minibatches of Adam instead of scikit-learn's L-BFGS.
        epochs: of these.
        seed: of their order.
    """
    mean, std = _moments(features)
    if by_gradient:
        train = partial(train_by_gradient, epochs=epochs, seed=seed)
        kernels, intercepts = train(features, labels, strengths, num_classes, mean, std)
    else:
        scaled = (features - mean) / std
        kernels, intercepts = train_by_lbfgs(scaled, labels, strengths, num_classes)
    right = np.zeros(len(strengths), np.int64)
    for start in range(0, len(queries), _ROWS):
        part = (queries[start : start + _ROWS] - mean) / std
        outputs = part @ kernels + intercepts[:, None]  # G, T, C
        right += (outputs.argmax(2) == query_labels[None, start : start + _ROWS]).sum(1)
    return right / len(queries)


def _moments(
    features: Float[np.ndarray, "N D"],
) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"]]:
    mean = features.mean(0, dtype=np.float64)
    # By parts, so that no second copy of all features is made.
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
    """Returns kernels and intercepts for each C, by scikit-learn; a class not seen is never said.

    Args:
        scaled: features of mean 0 and deviation 1.
        labels: classes.
        strengths: C.
        num_classes: of the dataset.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    width = scaled.shape[1]
    kernels = np.zeros((len(strengths), width, num_classes), np.float32)
    intercepts = np.full((len(strengths), num_classes), -np.inf, np.float32)
    seen = np.unique(labels)
    if len(seen) == 1:  # Nothing to regress.
        intercepts[:, seen[0]] = 0
        return kernels, intercepts
    # From the strongest regularisation on, each start close to its end.
    order = np.argsort(strengths)
    model = LogisticRegression(max_iter=_ITERATIONS, warm_start=True)
    for place in order:
        model.C = float(strengths[place])
        with warnings.catch_warnings(record=True) as caught, threads_for(scaled.size):
            warnings.simplefilter("always", ConvergenceWarning)
            model.fit(scaled, labels)
        if any(issubclass(w.category, ConvergenceWarning) for w in caught):
            log.info("linear probe, C %g: not at its end after %d steps", model.C, _ITERATIONS)
        coefficients, offsets = model.coef_, model.intercept_
        if len(seen) == 2:  # One row, for the second class.
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
    epochs: int,
    seed: int,
) -> tuple[Float[np.ndarray, "G D C"], Float[np.ndarray, "G C"]]:
    """Returns kernels and intercepts for each C, trained side by side on the same minibatches.

    Args:
        features: as extracted; only a minibatch at a time is copied.
        labels: classes.
        strengths: C.
        num_classes: of the dataset.
        mean: of the features.
        std: of the features.
        epochs: passes over the examples; the learning rate falls to 0 along a cosine.
        seed: of their order.
    """
    count, width = features.shape
    rows = max(1, min(_BATCH_SIZE, count // _STEPS))
    per_epoch = count // rows
    optimizer = optax.adam(optax.cosine_decay_schedule(_LEARNING_RATE, epochs * per_epoch))
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
            # Each C by itself: the sum's gradient is each one's own.
            return losses.mean(1).sum() + (decay * jnp.square(kernels).sum((1, 2))).sum() / 2

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        updated = optax.apply_updates(params, updates)
        return updated, state  # pyright: ignore[reportReturnType]

    with precision("float32"):
        for epoch in range(epochs):
            order = generator(seed, "probe", epoch).permutation(count)
            for start in range(0, per_epoch * rows, rows):
                chosen = np.sort(order[start : start + rows])
                x = (features[chosen] - mean) / std
                params, state = step(params, state, jnp.asarray(x), jnp.asarray(labels[chosen]))
    return np.asarray(params[0]), np.asarray(params[1])
