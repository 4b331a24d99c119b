"""Tasks on sequences of tokens whose examples are made on the device from a key.

Each asks for something about tokens that lie far apart: the first token decides what is asked of
the others. All tell the first token from others by a feature that is 1 there and 0 elsewhere, so
that no model has to learn where it is.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

# What is measured at which distance from the first token, where the sequence is long enough.
_DISTANCES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Examples of a task.

    Attributes:
        inputs: f32 tokens.
        labels: a class for each token.
        asked: where the label counts.
    """

    inputs: Float[Array, "B N F"]
    labels: Int[Array, "B N"]
    asked: Bool[Array, "B N"]


jax.tree_util.register_dataclass(Batch)


class Association:
    """Mark every token that equals U x_1, U a random orthogonal matrix.

    Tokens are random unit vectors. Each token after the first is U x_1 or, with equal chance, U y
    for a random y of the sequence's own: only who knows x_1 can tell which is which, and guessing
    is right in half of the cases.

    Args:
        matrix: U, orthogonal.
        length: N.
    """

    classes = 2

    def __init__(self, matrix: Float[Array, "D D"], length: int):
        self.matrix, self.length = matrix, length
        self.inputs = matrix.shape[0] + 1

    def draw(self, key: Array, count: int) -> Batch:
        """Returns examples as they are learned from."""
        vectors_key, labels_key = jax.random.split(key)
        vectors = jax.random.normal(vectors_key, (count, 2, self.matrix.shape[0]))
        vectors = vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)
        labels = jax.random.bernoulli(labels_key, 0.5, (count, self.length)).at[:, 0].set(False)
        images = vectors @ self.matrix.T
        tokens = jnp.where(labels[..., None], images[:, :1], images[:, 1:])
        tokens = tokens.at[:, 0].set(vectors[:, 0])
        asked = jnp.broadcast_to(jnp.arange(self.length)[None] > 0, labels.shape)
        return Batch(flag_first(tokens), labels.astype(jnp.int32), asked)

    def draw_at(self, key: Array, count: int, distance: int | Array) -> Batch:
        """Returns examples of which only the token at a distance from the first is asked for."""
        batch = self.draw(key, count)
        there = jnp.arange(self.length)[None] == distance
        return dataclasses.replace(batch, asked=jnp.broadcast_to(there, batch.asked.shape))


class DoubleIf:
    """Count the tokens b if the first one is a, the tokens d if it is c; answered at the first.

    The first token is a or c with equal chance. There are 0 to `most` tokens b, and as many d, each
    number with equal chance, at random places; the rest are a, c or e at random.

    Args:
        most: largest count.
        length: N; where it has less room than for all tokens b and d, there are fewer.
    """

    inputs = 6  # One feature for each of a, b, c, d, e, and the flag of the first token.

    def __init__(self, most: int, length: int):
        self.most, self.length = most, length
        self.classes = most + 1

    def draw(self, key: Array, count: int) -> Batch:
        """Returns examples as they are learned from."""
        return self._draw(key, count, self.length - 1, forced=False)

    def draw_at(self, key: Array, count: int, distance: int | Array) -> Batch:
        """Returns examples whose b and d all lie within a distance, one that counts at its end."""
        return self._draw(key, count, distance, forced=True)

    def _draw(self, key: Array, count: int, reach: int | Array, forced: bool) -> Batch:
        first_key, number_key, place_key, rest_key = jax.random.split(key, 4)
        is_a = jax.random.bernoulli(first_key, 0.5, (count, 1))
        least = jnp.array([1 if forced else 0, 0])
        numbers = jax.random.randint(number_key, (count, 2), least, self.most + 1)
        asked, other = numbers[:, :1], numbers[:, 1:]
        place = jnp.arange(self.length)[None]
        scores = jax.random.uniform(place_key, (count, self.length))
        scores = jnp.where((place > 0) & (place <= reach), scores, 2.0)
        if forced:
            scores = jnp.where(place == reach, -1.0, scores)
        rank = jnp.where(scores < 2, scores.argsort(axis=1).argsort(axis=1), self.length)
        counts = rank < asked
        ignored = ~counts & (rank < asked + other)
        a, b, c, d = 0, 1, 2, 3
        tokens = 2 * jax.random.randint(rest_key, (count, self.length), 0, 3)  # a, c or e
        tokens = jnp.where(counts, jnp.where(is_a, b, d), tokens)
        tokens = jnp.where(ignored, jnp.where(is_a, d, b), tokens)
        tokens = jnp.where(place == 0, jnp.where(is_a, a, c), tokens)
        labels = jnp.broadcast_to(counts.sum(1, keepdims=True), tokens.shape)
        first = jnp.broadcast_to(place == 0, tokens.shape)
        return Batch(flag_first(jax.nn.one_hot(tokens, 5)), labels, first)


Task = Association | DoubleIf


def flag_first(tokens: Float[Array, "B N F"]) -> Float[Array, "B N F+1"]:
    """Returns tokens with one more feature, 1 for the first and 0 for the others."""
    flag = jnp.zeros((*tokens.shape[:2], 1)).at[:, 0].set(1.0)
    return jnp.concatenate([tokens, flag], axis=-1)


def random_orthogonal(key: Array, size: int) -> Float[Array, "D D"]:
    """Returns an orthogonal matrix, each as likely as any other."""
    return jax.random.orthogonal(key, size)


def distances(length: int) -> tuple[int, ...]:
    """Returns the distances from the first token at which a task is measured.

    >>> distances(10)
    (1, 2, 3, 4, 6, 8, 9)
    """
    return (*(d for d in _DISTANCES if d < length - 1), length - 1)


def cross_entropy(logits: Float[Array, "B N C"], batch: Batch) -> Float[Array, ""]:
    """Returns the mean over the labels that count."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    return jnp.where(batch.asked, losses, 0.0).sum() / batch.asked.sum().astype(losses.dtype)


def accuracy(logits: Float[Array, "B N C"], batch: Batch) -> Float[Array, ""]:
    """Returns the share of the labels that count for which the largest logit is the right one."""
    right = (logits.argmax(-1) == batch.labels) & batch.asked
    return right.sum() / batch.asked.sum()
