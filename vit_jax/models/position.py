"""Positions inside attention: rotary embeddings and relative biases."""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

_init = nnx.initializers.normal(stddev=0.02)


def rope_2d(
    grid: tuple[int, int], head_dim: int, num_prefix: int
) -> tuple[Float[np.ndarray, "N H"], Float[np.ndarray, "N H"]]:
    """Returns the cosines and sines, f32, that rotate queries and keys, for every token.

    Patch centres lie in [-1, 1] along each axis. A quarter of a head's features is rotated by the
    row and a quarter by the column; feature k is paired with feature k + K/2. The `num_prefix`
    tokens before the patches (class token, registers) are not rotated. Period i is
    100^(i / (K/4)), so the head dimension K is a multiple of 4.

    Source: axial RoPE of arXiv:2403.13298, with the coordinates and periods of DINOv3
    (arXiv:2508.10104).
    """
    centres = [(np.arange(n) + 0.5) / n * 2 - 1 for n in grid]
    y, x = np.meshgrid(*centres, indexing="ij")
    periods = 100.0 ** np.linspace(0, 1, head_dim // 4, endpoint=False)
    angles = [np.outer(axis.ravel(), 2 * np.pi / periods) for axis in (y, x)]
    angle = np.tile(np.concatenate(angles, axis=1), 2)
    angle = np.concatenate([np.zeros((num_prefix, head_dim)), angle])
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rotate(
    x: Float[Array, "B N H K"], rope: tuple[Float[Array, "*B N K"], Float[Array, "*B N K"]]
) -> Float[Array, "B N H K"]:
    """Rotates each feature pair (k, k + K/2) of queries or keys by its token's angle."""
    cos, sin = (jnp.asarray(a).reshape(-1, x.shape[1], 1, x.shape[3]) for a in rope)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    swapped = jnp.concatenate([-second, first], axis=-1)
    return (x.astype(jnp.float32) * cos + swapped * sin).astype(x.dtype)


class RelativeBias(nnx.Module):
    """Relative position bias: logits that depend on the offset between query and key.

    Every offset q - k has one learned vector per head. Its dot product with the query, divided by
    sqrt(K), is added to the attention logits.

    Source: arXiv:2010.11929, D.4 (1-dimensional relative attention).
    """

    def __init__(self, tokens: int, num_heads: int, head_dim: int, *, rngs: nnx.Rngs):
        shape = (2 * tokens - 1, num_heads, head_dim)
        self.table = nnx.Param(_init(rngs.params(), shape, jnp.float32))

    def __call__(self, query: Float[Array, "B N H K"]) -> Float[Array, "B H N N"]:
        """Returns f32 logits: at [b, h, q, k] query[b, q, h] . table[q-k+N-1, h] / sqrt(K)."""
        tokens, head_dim = query.shape[1], query.shape[3]
        by_offset = jnp.einsum(
            "bnhk,rhk->bhnr",
            query,
            self.table[...].astype(query.dtype),
            preferred_element_type=jnp.float32,
        )
        # In reversed order, row q needs columns N-1-q to 2N-2-q. If rows are padded to 2N and
        # flattened, these start at q * (2N-1) + N-1, so a reshape to rows of 2N-1 aligns them.
        padded = jnp.pad(by_offset[..., ::-1], ((0, 0), (0, 0), (0, 0), (0, 1)))
        flat = padded.reshape(*padded.shape[:2], -1)[..., tokens - 1 : -1]
        bias = flat.reshape(*padded.shape[:2], tokens, 2 * tokens - 1)[..., :tokens]
        return bias * head_dim**-0.5
