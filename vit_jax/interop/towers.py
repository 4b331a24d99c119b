"""Shared code of the formats of pairs of towers: names, sizes and layouts."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vit_jax.errors import WeightsError
from vit_jax.interop.name_table import Row, Shape, reshape
from vit_jax.models.blocks import EncoderShape
from vit_jax.models.text import TEXT_SIZES, TextConfig, text_shape
from vit_jax.models.two_towers import TwoTowers, TwoTowersConfig

if TYPE_CHECKING:
    from vit_jax.interop.load import Loaded


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A single number, which the file may store with an axis."""

    shape: Shape  # In the file: () or (1,).

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]:
        return [reshape(theirs[0], shapes[0])]

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]:
        return [ours[0].reshape(self.shape)]


@dataclasses.dataclass(frozen=True)
class Merged:
    """A matrix [inputs, outputs] in the file; [*inputs, *outputs] in our model."""

    input_axes: int = 1

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]:
        if theirs[0].size != math.prod(shapes[0]):
            raise ValueError(f"shape {theirs[0].shape} in the file, {shapes[0]} in the model")
        return [theirs[0].reshape(shapes[0])]

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]:
        inputs = math.prod(ours[0].shape[: self.input_axes])
        return [ours[0].reshape(inputs, -1)]


@dataclasses.dataclass(frozen=True)
class Table:
    """A position table [N, D] in the file; [1, N, D] in our model."""

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]:
        return [theirs[0][None]]

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]:
        return [ours[0][0]]


@dataclasses.dataclass(frozen=True)
class Batched:
    """A table [1, N, D] in the file; [N, D] in our model."""

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]:
        return [reshape(theirs[0], shapes[0])]

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]:
        return [ours[0][None]]


@dataclasses.dataclass(frozen=True)
class Summed:
    """Several tensors in the file whose sum is our parameter. Only for reading."""

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]:
        return [reshape(sum(theirs[1:], theirs[0]), shapes[0])]

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]:
        raise NotImplementedError


def prefixed(rows: Sequence[Row], ours: str, theirs: str) -> list[Row]:
    """Returns rows whose names, ours and those of the file, start with a prefix."""
    return [
        dataclasses.replace(
            row,
            ours=tuple(ours + name for name in row.ours),
            theirs=tuple(theirs + name for name in row.theirs),
        )
        for row in rows
    ]


def text_options(width: int, depth: int, mlp_dim: int, num_heads: int) -> dict[str, Any]:
    """Returns the text section of these sizes: a named size, or the nearest one with overrides.

    >>> text_options(512, 12, 2048, 8)
    {'name': 'Text-M'}
    """
    sizes = (width, depth, mlp_dim, num_heads)
    for name, known in TEXT_SIZES.items():
        if known == sizes:
            return {"name": name}
    nearest = min(TEXT_SIZES, key=lambda name: abs(math.log(TEXT_SIZES[name][0] / width)))
    keys = ("width", "depth", "mlp_dim", "num_heads")
    return {"name": nearest, **dict(zip(keys, sizes, strict=True))}


def pair_options(method: str, image: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Returns the section of a "CLIP", "SigLIP" or "LiT" pair with the image tower of `image`."""
    rest = {key: value for key, value in image.items() if key != "name"}
    return {"name": f"{method}-{image['name']}", "image": rest, **options}


def pair_of(loaded: "Loaded") -> tuple[TwoTowersConfig, TwoTowers, EncoderShape]:
    """Returns options, model and text sizes of a pair."""
    assert isinstance(loaded.options, TwoTowersConfig)
    assert isinstance(loaded.model, TwoTowers)
    return loaded.options, loaded.model, text_shape(loaded.options.text)


def image_of(loaded: "Loaded") -> "Loaded":
    """Returns the image tower of a pair, which must be a ViT, as a model of its own."""
    options, model, _ = pair_of(loaded)
    if not hasattr(options.image, "pooling") or not options.image.name.startswith(("ViT", "R")):
        raise WeightsError(
            f"a pair with the image tower {options.image.name}",
            "a ViT or a hybrid",
            "use format orbax, which holds every model",
        )
    return dataclasses.replace(loaded, options=options.image, model=model.image, num_classes=0)


def check_pair(options: TwoTowersConfig, format: str, allowed: Mapping[str, tuple]) -> None:
    """Raises WeightsError unless all options of a pair have values that a format can represent.

    `allowed` has these values by the names of options; "text.OPTION" is one of the text tower.
    """
    for name, values in allowed.items():
        part: TwoTowersConfig | TextConfig = options
        part = options.text if name.startswith("text.") else options
        value = getattr(part, name.removeprefix("text."))
        if value not in values:
            raise WeightsError(
                f"model.{name} = {value!r} in format {format}",
                " or ".join(map(repr, values)),
                "use format orbax, which holds every model",
            )
