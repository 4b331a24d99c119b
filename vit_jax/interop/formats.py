"""What a weight format has to say, and the formats that are known.

A format is one module of this package that defines `FORMAT`. A model family lists the modules of
its formats; `load`, `save` and `convert` find them from there. To add a format, write the module
and add its name to the family's `formats`.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vit_jax.interop.name_table import Row
from vit_jax.interop.normalization import Normalization
from vit_jax.interop.tensors import TensorFile
from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import resolve
from vit_jax.models.resnet import ResNetShape

if TYPE_CHECKING:
    from vit_jax.interop.load import Loaded

# Modules of the formats of each family. (Until a family lists them itself.)
_MODULES = {"ViT": ("vision_transformer", "transformers", "timm"), "ResNet": ("big_transfer",)}


@dataclasses.dataclass(frozen=True)
class EvalView:
    """Which part of an image a model sees in evaluation.

    Attributes:
        crop: "central" or "resize", see `data.eval_crop`.
        central_fraction: side of a central crop as a fraction of the image's short side.
        antialias: whether downscaling averages over all pixels.
    """

    crop: str = "central"
    central_fraction: float = 0.875
    antialias: bool = True


@dataclasses.dataclass(frozen=True)
class Published:
    """What a format reads from a file of weights.

    Attributes:
        format: name and container, for the report.
        options: the model section of a config that builds this architecture.
        num_classes: classes of the head; 0: there is no head.
        image_size: (height, width) that the position embedding is for; None: the file does not
            determine it.
        rows: name table, see `name_table`.
        class_names: names of the classes, if the file has them.
        view: which part of an image the weights were evaluated on.
        normalization: of the images that the weights expect; None: images in [-1, 1].
        unused: patterns of tensor names that such files contain but no model needs.
        task_only: patterns of parameter names that only the training task used, e.g. mask tokens.
    """

    format: str
    options: Mapping[str, Any]
    num_classes: int
    image_size: tuple[int, int] | None
    rows: tuple[Row, ...]
    class_names: tuple[str, ...] | None = None
    view: EvalView = EvalView()
    normalization: Normalization | None = None
    unused: tuple[str, ...] = ()
    task_only: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Tensors:
    """A model in the layout of another project, ready to be written.

    Attributes:
        tensors: name -> float32 array.
        configs: file name -> JSON object to write beside them ("safetensors" only).
    """

    tensors: Mapping[str, np.ndarray]
    configs: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Format:
    """One weight format of another project.

    Attributes:
        name: value of `convert --format`. Formats of different families may share a name.
        reads: names of the projects whose files it recognises, for messages.
        container: "npz": one file; "safetensors": a folder of one file with JSON beside it.
        recognise: returns the file, with its tensors under the names that the name table uses, if
            it has this format, else None.
        describe: (recognised file, options that the caller gave) -> what it holds. It raises
            WeightsError for sizes that it can neither read from the file nor find in the options.
        to_tensors: the inverse: a loaded model -> its tensors. It raises WeightsError for a model
            that the format cannot represent.
    """

    name: str
    reads: tuple[str, ...]
    container: Literal["npz", "safetensors"]
    recognise: Callable[[TensorFile], TensorFile | None]
    describe: Callable[[TensorFile, Mapping[str, Any]], Published]
    to_tensors: Callable[["Loaded"], Tensors]


def formats_of(options: ModelConfig) -> list[Format]:
    """Returns the formats of a model's family, in the order in which the family lists them."""
    family = "ResNet" if isinstance(resolve(options), ResNetShape) else "ViT"
    return [_format(name) for name in _MODULES[family]]


def all_formats() -> list[Format]:
    """Returns the formats of all families."""
    return [_format(name) for names in _MODULES.values() for name in names]


def _format(module: str) -> Format:
    return importlib.import_module(f"vit_jax.interop.{module}").FORMAT


def depth_of(names: Mapping[str, Any], pattern: str, first: int = 0) -> int:
    """Returns the number of consecutive layers in a file.

    Args:
        names: the names of its tensors.
        pattern: name of a tensor that each layer has, with `{layer}` in it.
        first: number of the first layer.
    """
    depth = 0
    while pattern.format(layer=depth + first) in names:
        depth += 1
    return depth
