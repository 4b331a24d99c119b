"""The preprocessor_config.json of transformers: how images are resized, cropped, normalised."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import WeightsError
from vit_jax.interop.normalization import Normalization, normalization_of
from vit_jax.interop.tensors import TensorFile
from vit_jax.models.family import EvalView

_FILE = "preprocessor_config.json"
# Key that only this package reads, and Pillow's numbers of filters.
_VIEW, _BILINEAR, _BICUBIC = "vit_jax_view", 2, 3
# Keys with the only value that is read.
_NEEDED = {"do_resize": True, "do_rescale": True}


def read_processor(
    file: TensorFile, default: EvalView | None = None
) -> tuple[EvalView, Normalization | None]:
    """Returns crop and filter, and the normalisation.

    `default` is the view if there is no preprocessor_config.json, and its filter if that file names
    none.

    Raises:
        WeightsError: the images are not resized, or their values are not divided by 255.
    """
    processor, default = file.config(_FILE), default or EvalView()
    for key, value in _NEEDED.items():
        if processor.get(key, value) != value:
            raise WeightsError(
                f"{_FILE} of {file.path.parent} with {key} {processor[key]!r}",
                repr(value),
                "set it, if this is how the model was trained",
            )
    factor = processor.get("rescale_factor", 1 / 255)
    if abs(factor * 255 - 1) > 1e-4:
        raise WeightsError(
            f"{_FILE} of {file.path.parent} with rescale_factor {factor!r}",
            "1/255",
            "change image_mean and image_std instead",
        )
    if processor.get("resample", _BILINEAR) not in (_BILINEAR, _BICUBIC, None):
        raise WeightsError(
            f"{_FILE} of {file.path.parent} with resample {processor['resample']!r}",
            f"{_BILINEAR} (bilinear) or {_BICUBIC} (bicubic)",
            "change it there; `predict` will resize so",
        )
    return _read_view(processor, default), _read_normalization(processor)


def _read_view(processor: Mapping[str, Any], default: EvalView) -> EvalView:
    """Returns crop and filter: the whole image, unless the processor crops the centre.

    A `crop_size` of 224 after resizing the short side to 256 is a central fraction of 0.875.
    """
    if not processor:
        return default
    filters = {_BILINEAR: "bilinear", _BICUBIC: "bicubic", None: default.interpolation}
    filter = filters[processor.get("resample")]
    short, cropped = (processor.get(key) for key in ("size", "crop_size"))
    side = cropped or short or {}
    side = side.get("height") if isinstance(side, Mapping) else side
    own = processor.get(_VIEW)
    written = _resizing(EvalView(**own), side) if own and side else {}
    if own and all(processor.get(key) == written.get(key) for key in ("size", "resample")):
        return EvalView(**own)
    if not processor.get("do_center_crop"):
        return EvalView("resize", interpolation=filter)
    # DeiT's processor, and any whose size is {height, width}, resizes without the aspect ratio.
    named = processor.get("image_processor_type", processor.get("feature_extractor_type", ""))
    squash = isinstance(short, Mapping) and "height" in short
    squash = squash or (isinstance(short, int) and named.startswith("DeiT"))
    if isinstance(short, Mapping):
        short = short.get("height", short.get("shortest_edge"))
    cropped = cropped.get("height") if isinstance(cropped, Mapping) else cropped
    fraction = min(cropped / short, 1.0) if short and cropped else default.central_fraction
    if squash and fraction == 1.0:
        return EvalView("resize", interpolation=filter)
    return EvalView("squash_central" if squash else "central", fraction, interpolation=filter)


def _read_normalization(processor: Mapping[str, Any]) -> Normalization | None:
    if processor.get("do_normalize") is False:  # The model takes images in [0, 1].
        return normalization_of((0.0,) * 3, (1.0,) * 3)
    return normalization_of(processor.get("image_mean"), processor.get("image_std"))


def write_processor(view: EvalView, side: int) -> dict[str, Any]:
    """Returns the processor of a model that takes images in [-1, 1] of this side."""
    means = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return {**means, "do_normalize": True, "do_rescale": True, **_resizing(view, side)}


def _resizing(view: EvalView, side: int) -> dict[str, Any]:
    """Returns what crops and resizes as in a model's evaluation."""
    found: dict[str, Any] = {
        "do_resize": True,
        "resample": _BICUBIC if view.interpolation == "bicubic" else _BILINEAR,
        _VIEW: dataclasses.asdict(view),
    }
    square = {"height": side, "width": side}
    if view.crop == "resize":
        return {"image_processor_type": "ViTImageProcessor", "size": square, **found}
    larger = round(side / view.central_fraction)
    squash = view.crop == "squash_central"
    return {
        "image_processor_type": "BitImageProcessor",  # ViTImageProcessor cannot crop.
        "do_convert_rgb": True,
        "do_center_crop": True,
        "crop_size": square,
        "size": {"height": larger, "width": larger} if squash else {"shortest_edge": larger},
        **found,
    }
