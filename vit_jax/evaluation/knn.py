"""k-nearest-neighbour classification in feature space.

Source: arXiv:1805.01978, section 3.4 (cosine similarity, votes weighted by exp(similarity / 0.07)).
The evaluation follows arXiv:2104.14294, section 4.1.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

# Smaller: near neighbours count more (arXiv:2104.14294, section 4.1).
_TEMPERATURE = 0.07
# Largest number of similarities in memory.
_SIMILARITIES = 1 << 26
_MOST_ROWS = 1024


def knn_accuracies(
    bank: Float[np.ndarray, "N D"],
    bank_labels: Int[np.ndarray, " N"],
    queries: Float[np.ndarray, "T D"],
    labels: Int[np.ndarray, " T"],
    neighbours: Sequence[int],
    *,
    num_classes: int,
) -> Float[np.ndarray, " K"]:
    """Returns the top-1 accuracy for each number of neighbours.

    Ties between neighbours or votes go to the lower index. At most all training examples are used.
    """
    counts = tuple(min(k, len(bank)) for k in neighbours)
    rows = max(1, min(_SIMILARITIES // len(bank), _MOST_ROWS, len(queries)))
    correct = np.zeros(len(counts), np.int64)
    with jax.default_matmul_precision("highest"):
        known = _normalised(jnp.asarray(np.asarray(bank, np.float32)))
        known_labels = jnp.asarray(bank_labels)
        for start in range(0, len(queries), rows):
            part = np.asarray(queries[start : start + rows], np.float32)
            own = len(part)
            part = np.pad(part, ((0, rows - own), (0, 0)))  # One shape, so one compilation.
            found = _vote(known, known_labels, jnp.asarray(part), counts, num_classes)
            found = np.asarray(found)
            correct += (found[:, :own] == labels[None, start : start + own]).sum(1)
    return correct / len(queries)


def _normalised(x: Float[Array, "N D"]) -> Float[Array, "N D"]:
    # A vector of zeros has similarity 0 to all vectors.
    return x / jnp.maximum(jnp.linalg.norm(x, axis=1, keepdims=True), 1e-12)


@partial(jax.jit, static_argnums=(3, 4))
def _vote(
    bank: Float[Array, "N D"],
    bank_labels: Int[Array, " N"],
    queries: Float[Array, "T D"],
    counts: tuple[int, ...],
    num_classes: int,
) -> Int[Array, "K T"]:
    similarity, nearest = jax.lax.top_k(_normalised(queries) @ bank.T, max(counts))
    voters = bank_labels[nearest]  # T, most neighbours
    # Subtracting the largest keeps the exponential finite and the order unchanged.
    weights = jnp.exp((similarity - similarity[:, :1]) / _TEMPERATURE)
    rows = jnp.arange(len(queries))[:, None]

    def classes(count: int) -> jax.Array:
        votes = jnp.zeros((len(queries), num_classes), jnp.float32)
        votes = votes.at[rows, voters[:, :count]].add(weights[:, :count])
        return jnp.argmax(votes, axis=1)

    return jnp.stack([classes(count) for count in counts])
