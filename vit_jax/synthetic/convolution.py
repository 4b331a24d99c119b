"""A random convolution on a ring or torus of tokens, and attention by offset, which can express it.

The tokens are a ring, so that every offset exists at every token, also across the ends: a row of
attention weights sums to 1, and could not fade out at a border as a convolution with zeros does.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from vit_jax.config.synthetic import ConvolutionConfig
from vit_jax.models.attention import attention_weights
from vit_jax.models.layers import softmax
from vit_jax.rng import generator

Grid = tuple[int, int]
_xavier_uniform = nnx.initializers.xavier_uniform()


@dataclasses.dataclass(frozen=True)
class Convolution:
    """y_i = sum over taps t of x_(i + offset t) K_t, offsets taken around the ring.

    Inputs are standard normal; the kernel is scaled so that outputs have variance 1 on average.

    Attributes:
        grid: rows and columns of tokens; (1, N) is a ring.
        offsets: rows and columns from output to input, of each tap.
        inner: K = inner @ outer.
        outer: its other factor.
    """

    grid: Grid
    offsets: Int[np.ndarray, "T 2"]
    inner: Float[np.ndarray, "T D R"]
    outer: Float[np.ndarray, "T R D"]

    @classmethod
    def random(cls, config: ConvolutionConfig, length: int, seed: int) -> "Convolution":
        """Returns a convolution with random offsets and a normal kernel."""
        grid = config.grid or (1, length)
        rng = generator(seed, "convolution", 0)
        axes = [np.arange(-config.span, config.span + 1) if n > 1 else np.zeros(1) for n in grid]
        places = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2).astype(np.int64)
        chosen = np.sort(rng.permutation(len(places))[: config.taps])
        rank = config.rank or config.features
        inner = rng.standard_normal((config.taps, config.features, rank))
        outer = rng.standard_normal((config.taps, rank, config.features))
        inner, outer = inner / math.sqrt(config.taps * config.features), outer / math.sqrt(rank)
        return cls(grid, places[chosen], inner.astype(np.float32), outer.astype(np.float32))

    @functools.cached_property
    def kernel(self) -> Float[np.ndarray, "T D D"]:
        """K, of each tap."""
        return self.inner @ self.outer

    @property
    def length(self) -> int:
        """N, tokens."""
        return math.prod(self.grid)

    @property
    def taps(self) -> Int[np.ndarray, " T"]:
        """Places of the taps in a table of all offsets."""
        return (self.offsets % self.grid) @ np.array([self.grid[1], 1])

    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Returns the outputs."""
        images = x.reshape(x.shape[0], *self.grid, x.shape[2])
        outputs = jnp.zeros_like(images)
        for offset, matrix in zip(self.offsets.tolist(), self.kernel, strict=True):
            moved = jnp.roll(images, (-offset[0], -offset[1]), axis=(1, 2))
            outputs = outputs + moved @ jnp.asarray(matrix)
        return outputs.reshape(x.shape)

    def draw(self, key: Array, count: int) -> tuple[Float[Array, "B N D"], Float[Array, "B N D"]]:
        """Returns inputs and outputs."""
        x = jax.random.normal(key, (count, self.length, self.kernel.shape[1]))
        return x, self(x)


class OffsetAttention(nnx.Module):
    """Self-attention whose logits have a learned number for each head and offset.

    The package's `RelativeBias` is the query's content times a vector of the offset. It can hold
    such numbers, in the query's bias; here they are parameters, so that what is learned is the
    shape itself, on a torus as well. Without `content` nothing else decides the weights, as in the
    attention of arXiv:1911.03584 that expresses a convolution.

    Args:
        grid: rows and columns of tokens on a torus.
        features: of a token, in and out.
        heads: H.
        head_dim: features of a head; with as many as a token's a head may hold any tap's matrix.
        content: adds query times key.
        rngs: source of the initial values.
    """

    def __init__(
        self,
        grid: Grid,
        features: int,
        heads: int,
        head_dim: int,
        *,
        content: bool,
        rngs: nnx.Rngs,
    ):
        self.grid = grid
        shape = (heads, math.prod(grid))
        self.bias = nnx.Param(0.02 * jax.random.normal(rngs.params(), shape))
        linear = functools.partial(nnx.LinearGeneral, kernel_init=_xavier_uniform, rngs=rngs)
        self.query_key = linear(features, (2, heads, head_dim)) if content else None
        self.value = linear(features, (heads, head_dim))
        self.out = linear((heads, head_dim), features, axis=(-2, -1))

    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        value = self.value(x)
        if self.query_key is None:
            return self.out(jnp.einsum("hnm,bmhk->bnhk", softmax(self._bias()), value))
        return self.out(jnp.einsum("bhnm,bmhk->bnhk", self._weights(x), value))

    def by_offset(self, x: Float[Array, "B N D"]) -> Float[Array, "H R"]:
        """Returns the attention of each head to each offset, mean over examples and queries.

        Without `content` it is softmax(bias), whatever x is.
        """
        if self.query_key is None:
            return softmax(self.bias[...])
        # [q, r] -> the key that lies r from q.
        keys = np.argsort(offset_table(self.grid), axis=1)
        return jnp.take_along_axis(self._weights(x).mean(0), jnp.asarray(keys)[None], 2).mean(1)

    def _bias(self) -> Float[Array, "H N N"]:
        return self.bias[...][:, offset_table(self.grid)]

    def _weights(self, x: Float[Array, "B N D"]) -> Float[Array, "B H N N"]:
        assert self.query_key is not None
        query, key = jnp.moveaxis(self.query_key(x), 2, 0)
        bias = self._bias()
        return attention_weights(query, key, jnp.broadcast_to(bias[None], (len(x), *bias.shape)))


def offset_table(grid: Grid) -> Int[np.ndarray, "N N"]:
    """Returns for each query and key the place of their offset, key minus query, on the torus.

    >>> offset_table((1, 3))
    array([[0, 1, 2],
           [2, 0, 1],
           [1, 2, 0]])
    """
    places = np.indices(grid).reshape(2, -1).T
    offset = (places[None, :] - places[:, None]) % np.array(grid)
    return offset @ np.array([grid[1], 1])


def recovery(weights: Float[np.ndarray, "H R"], taps: Int[np.ndarray, " T"]) -> dict[str, float]:
    """Returns how well attention by offset has the shape of a kernel.

    Args:
        weights: of each head, summing to 1 over all offsets.
        taps: the kernel's places among the offsets.

    Returns:
        attention_on_taps, the share of all attention that lies on the kernel's taps; taps_found,
        the share of the T offsets with the most attention that are taps; heads_on_one_tap, the
        share of heads that give more than half of their attention to one tap.
    """
    most = np.argsort(-weights.mean(0), kind="stable")[: len(taps)]
    return {
        "attention_on_taps": float(weights[:, taps].sum(1).mean()),
        "taps_found": float(np.isin(most, taps).mean()),
        "heads_on_one_tap": float((weights[:, taps].max(1) > 0.5).mean()),
    }
