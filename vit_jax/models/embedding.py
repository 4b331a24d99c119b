"""Images as tokens: patches, their linear projection, and the tables of positions added to them.

Source: arXiv:2010.11929, equation 1.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from vit_jax.models.activation_sharding import constrain

_init = nnx.initializers.normal(stddev=0.02)


class PatchShape:
    """Base of the sizes of model families that cut images into patches."""

    patch_size: int  # In pixels.

    @property
    def stride(self) -> int:
        """Pixels between neighbouring patches."""
        return self.patch_size

    @property
    def image_multiple(self) -> int:
        """Image sides must be divisible by this."""
        return self.stride


class PatchEmbedding(nnx.Module):
    """Cuts an image or a feature map of C channels into patches and projects each of them linearly.

    The kernel [P, P, C, D] has the shape of a convolution's kernel, but is applied as one matmul.
    If it is stored for another patch size, `stored_patch_size`, it is resized first.

    Source: arXiv:2010.11929, equation 1; stored kernels: arXiv:2212.08013, section 3.4.
    """

    def __init__(
        self,
        patch_size: int,
        channels: int,
        width: int,
        *,
        stored_patch_size: int | None = None,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        stored = stored_patch_size or patch_size
        shape = (stored, stored, channels, width)
        self.kernel = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), shape, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width))
        self.patch_size = patch_size
        self.dtype = dtype

    def __call__(self, images: Float[Array, "B H W C"]) -> Float[Array, "B N D"]:
        """Returns the embedded patches in raster order."""
        return self.of_patches(cut_patches(images, self.patch_size))

    def of_patches(self, patches: Float[Array, "B N F"]) -> Float[Array, "B N D"]:
        """Returns the embeddings of patches whose pixels are flattened: rows, columns, colours."""
        kernel = self._kernel().reshape(patches.shape[-1], -1)
        embedded = constrain(patches.astype(self.dtype) @ kernel.astype(self.dtype), "batch")
        return embedded + self.bias[...].astype(self.dtype)[None, None]

    def _kernel(self) -> Float[Array, "P P C D"]:
        """Returns the kernel for the patch size of this model."""
        kernel = self.kernel[...]
        if kernel.shape[0] == self.patch_size:
            return kernel
        resize = jnp.asarray(kernel_resize_matrix(kernel.shape[0], self.patch_size), jnp.float32)
        return jnp.einsum("pi,qj,ijcd->pqcd", resize, resize, kernel, precision="highest")


@functools.cache
def kernel_resize_matrix(old: int, new: int) -> Float[np.ndarray, "n o"]:
    """Returns the matrix M, f64, that resizes a patch kernel by pseudo-inverse (PI-resize).

    The new kernel is M w M^T. Applied to bilinearly resized patches, it gives the same embedding as
    the old kernel w applied to the original patches: exactly if `new` is larger, in the
    least-squares sense if it is smaller. M is the pseudo-inverse of R^T, where R resizes one axis.

    Source: arXiv:2212.08013 (FlexiViT), section 3.4.

    >>> kernel_resize_matrix(1, 2)  # An upscaled pixel fills both places, so each has half.
    array([[0.5],
           [0.5]])
    """
    # Weights of bilinear resizing along one axis, without antialiasing, and clamped at the ends.
    places = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    resize = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(old)))
    return np.linalg.pinv(resize.T)


def cut_patches(images: Float[Array, "B H W C"], size: int) -> Float[Array, "B N F"]:
    """Returns patches in raster order, as their pixels; image sides are multiples of `size`."""
    batch, height, width, channels = images.shape
    patches = images.reshape(batch, height // size, size, width // size, size, channels)
    return patches.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, size * size * channels)


def take_patches(
    patches: Float[Array, "B N F"], places: Int[Array, "B V"]
) -> Float[Array, "B V F"]:
    """Returns some patches of each image.

    If an image's places differ, the gradient of each patch is a copy and not a sum, so that its
    value does not depend on the order in which a device adds.
    """
    return constrain(jnp.take_along_axis(patches, places[..., None], axis=1), "batch")


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
