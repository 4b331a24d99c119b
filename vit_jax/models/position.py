"""Position embeddings: tables added to the tokens, rotary embeddings, relative attention biases."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

_init = nnx.initializers.normal(stddev=0.02)


@dataclasses.dataclass(frozen=True)
class TableSpec:
    """Kind and sizes of a table of position embeddings that is added to the tokens."""

    kind: str  # "learned_1d", "learned_2d", "sincos_2d" or "sincos_2d_mae".
    grid: tuple[int, int]  # Rows and columns of patches.
    width: int  # D.
    class_token: bool
    num_registers: int  # They have no position.
    stored_grid: tuple[int, int] | None = None  # Of the parameter; None: `grid`.


def build_table(table: TableSpec, *, rngs: nnx.Rngs) -> "PositionTable":
    """Makes the module that `table` describes."""
    if table.kind == "learned_1d":
        return Learned1d(table, rngs=rngs)
    return Learned2d(table, rngs=rngs) if table.kind == "learned_2d" else Sincos2d(table)


class PositionTable(nnx.Module):
    """A table of vectors that are added to the tokens; zeros for tokens without a position."""

    def __init__(self, table: TableSpec):
        self.spec = table

    def rows(self) -> Float[Array, "1 R D"]:
        """Returns the vectors of the tokens that have a position, patches last."""
        raise NotImplementedError

    def __call__(self, tokens: int) -> Float[Array, "1 N D"]:
        """Returns the table for class token, registers, patches and padding up to `tokens`."""
        rows, patches = self.rows(), self.spec.grid[0] * self.spec.grid[1]
        without_position = self.spec.class_token + self.spec.num_registers
        without_position -= rows.shape[1] - patches
        zeros = jnp.zeros((1, without_position, rows.shape[2]), rows.dtype)
        table = jnp.concatenate([rows[:, :-patches], zeros, rows[:, -patches:]], axis=1)
        return jnp.pad(table, ((0, 0), (0, tokens - table.shape[1]), (0, 0)))


class Learned1d(PositionTable):
    """One learned vector per token, class token included. Source: arXiv:2010.11929, eq. 1.

    A table that is stored for another grid is interpolated linearly between patch centres, with
    antialiasing (arXiv:2212.08013, section 3.4).
    """

    def __init__(self, table: TableSpec, *, rngs: nnx.Rngs):
        super().__init__(table)
        rows, columns = table.stored_grid or table.grid
        tokens = table.class_token + rows * columns
        self.table = nnx.Param(_init(rngs.params(), (1, tokens, table.width), jnp.float32))

    def rows(self) -> Float[Array, "1 R D"]:
        table, stored, grid = self.table[...], self.spec.stored_grid, self.spec.grid
        if stored in (None, grid):
            return table
        resized = jax.image.resize(self.stored_patches(), (*grid, table.shape[-1]), "linear")
        flat = resized.reshape(1, -1, table.shape[-1])
        return jnp.concatenate([table[:, : self.spec.class_token], flat], axis=1)

    def stored_patches(self) -> Float[Array, "G H D"]:
        """Returns the vectors of the patches of the stored grid."""
        stored = self.spec.stored_grid or self.spec.grid
        return self.table[...][0, self.spec.class_token :].reshape(*stored, -1)

    def of_grids(self, grid: Int[Array, "B 2"], length: int) -> Float[Array, "B N D"]:
        """Returns the table of each image: class token, registers, `length` patches and padding."""
        patches = interpolated_positions(self.stored_patches(), grid, length)
        own = self.table[...][:, : self.spec.class_token]
        prefix = jnp.pad(own, ((0, 0), (0, self.spec.num_registers), (0, 0)))
        prefix = jnp.broadcast_to(prefix, (len(patches), *prefix.shape[1:]))
        return jnp.concatenate([prefix, patches], axis=1)


def interpolated_positions(
    table: Float[Array, "G H D"], grid: Int[Array, "B 2"], length: int
) -> Float[Array, "B N D"]:
    """Returns position embeddings of each image, for a table that is resized to its grid.

    Bilinear with antialiasing, as `jax.image.resize(table, grid, "linear")`, which cannot do it for
    a traced grid. Padding up to `length` gets the embeddings of places beyond the last row.
    """
    grid = jnp.maximum(grid, 1)
    place = jnp.arange(length)
    row, column = place[None] // grid[:, 1:], place[None] % grid[:, 1:]
    by_row = _resize_weights(row, grid[:, :1], table.shape[0])
    by_column = _resize_weights(column, grid[:, 1:], table.shape[1])
    weights = by_row[..., :, None] * by_column[..., None, :]
    flat = table.reshape(-1, table.shape[-1])
    return jnp.matmul(weights.reshape(*row.shape, -1), flat, precision="highest")


def _resize_weights(
    index: Int[Array, "B N"], size: Int[Array, "B 1"], stored: int
) -> Float[Array, "B N S"]:
    """Returns the weights of the stored places along one axis for some places of the new axis."""
    step = stored / size.astype(jnp.float32)
    centre = (index.astype(jnp.float32) + 0.5) * step - 0.5
    distance = jnp.abs(centre[..., None] - jnp.arange(stored, dtype=jnp.float32)[None, None])
    weights = jnp.maximum(0.0, 1 - distance / jnp.maximum(step, 1.0)[..., None])
    return weights / jnp.maximum(weights.sum(-1, keepdims=True), 1e-6)


class Learned2d(PositionTable):
    """Learned row and column vectors of D/2 each, concatenated. Source: arXiv:2010.11929, D.4.

    The class token gets no position embedding, because it is not on the grid.
    """

    def __init__(self, table: TableSpec, *, rngs: nnx.Rngs):
        super().__init__(table)
        half = table.width // 2
        self.by_row = nnx.Param(_init(rngs.params(), (table.grid[0], half), jnp.float32))
        self.by_column = nnx.Param(_init(rngs.params(), (table.grid[1], half), jnp.float32))

    def rows(self) -> Float[Array, "1 R D"]:
        y, x = self.by_row[...], self.by_column[...]
        shape = (y.shape[0], x.shape[0], y.shape[1])
        table = jnp.concatenate(
            [jnp.broadcast_to(x[None], shape), jnp.broadcast_to(y[:, None], shape)], axis=-1
        )
        return table.reshape(1, shape[0] * shape[1], 2 * shape[2])


class Sincos2d(PositionTable):
    """The fixed table of `sincos_2d` or `sincos_2d_mae`, which has no parameters."""

    def rows(self) -> Float[Array, "1 R D"]:
        return jnp.asarray(self.values())

    def values(self) -> Float[np.ndarray, "1 R D"]:
        """Returns the rows on the host."""
        make = sincos_2d_mae if self.spec.kind == "sincos_2d_mae" else sincos_2d
        return make(self.spec.grid, self.spec.width)


def sincos_2d(grid: tuple[int, int], width: int) -> Float[np.ndarray, "1 N D"]:
    """Returns the fixed table [sin x, cos x, sin y, cos y], D/4 frequencies each.

    Frequency i is 10000^(-i / (D/4 - 1)), so that the last is 1 / 10000.

    Source: arXiv:2205.01580, as in its code, big_vision.
    """
    return _sincos(grid, 10_000.0 ** -np.linspace(0, 1, width // 4))


def sincos_2d_mae(grid: tuple[int, int], width: int) -> Float[np.ndarray, "1 N D"]:
    """Returns the table of `sincos_2d` with the frequencies 10000^(-i / (D/4)).

    At width 768 its entries differ from those of `sincos_2d` by up to 0.025. Source: the code of
    MAE (arXiv:2111.06377) and of MoCo v3 (arXiv:2104.02057).
    """
    return _sincos(grid, 10_000.0 ** -np.linspace(0, 1, width // 4, endpoint=False))


def _sincos(
    grid: tuple[int, int], frequency: Float[np.ndarray, " F"]
) -> Float[np.ndarray, "1 N D"]:
    y, x = np.mgrid[: grid[0], : grid[1]].reshape(2, -1).astype(np.float64)
    angle_x, angle_y = np.outer(x, frequency), np.outer(y, frequency)
    parts = [np.sin(angle_x), np.cos(angle_x), np.sin(angle_y), np.cos(angle_y)]
    return np.concatenate(parts, axis=1, dtype=np.float32)[None]


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
