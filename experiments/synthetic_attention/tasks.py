"""Three synthetic tasks. Examples are drawn on the device from a random key.

In association and double if, labels depend on the first token and on tokens far from it. A feature
marks the first token (1 there, 0 elsewhere), so that no model has to learn its position.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from vit_jax.rng import generator

# Distances from the first token at which a task is measured, up to the length of the sequence.
_DISTANCES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("inputs", "labels", "asked"), meta_fields=()
)
@dataclasses.dataclass(frozen=True)
class Batch:
    """Examples of association or double if.

    Attributes:
        inputs: tokens.
        labels: class of each token.
        asked: True where the label counts in loss and accuracy.
    """

    inputs: Float[Array, "B N F"]
    labels: Int[Array, "B N"]
    asked: Bool[Array, "B N"]


class Association:
    """Mark every token that equals U x_1, where U is a random orthogonal matrix.

    Tokens are random unit vectors. Each token after the first is U x_1 or, with equal probability,
    U y for a random y of the sequence. Only a model that knows x_1 can tell them apart; guessing is
    right half of the time.

    Args:
        matrix: U.
        length: N.
    """

    classes = 2

    def __init__(self, matrix: Float[Array, "D D"], length: int):
        self.matrix, self.length = matrix, length
        self.inputs = matrix.shape[0] + 1

    def draw(self, key: Array, count: int) -> Batch:
        """Draws training examples."""
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
        """Draws examples whose only label is that of the token at a distance from the first."""
        batch = self.draw(key, count)
        asked = jnp.arange(self.length)[None] == distance
        return dataclasses.replace(batch, asked=jnp.broadcast_to(asked, batch.asked.shape))


class DoubleIf:
    """Count the tokens b if the first token is a, or the tokens d if it is c.

    The answer is given at the first token, which is a or c with equal probability. The numbers of
    tokens b and d are uniform in 0 to `largest`, and their positions are random. All other tokens
    are a, c or e at random.

    Args:
        largest: largest count.
        length: N. Short sequences hold fewer tokens b and d.
    """

    inputs = 6  # One feature for each of a, b, c, d, e, and the flag of the first token.

    def __init__(self, largest: int, length: int):
        self.largest, self.length = largest, length
        self.classes = largest + 1

    def draw(self, key: Array, count: int) -> Batch:
        """Draws training examples."""
        return self._draw(key, count, self.length - 1, forced=False)

    def draw_at(self, key: Array, count: int, distance: int | Array) -> Batch:
        """Draws examples with b and d up to a distance, and a counted token at that distance."""
        return self._draw(key, count, distance, forced=True)

    def _draw(self, key: Array, count: int, reach: int | Array, forced: bool) -> Batch:
        first_key, number_key, place_key, rest_key = jax.random.split(key, 4)
        is_a = jax.random.bernoulli(first_key, 0.5, (count, 1))
        least = jnp.array([1 if forced else 0, 0])
        numbers = jax.random.randint(number_key, (count, 2), least, self.largest + 1)
        asked, other = numbers[:, :1], numbers[:, 1:]
        place = jnp.arange(self.length)[None]
        scores = jax.random.uniform(place_key, (count, self.length))
        scores = jnp.where((place > 0) & (place <= reach), scores, 2.0)
        if forced:
            scores = jnp.where(place == reach, -1.0, scores)
        rank = jnp.where(scores < 2, scores.argsort(axis=1).argsort(axis=1), self.length)
        counted = rank < asked
        ignored = ~counted & (rank < asked + other)
        a, b, c, d = 0, 1, 2, 3
        tokens = 2 * jax.random.randint(rest_key, (count, self.length), 0, 3)  # a, c or e
        tokens = jnp.where(counted, jnp.where(is_a, b, d), tokens)
        tokens = jnp.where(ignored, jnp.where(is_a, d, b), tokens)
        tokens = jnp.where(place == 0, jnp.where(is_a, a, c), tokens)
        labels = jnp.broadcast_to(counted.sum(1, keepdims=True), tokens.shape)
        first = jnp.broadcast_to(place == 0, tokens.shape)
        return Batch(flag_first(jax.nn.one_hot(tokens, 5)), labels, first)


def flag_first(tokens: Float[Array, "B N F"]) -> Float[Array, "B N F+1"]:
    """Appends a feature that is 1 for the first token and 0 for the others."""
    flag = jnp.zeros((*tokens.shape[:2], 1)).at[:, 0].set(1.0)
    return jnp.concatenate([tokens, flag], axis=-1)


def distances(length: int) -> tuple[int, ...]:
    """Returns the distances at which a task is measured; the last is that of the last token."""
    return (*(d for d in _DISTANCES if d < length - 1), length - 1)


def cross_entropy(model: Any, batch: Batch) -> Float[Array, ""]:
    """Returns the mean loss over the labels that count."""
    losses = optax.softmax_cross_entropy_with_integer_labels(model(batch.inputs), batch.labels)
    return jnp.where(batch.asked, losses, 0.0).sum() / batch.asked.sum().astype(losses.dtype)


def accuracy(model: Any, batch: Batch) -> Float[Array, ""]:
    """Returns the accuracy over the labels that count."""
    right = (model(batch.inputs).argmax(-1) == batch.labels) & batch.asked
    return right.sum() / batch.asked.sum()


@dataclasses.dataclass(frozen=True)
class Convolution:
    """y_i = sum over taps t of x_(i + offset t) K_t on a ring or torus of tokens.

    A ring has no ends: a row of attention weights sums to 1 and cannot fade out at a border as a
    convolution with zero padding does. Inputs are standard normal. The kernel is scaled so that
    outputs have variance 1 on average.

    Attributes:
        grid: rows and columns of tokens; (1, N) is a ring.
        offsets: rows and columns from output to input, for each tap.
        inner: first factor of the kernel, K = inner @ outer.
        outer: second factor.
    """

    grid: tuple[int, int]
    offsets: Int[np.ndarray, "T 2"]
    inner: Float[np.ndarray, "T D R"]
    outer: Float[np.ndarray, "T R D"]

    @classmethod
    def random(
        cls, grid: tuple[int, int], *, features: int, taps: int, span: int, rank: int, seed: int
    ) -> "Convolution":
        """Draws a kernel of normal matrices with offsets of at most `span` along each axis."""
        rng = generator(seed, "convolution", 0)
        axes = [np.arange(-span, span + 1) if n > 1 else np.zeros(1) for n in grid]
        places = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2).astype(np.int64)
        chosen = np.sort(rng.permutation(len(places))[:taps])
        inner = rng.standard_normal((taps, features, rank)) / math.sqrt(taps * features)
        outer = rng.standard_normal((taps, rank, features)) / math.sqrt(rank)
        return cls(grid, places[chosen], inner.astype(np.float32), outer.astype(np.float32))

    @functools.cached_property
    def kernel(self) -> Float[np.ndarray, "T D D"]:
        """The matrix of each tap."""
        return self.inner @ self.outer

    @property
    def taps(self) -> Int[np.ndarray, " T"]:
        """Index of each tap's offset in `offset_table`."""
        return (self.offsets % self.grid) @ np.array([self.grid[1], 1])

    def draw(self, key: Array, count: int) -> tuple[Float[Array, "B N D"], Float[Array, "B N D"]]:
        """Draws inputs and outputs."""
        x = jax.random.normal(key, (count, math.prod(self.grid), self.inner.shape[1]))
        images = x.reshape(count, *self.grid, -1)
        outputs = jnp.zeros_like(images)
        for offset, matrix in zip(self.offsets.tolist(), self.kernel, strict=True):
            moved = jnp.roll(images, (-offset[0], -offset[1]), axis=(1, 2))
            outputs = outputs + moved @ jnp.asarray(matrix)
        return x, outputs.reshape(x.shape)


