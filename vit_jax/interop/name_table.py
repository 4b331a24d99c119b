"""Name tables map the tensors of a file to our parameters, in both directions.

A name table is a list of rows. A row of the encoder covers all layers: the tensor names contain
`{layer}`, and our parameters are stacked along a leading layer axis.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flax import nnx

from vit_jax.errors import WeightsError
from vit_jax.interop.tensors import TensorFile, empty_aligned
from vit_jax.named_tree import named_leaves

Shape = tuple[int, ...]
_TRANSPOSED_ROWS = 32  # Copied at a time when a matrix is transposed.


@runtime_checkable
class Layout(Protocol):
    """How the tensors of a row are laid out in the file and in our model.

    `read` takes the tensors of the file and the shapes of our parameters and returns our
    parameters. `write` is its inverse.
    """

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]: ...

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]: ...


@dataclasses.dataclass(frozen=True)
class Same:
    """One tensor, the same in the file and in our model except for axes of size 1."""

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]:
        return [reshape(theirs[0], shapes[0])]

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]:
        return ours


@dataclasses.dataclass(frozen=True)
class Flat:
    """A bias: one vector in the file, the axes (heads, head dimension) in our model."""

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]:
        return [reshape(theirs[0], shapes[0], flat=True)]

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]:
        return [ours[0].reshape(-1)]


@dataclasses.dataclass(frozen=True)
class TorchLinear:
    """[outputs, inputs] in the file; [*inputs, *outputs] in our model, each one or several axes."""

    input_axes: int = 1

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]:
        inputs = math.prod(shapes[0][: self.input_axes])
        matrix = reshape(theirs[0], (math.prod(shapes[0]) // inputs, inputs))
        return [transpose(matrix).reshape(shapes[0])]

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]:
        inputs = math.prod(ours[0].shape[: self.input_axes])
        return [ours[0].reshape(inputs, -1).T]


@dataclasses.dataclass(frozen=True)
class TorchConv:
    """[outputs, inputs, height, width] in the file; [height, width, inputs, outputs] in ours."""

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]:
        height, width, inputs, outputs = shapes[0]
        return [reshape(theirs[0], (outputs, inputs, height, width)).transpose(2, 3, 1, 0)]

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]:
        return [ours[0].transpose(3, 2, 0, 1)]


@dataclasses.dataclass(frozen=True)
class ConvWithoutBias:
    """A PyTorch convolution without a bias; kernel and a bias of zeros in our model."""

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]:
        return [*TorchConv().read(theirs, shapes[:1]), np.zeros(shapes[1], np.float32)]

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]:
        assert not ours[1].any(), "the bias has been moved to the position table"
        return TorchConv().write(ours[:1])


@dataclasses.dataclass(frozen=True)
class Stacked:
    """Several tensors in the file, stacked along an axis of our parameter."""

    axis: int  # Of our parameter.
    each: Layout  # Layout of one of the tensors.

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]:
        shape = tuple(n for i, n in enumerate(shapes[0]) if i != self.axis)
        parts = [self.each.read([part], [shape])[0] for part in theirs]
        return [np.stack(parts, self.axis)]

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]:
        parts = np.moveaxis(ours[0], self.axis, 0)
        return [self.each.write([part])[0] for part in parts]


@dataclasses.dataclass(frozen=True)
class Split:
    """One tensor in the file, split into equal parts along its first axis for our parameters."""

    each: Layout  # Layout of a part.

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]:
        if theirs[0].shape[0] % len(shapes):
            raise ValueError(f"shape {theirs[0].shape} in the file, {shapes} in the model")
        parts = np.split(theirs[0], len(shapes))
        pairs = zip(parts, shapes, strict=True)
        return [self.each.read([part], [shape])[0] for part, shape in pairs]

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]:
        return [np.concatenate([self.each.write([part])[0] for part in ours])]


@dataclasses.dataclass(frozen=True)
class QueryValueBias:
    """Query and value biases in the file; query, key (zero) and value biases in our model."""

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]:
        query, value = (reshape(part, shapes[0][1:], flat=True) for part in theirs)
        return [np.stack([query, np.zeros_like(query), value])]

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]:
        return [ours[0][0].reshape(-1), ours[0][2].reshape(-1)]


def reshape(array: np.ndarray, shape: Shape, *, flat: bool = False) -> np.ndarray:
    """Adds or removes axes of size 1. With `flat`, splits a vector into any axes.

    Raises:
        ValueError: the shapes do not match.
    """
    kept = [n for n in array.shape if n != 1]
    wanted = [n for n in shape if n != 1]
    fits = array.size == math.prod(shape) and array.ndim == 1 if flat else kept == wanted
    if not fits:
        raise ValueError(f"shape {tuple(array.shape)} in the file, {tuple(shape)} in the model")
    return array.reshape(shape)


def transpose(matrix: np.ndarray) -> np.ndarray:
    """Returns a contiguous transpose. Copies a few rows at a time, so that they fit into cache."""
    transposed = np.empty(matrix.shape[::-1], matrix.dtype)
    for start in range(0, len(matrix), _TRANSPOSED_ROWS):
        rows = slice(start, start + _TRANSPOSED_ROWS)
        transposed[:, rows] = matrix[rows].T
    return transposed


@dataclasses.dataclass(frozen=True)
class Row:
    """Tensors of a file and our corresponding parameters."""

    ours: tuple[str, ...]  # Stacked over layers if `theirs` contains `{layer}`.
    theirs: tuple[str, ...]
    layout: Layout
    first_layer: int = 0  # Its number in the file.

    @property
    def layered(self) -> bool:
        return "{layer" in self.theirs[0]

    @property
    def label(self) -> str:
        """Names of the tensors, for messages; `*` stands for the number of the layer."""
        return ", ".join(re.sub(r"\{layer[^}]*\}", "*", name) for name in self.theirs)

    def names(self, layer: int = 0) -> list[str]:
        """Returns the tensor names of a layer, counted from 0."""
        return [name.format(layer=layer + self.first_layer) for name in self.theirs]


def row(
    ours: str | Sequence[str], theirs: str | Sequence[str], layout: Layout, first_layer: int = 0
) -> Row:
    """Returns a row; a single name needs no tuple."""
    return Row(_as_tuple(ours), _as_tuple(theirs), layout, first_layer)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the regular expressions matches the whole name."""
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _as_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def torch_linear_rows(ours: str, theirs: str, input_axes: int = 1) -> list[Row]:
    """Returns the rows of a PyTorch linear layer: kernel and bias."""
    return [
        row(f"{ours}/kernel", f"{theirs}.weight", TorchLinear(input_axes)),
        row(f"{ours}/bias", f"{theirs}.bias", Flat()),
    ]


