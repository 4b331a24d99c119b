"""npz files of google-research/big_transfer: BiT ResNets."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vit_jax.errors import WeightsError
from vit_jax.interop.formats import Format, Tensors, WeightsInfo, depth_of
from vit_jax.interop.name_table import Row, Same, parameters, row, write_rows
from vit_jax.interop.tensors import TensorFile
from vit_jax.models.registry import list_models, model_options, model_shape
from vit_jax.models.resnet import ResNetConfig, ResNetShape

if TYPE_CHECKING:
    from vit_jax.interop.load import Loaded

_ROOT = "resnet/root_block/standardized_conv2d/kernel"
_NORM = (("scale", "gamma"), ("bias", "beta"))


def recognise(file: TensorFile) -> TensorFile | None:
    """Returns the file with plain tensor names if it is a BiT ResNet, else None."""
    # Some files number their convolutions.
    plain = {re.sub(r"standardized_conv2d_\d+/", "standardized_conv2d/", n): n for n in file.shapes}
    return file.renamed(plain) if _ROOT in plain else None


def describe(file: TensorFile, given: Mapping[str, Any]) -> WeightsInfo:
    """Reads the architecture from the shapes."""
    del given
    units = []
    pattern = "resnet/block{stage}/unit{{layer:02d}}/a/standardized_conv2d/kernel"
    while count := depth_of(file.shapes, pattern.format(stage=len(units) + 1), 1):
        units.append(count)
    shape = ResNetShape(tuple(units), file.shapes[_ROOT][3])
    names = [n for n in list_models() if n.startswith("BiT-")]
    name = next((n for n in names if model_shape(model_options(n)) == shape), None)
    if name is None:
        raise WeightsError(
            f"{file.path} is a ResNet with stages of {units} units and width {shape.width}",
            f"one of {', '.join(names)}",
            "add its sizes to the ResNet family in vit_jax/models",
        )
    head = file.shapes.get("resnet/head/conv2d/kernel")
    return WeightsInfo(
        "big_transfer npz",
        {"name": name},
        head[-1] if head else 0,
        (224, 224),
        tuple(name_table(shape)),
    )


def to_tensors(loaded: "Loaded") -> Tensors:
    """Returns the tensors of a ResNet with the names of the published files."""
    shape = model_shape(loaded.options)
    assert isinstance(shape, ResNetShape)
    if shape.small:
        raise WeightsError(
            f"{loaded.options.name}, which has a 3x3 root for small images",
            "a ResNet with the 7x7 root of BiT",
            "use format orbax, which holds every model",
        )
    assert isinstance(loaded.options, ResNetConfig)
    if loaded.options.pooling != "gap":
        raise WeightsError(
            f"model.pooling = {loaded.options.pooling!r} in format big_transfer",
            "'gap'",
            "use format orbax, which holds every model",
        )
    tensors = write_rows(name_table(shape), parameters(loaded.model))
    head = "resnet/head/conv2d/kernel"
    if head in tensors:  # A 1x1 convolution in these files.
        tensors[head] = tensors[head][None, None]
    return Tensors(tensors)


def name_table(shape: ResNetShape) -> list[Row]:
    """Returns the rows of a BiT ResNet."""
    rows = [row("trunk/conv_root/kernel", _ROOT, Same())]
    for stage, count in enumerate(shape.units, 1):
        ours, theirs = f"trunk/stage{stage}", f"resnet/block{stage}"
        rows += _unit_rows(f"{ours}/first", f"{theirs}/unit01", 1)
        if count > 1:
            rows += _unit_rows(f"{ours}/blocks", f"{theirs}/unit{{layer:02d}}", 2)
    rows += [row(f"norm/{our}", f"resnet/group_norm/{their}", Same()) for our, their in _NORM]
    return [
        *rows,
        row("head/linear/kernel", "resnet/head/conv2d/kernel", Same()),
        row("head/linear/bias", "resnet/head/conv2d/bias", Same()),
    ]


def _unit_rows(ours: str, theirs: str, first: int) -> list[Row]:
    projection = f"{theirs}/a/proj/standardized_conv2d/kernel"
    rows = [row(f"{ours}/conv_proj/kernel", projection, Same(), first)]
    for number, letter in enumerate("abc", 1):
        kernel = f"{theirs}/{letter}/standardized_conv2d/kernel"
        rows.append(row(f"{ours}/conv{number}/kernel", kernel, Same(), first))
        for our, their in _NORM:
            norm = f"{theirs}/{letter}/group_norm/{their}"
            rows.append(row(f"{ours}/norm{number}/{our}", norm, Same(), first))
    return rows


FORMAT = Format(
    name="big_transfer",
    reads=("big_transfer",),
    container="npz",
    recognise=recognise,
    describe=describe,
    to_tensors=to_tensors,
)