def offset_table(grid: tuple[int, int]) -> Int[np.ndarray, "N N"]:
    """Returns the index of the offset, key minus query, for each query and key on the torus."""
    places = np.indices(grid).reshape(2, -1).T
    offset = (places[None, :] - places[:, None]) % np.array(grid)
    return offset @ np.array([grid[1], 1])


def squared_error(model: Any, batch: tuple[Array, Array]) -> Float[Array, ""]:
    """Returns the mean squared error."""
    return jnp.square(model(batch[0]) - batch[1]).mean()


def relative_error(model: Any, batch: tuple[Array, Array]) -> Float[Array, ""]:
    """Returns the mean squared error as a fraction of the mean square of the targets."""
    return squared_error(model, batch) / jnp.square(batch[1]).mean()


def recovery(weights: Float[np.ndarray, "H R"], taps: Int[np.ndarray, " T"]) -> dict[str, float]:
    """Measures how well attention by offset has recovered the offsets of a kernel.

    Args:
        weights: attention of each head to each offset; rows sum to 1.
        taps: indices of the kernel's offsets.

    Returns:
        share_of_attention_on_taps, of all attention on the kernel's taps; share_of_taps_found, of
        taps among the T offsets with the most attention; share_of_heads_on_one_tap, of heads with
        more than half of their attention on one tap.
    """
    most = np.argsort(-weights.mean(0), kind="stable")[: len(taps)]
    return {
        "share_of_attention_on_taps": float(weights[:, taps].sum(1).mean()),
        "share_of_taps_found": float(np.isin(most, taps).mean()),
        "share_of_heads_on_one_tap": float((weights[:, taps].max(1) > 0.5).mean()),
    }