def torch_norm_rows(ours: str, theirs: str) -> list[Row]:
    """Returns the rows of a PyTorch LayerNorm: scale and bias."""
    return [
        row(f"{ours}/scale", f"{theirs}.weight", Same()),
        row(f"{ours}/bias", f"{theirs}.bias", Same()),
    ]


def torch_patch_rows(theirs: str, *, bias: bool = True) -> list[Row]:
    """Returns the rows of the patch embedding, a convolution in PyTorch: kernel and bias."""
    if not bias:
        names = ("patch_embedding/kernel", "patch_embedding/bias")
        return [row(names, f"{theirs}.weight", ConvWithoutBias())]
    return [
        row("patch_embedding/kernel", f"{theirs}.weight", TorchConv()),
        row("patch_embedding/bias", f"{theirs}.bias", Same()),
    ]


def read_row(row: Row, file: TensorFile, shapes: list[Shape]) -> list[np.ndarray]:
    """Returns our parameters of a row, float32.

    The file must have all tensors of the row. `shapes` are those of our parameters in the file's
    original model, including the layer axis.
    """
    if not row.layered:
        return _read_tensors(row, row.names(), file, shapes)
    found = [empty_aligned(shape) for shape in shapes]
    for layer in range(shapes[0][0]):
        parts = _read_tensors(row, row.names(layer), file, [shape[1:] for shape in shapes])
        for stack, part in zip(found, parts, strict=True):
            stack[layer] = part
    return found


def _read_tensors(
    row: Row, names: list[str], file: TensorFile, shapes: list[Shape]
) -> list[np.ndarray]:
    theirs = [file.read(name) for name in names]
    try:
        return row.layout.read(theirs, shapes)
    except ValueError as error:
        raise WeightsError(
            f"{' and '.join(names)} in {file.path} do not fit {' and '.join(row.ours)}: {error}",
            "matching shapes",
            "give the model's options by name, or another file",
        ) from None


def parameters(model: nnx.Module) -> dict[str, Any]:
    """Returns the parameters of a model by name."""
    return named_leaves(nnx.to_pure_dict(nnx.state(model)))


def write_rows(rows: Sequence[Row], params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the tensors, float32, of all rows whose parameters the model has.

    Raises WeightsError if no row contains one of the parameters.
    """
    tensors: dict[str, np.ndarray] = {}
    left = set(params)
    for row in rows:
        if not set(row.ours) <= left:
            continue
        left -= set(row.ours)
        ours = [np.asarray(params[name], np.float32) for name in row.ours]
        for layer in range(ours[0].shape[0] if row.layered else 1):
            parts = row.layout.write([a[layer] for a in ours] if row.layered else ours)
            for name, part in zip(row.names(layer), parts, strict=True):
                tensors[name] = np.asarray(part, order="C")
    if left:
        raise WeightsError(
            f"parameter '{min(left)}', which has no name in that format",
            "a model that the format can represent",
            "use format orbax, which holds every model",
        )
    return tensors
