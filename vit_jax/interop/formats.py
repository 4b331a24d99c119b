"""The interface of a weight format, and the list of formats.

A format is a module of this package that defines `FORMAT`. A model family lists the modules of its
formats; `load`, `save` and `convert` use that list. To add a format, write the module and add its
name to the family's `formats`.
"""

import dataclasses
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vit_jax.interop.name_table import Row
from vit_jax.interop.normalization import Normalization
from vit_jax.interop.tensors import TensorFile
from vit_jax.models.family import EvalView
from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import families, family_of, model_options, model_shape

if TYPE_CHECKING:
    from vit_jax.interop.load import Loaded


@dataclasses.dataclass(frozen=True)
class WeightsInfo:
    """Description of a weight file: its architecture and how to read it.

    Attributes:
        format: name and container, for the report.
        options: the model section of a config that builds this architecture.
        num_classes: classes of the head; 0: there is no head.
        image_size: (height, width) of the images that the position embedding was trained on; None:
            the file does not determine it.
        rows: name table, see `name_table`.
        class_names: None if the file has none.
        view: how images were cropped and resized when the weights were evaluated.
        normalization: None if it is not stored in the file.
        assumed: what is assumed because the files do not say it, by the caller's argument that
            would say it.
        unused: patterns of names of tensors that such files contain but no model needs.
        task_only: patterns of names of parameters that only the training task used, e.g. mask
            tokens.
    """

    format: str
    options: Mapping[str, Any]
    num_classes: int
    image_size: tuple[int, int] | None
    rows: tuple[Row, ...]
    class_names: tuple[str, ...] | None = None
    view: EvalView = EvalView()
    normalization: Normalization | None = None
    assumed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unused: tuple[str, ...] = ()
    task_only: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Tensors:
    """A model in the layout of another project, ready to be written."""

    tensors: Mapping[str, np.ndarray]  # float32.
    configs: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Format:
    """One weight format of another project.

    Attributes:
        name: value of `convert --format`. Formats of different families may share a name.
        reads: names of the projects whose files it recognises, for messages.
        container: "npz": one file; "safetensors": a folder with one such file and JSON files.
        recognise: file -> the file with its tensors renamed to the names in the name table; None:
            the file has another format.
        describe: (recognised file, the caller's options) -> description. Raises WeightsError if
            neither the file nor the options contain a size.
        to_tensors: the inverse. Raises WeightsError if the format cannot represent the model.
    """

    name: str
    reads: tuple[str, ...]
    container: Literal["npz", "safetensors"]
    recognise: Callable[[TensorFile], TensorFile | None]
    describe: Callable[[TensorFile, Mapping[str, Any]], WeightsInfo]
    to_tensors: Callable[["Loaded"], Tensors]


def formats_of(options: ModelConfig) -> list[Format]:
    """Returns the formats of a model's family, in the family's order."""
    return [_import_format(name) for name in family_of(options.name).formats]


def all_formats() -> list[Format]:
    """Returns the formats of all families."""
    return [_import_format(name) for family in families() for name in family.formats]


def _import_format(module: str) -> Format:
    return importlib.import_module(f"vit_jax.interop.{module}").FORMAT


def options_of_sizes(
    models: Sequence[str], patch_size: int, sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Returns the model options of some sizes: a named model, or the nearest one with overrides.

    `models` are names without their patch size, e.g. "ViT-B". The nearest one is that of the
    nearest `width`.
    """
    names = [f"{model}/{patch_size}" for model in models]
    shapes = {name: model_shape(model_options(name)) for name in names}
    for name, shape in shapes.items():
        if all(getattr(shape, key) == size for key, size in sizes.items()):
            return {"name": name}
    nearest = min(names, key=lambda name: abs(math.log(shapes[name].width / sizes["width"])))
    return {"name": nearest, **sizes}


def depth_of(names: Mapping[str, Any], pattern: str, first: int = 0) -> int:
    """Returns the number of consecutive layers in a file.

    The pattern names a tensor of each layer and contains `{layer}`, which starts at `first`.
    """
    depth = 0
    while pattern.format(layer=depth + first) in names:
        depth += 1
    return depth
