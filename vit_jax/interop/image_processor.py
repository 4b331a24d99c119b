"""The image processors of transformers: how images are resized, cropped and normalised."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import WeightsError, nearest
from vit_jax.interop.normalization import Normalization, normalization_of
from vit_jax.interop.tensors import TensorFile
from vit_jax.models.family import EvalView

_FILE = "preprocessor_config.json"
# Key that only this package reads, and Pillow's numbers of filters.
_VIEW = "vit_jax_view"
_FILTERS = {2: "bilinear", 3: "bicubic"}
_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_OPENAI = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_SQUARE = {"height": 224, "width": 224}
_CROP = {
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": _SQUARE,
    "resample": 3,
}
# Class of image processor -> its values for what a file leaves out. Source: transformers.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": {"size": _SQUARE, "resample": 2, **_HALF},
    "Siglip": {"size": _SQUARE, "resample": 3, **_HALF},
    "DeiT": {**_CROP, "size": {"height": 256, "width": 256}, **_HALF},
    "CLIP": {**_CROP, **_OPENAI},
    "Bit": {**_CROP, **_OPENAI},
}
# Keys with the only value that is read.
_NEEDED = {"do_resize": True, "do_rescale": True}
# Keys that are read, or change nothing.
_KEYS = {
    "size", "resample", "do_center_crop", "crop_size", "rescale_factor", "do_normalize",
    "image_mean", "image_std", "image_processor_type", "feature_extractor_type", "do_convert_rgb",
    "processor_class", "data_format", "input_data_format", "return_tensors", "default_to_square",
    "_valid_processor_keys", _VIEW, *_NEEDED,
}  # fmt: skip


def read_processor(
    file: TensorFile, usual: str
) -> tuple[EvalView, Normalization | None, dict[str, str]]:
    """Returns crop and filter, the normalisation, and what is assumed without a file.

    Args:
        file: weights with JSON files beside them.
        usual: the class of image processor if the file names none, e.g. "ViT".

    Raises:
        WeightsError: `predict` could not prepare images like this processor.
    """
    nested = file.config("processor_config.json").get("image_processor")
    given = {k: v for k, v in (file.config(_FILE) or nested or {}).items() if v is not None}
    named = given.get("image_processor_type", given.get("feature_extractor_type", usual))
    name = named.removesuffix("Fast").removesuffix("ImageProcessor")
    name = name.removesuffix("FeatureExtractor")
    if name not in _DEFAULTS:
        known = [f"{name}ImageProcessor" for name in _DEFAULTS]
        raise _error(file, "image_processor_type", named, f"one of {', '.join(known)}",
                     f"did you mean {nearest(named, known)!r}?")  # fmt: skip
    squash = "height" in _DEFAULTS[name]["size"]
    for key, is_square in (("size", squash), ("crop_size", True)):
        if isinstance(side := given.get(key), int):
            given[key] = {"height": side, "width": side} if is_square else {"shortest_edge": side}
    processor = _DEFAULTS[name] | given
    for key, value in processor.items():
        if value and key not in _KEYS:
            raise _error(file, key, value, f"one of {', '.join(sorted(_KEYS))}",
                         "delete the key if it changes nothing")  # fmt: skip
        if value != _NEEDED.get(key, value):
            raise _error(file, key, value, repr(_NEEDED[key]), "correct it")
    factor = processor.get("rescale_factor", 1 / 255)
    if not isinstance(factor, int | float) or abs(factor * 255 - 1) > 1e-4:
        fix = "change image_mean and image_std instead"
        raise _error(file, "rescale_factor", factor, "1/255", fix)
    if processor["resample"] not in _FILTERS:
        wanted = " or ".join(f"{number} ({name})" for number, name in _FILTERS.items())
        fix = "change it there; `predict` will resize so"
        raise _error(file, "resample", processor["resample"], wanted, fix)
    view = _read_view(file, processor)
    # Without normalisation, the model takes images in [0, 1].
    unscaled = processor.get("do_normalize") is False
    mean, std = (0.0, 1.0) if unscaled else (processor["image_mean"], processor["image_std"])
    assumed = {
        "normalization": f"image_mean {mean} and image_std {std}",
        "crop": f"crop {view.crop!r}",
    }
    return view, normalization_of(mean, std), {} if given else assumed


def _error(file: TensorFile, key: str, value: Any, expected: str, fix: str) -> WeightsError:
    return WeightsError(f"{_FILE} of {file.path.parent} with {key} {value!r}", expected, fix)


def _read_view(file: TensorFile, processor: Mapping[str, Any]) -> EvalView:
    """Returns crop and filter: the whole image, unless the processor crops the centre.

    A `crop_size` of 224 after resizing the short side to 256 is a central fraction of 0.875.
    """
    # With a height and a width, the aspect ratio is not kept.
    squash, crops = "height" in processor["size"], processor.get("do_center_crop", False)
    short = _side(file, processor, "size")
    cropped = _side(file, processor, "crop_size") if crops else short
    own = processor.get(_VIEW)
    written = _resizing(EvalView(**own), cropped) if own else {}
    if own and all(processor[key] == written[key] for key in ("size", "resample")):
        return EvalView(**own)
    if not crops and not squash:
        raise _error(file, "size", processor["size"], "height and width, or do_center_crop",
                     "correct it")  # fmt: skip
    if cropped > short:
        raise _error(file, "crop_size", cropped, f"at most the size, {short}", "correct it")
    interpolation = _FILTERS[processor["resample"]]
    if squash and cropped == short:
        return EvalView("resize", interpolation=interpolation)
    crop = "squash_central" if squash else "central"
    return EvalView(crop, cropped / short, interpolation=interpolation)


def _side(file: TensorFile, processor: Mapping[str, Any], key: str) -> int:
    """Returns the height or the short side in a size."""
    size = processor[key]
    sides = {"height", "width"}, {"shortest_edge"}
    if not isinstance(size, Mapping) or {*size} not in sides:
        raise _error(file, key, size, "a height and a width, or a shortest_edge", "correct it")
    return size.get("height", size.get("shortest_edge"))


def write_processor(view: EvalView, side: int) -> dict[str, Any]:
    """Returns the processor of a model that takes images in [-1, 1] of this side."""
    means = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return {**means, "do_normalize": True, "do_rescale": True, **_resizing(view, side)}


def _resizing(view: EvalView, side: int) -> dict[str, Any]:
    """Returns what crops and resizes as in a model's evaluation."""
    found: dict[str, Any] = {
        "do_resize": True,
        "resample": 3 if view.interpolation == "bicubic" else 2,
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
