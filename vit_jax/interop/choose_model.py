"""Chooses the model that weights are loaded into: that of the file, with the caller's changes."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from vit_jax.errors import ARGUMENT, WeightsError
from vit_jax.interop.formats import WeightsInfo
from vit_jax.interop.name_table import parameters
from vit_jax.memory import check_fits
from vit_jax.models.family import ImageModel
from vit_jax.models.heads import HEAD_OPTIONS
from vit_jax.models.options import ModelConfig, with_patch_size
from vit_jax.models.registry import build_model, model_options, model_shape


@dataclasses.dataclass(frozen=True)
class AbstractModel:
    """A model without values."""

    options: ModelConfig
    num_classes: int  # 0: the model returns features instead of logits.
    image_size: tuple[int, int]  # (height, width).
    model: ImageModel
    shapes: Mapping[str, tuple[int, ...]]  # Of the parameters.


def original_model(published: WeightsInfo) -> AbstractModel:
    """Returns the model that the file was written from."""
    options = model_options(**published.options)
    # A file that does not determine its image size has no parameter that depends on it.
    stride = model_shape(options).stride
    size = published.image_size or (stride, stride)
    return _abstract_model(options, published.num_classes, size)


def choose_model(
    published: WeightsInfo,
    options: Mapping[str, Any],
    *,
    image_size: int | tuple[int, int] | None,
    patch_size: int | None,
    num_classes: int | None,
    keeps_head: bool,
) -> AbstractModel:
    """Returns the model of the file with the caller's changes; see `load.read_weights`."""
    if num_classes is None:
        num_classes = published.num_classes
    config = _changed_options(published, options, keeps_head, patch_size)
    return _abstract_model(config, num_classes, _image_size(image_size, published))


def keeps_head(published: WeightsInfo, num_classes: int | None, keep_head: bool | None) -> bool:
    """Whether the model gets the file's head; see `load.read_weights`."""
    fits = published.num_classes > 0 and num_classes in (None, published.num_classes)
    # A file without a classifier may still have a tanh layer, which then computes the features.
    fits = fits or (published.num_classes == 0 and not num_classes)
    if keep_head and not fits:
        raise WeightsError(
            f"keep_head with num_classes {num_classes} and a head of {published.num_classes}",
            "the same number",
            f"leave {ARGUMENT} out",
            argument="keep_head",
        )
    return fits if keep_head is None else keep_head


def _changed_options(
    published: WeightsInfo, options: Mapping[str, Any], keeps_head: bool, patch_size: int | None
) -> ModelConfig:
    """Returns the model section of the file with the caller's changes."""
    given = published.options
    if not keeps_head:
        given = {key: value for key, value in given.items() if key not in HEAD_OPTIONS}
    wanted = {**given, **options}
    for tower in ("image", "text"):  # Of a pair: the caller changes some options of a tower.
        if isinstance(options.get(tower), Mapping):
            wanted[tower] = {**given.get(tower, {}), **options[tower]}
    if patch_size is not None:
        wanted["name"] = _with_patch_size(wanted["name"], patch_size)
    return model_options(**wanted)


def _with_patch_size(name: str, patch_size: int) -> str:
    changed = with_patch_size(name, patch_size)
    if changed is None:
        raise WeightsError(
            f"patch_size {patch_size} for {name}",
            "a model that cuts patches out of the image, such as a ViT",
            "leave it out",
        )
    return changed


def _image_size(
    image_size: int | tuple[int, int] | None, published: WeightsInfo
) -> tuple[int, int]:
    size = published.image_size if image_size is None else image_size
    if size is None:
        raise WeightsError(
            f"a {published.format} file without a position table, so its image size is unknown",
            "the image size in pixels",
            f"give {ARGUMENT}=",
            argument="image_size",
        )
    sides = tuple(size) if isinstance(size, Sequence) else (size, size)
    whole = all(isinstance(side, int | np.integer) and side > 0 for side in sides)
    if len(sides) != 2 or not whole:
        raise WeightsError(
            f"image_size {image_size!r}", "a side, or (height, width), in pixels", "correct it"
        )
    return int(sides[0]), int(sides[1])


def _abstract_model(
    options: ModelConfig, num_classes: int, image_size: tuple[int, int]
) -> AbstractModel:
    key = jax.random.key(0)
    model = nnx.eval_shape(
        lambda: build_model(options, num_classes=num_classes, image_size=image_size, key=key)
    )
    shapes = {name: tuple(leaf.shape) for name, leaf in parameters(model).items()}
    largest = max(shapes, key=lambda name: math.prod(shapes[name]), default="")
    check_fits(
        sum(4 * math.prod(shape) for shape in shapes.values()),
        f"the parameters of {options.name} for {image_size[0]} x {image_size[1]} pixels"
        f" ({largest} has the shape {shapes[largest]})",
        "use smaller sizes, or check the file that they come from",
    )
    return AbstractModel(options, num_classes, image_size, model, shapes)
