"""Folders of Hugging Face transformers: `ViTForImageClassification` and `ViTModel`."""

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vit_jax.errors import WeightsError, first_few
from vit_jax.interop import towers_transformers
from vit_jax.interop.formats import Format, Tensors, WeightsInfo
from vit_jax.interop.name_table import (
    Flat,
    Row,
    Same,
    Stacked,
    TorchLinear,
    row,
    torch_linear_rows,
    torch_norm_rows,
    torch_patch_rows,
    write_rows,
)
from vit_jax.interop.normalization import Normalization, normalization_of
from vit_jax.interop.tensors import TensorFile
from vit_jax.interop.vit_formats import (
    check_keys,
    checked_options,
    square_patch,
    square_side,
    vit_options,
    with_learned_table,
)
from vit_jax.models.family import EvalView

if TYPE_CHECKING:
    from vit_jax.interop.load import Loaded

_LAYER = "encoder.layer.{layer}"
# Key of preprocessor_config.json that only this package reads, and Pillow's numbers of filters.
_VIEW, _BILINEAR, _BICUBIC = "vit_jax_view", 2, 3
# Names that transformers gives to classes without names.
_NO_NAME = "LABEL_"
# Keys of a ViT's config.json that are read, or change nothing in evaluation.
_KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "layer_norm_eps", "image_size", "patch_size", "num_channels", "qkv_bias", "pooler_act",
    "pooler_output_size", "encoder_stride", "hidden_dropout_prob", "attention_probs_dropout_prob",
)  # fmt: skip
# hidden_act -> gelu_approximate.
_ACTIVATIONS = {"gelu": False, "gelu_new": True, "gelu_pytorch_tanh": True, "gelu_fast": True}


def recognise(file: TensorFile) -> TensorFile | None:
    """Returns the file with plain tensor names if its config.json describes a ViT, else None.

    Another model of transformers, which no format reads, is an error.
    """
    kind = file.config().get("model_type")
    if kind is None or kind in towers_transformers.MODEL_TYPES:
        return None
    if kind != "vit":
        in_timm = re.match("deit|dinov2|dinov3", kind)
        raise WeightsError(
            f"{file.path.parent} is a model of type {kind!r}",
            f"model_type 'vit', {' or '.join(map(repr, towers_transformers.MODEL_TYPES))}",
            "use timm's safetensors of this model" if in_timm else "it is not supported",
        )
    plain = {name.removeprefix("vit."): name for name in file.shapes}
    if len(plain) < len(file.shapes):
        both = sorted(name for name in file.shapes if f"vit.{name}" in file.shapes)
        raise WeightsError(
            f"{file.path} has {first_few(both, 2)} with and without the prefix 'vit.'",
            "one copy of each tensor",
            "save the copy to load alone",
        )
    return file.renamed(plain)


def describe(file: TensorFile, given: Mapping[str, Any]) -> WeightsInfo:
    """Reads the architecture from config.json, the normalisation from preprocessor_config.json."""
    del given
    config, preprocessor = file.config(), file.config("preprocessor_config.json")
    check_keys(file, config, _KEYS)
    needed: dict[str, Any] = {"num_channels": 3}
    if "pooler.dense.weight" in file.shapes:
        needed["pooler_act"] = "tanh"
    for key, value in needed.items():
        if config.get(key, value) != value:
            raise WeightsError(
                f"config.json of {file.path.parent} with {key} {config[key]!r}",
                repr(value),
                "this kind of model is not supported",
            )
    try:
        patch, size = square_patch(file, config["patch_size"]), config["image_size"]
        options = vit_options(
            width=config["hidden_size"],
            depth=config["num_hidden_layers"],
            mlp_dim=config["intermediate_size"],
            num_heads=config["num_attention_heads"],
            patch_size=patch,
        )
        activation = config.get("hidden_act", "gelu")
        options |= {
            "pooling": "token",
            "gelu_approximate": _ACTIVATIONS[activation],
            "norm_epsilon": config.get("layer_norm_eps", 1e-12),
            "qkv_bias": config.get("qkv_bias", True),
        }
    except KeyError as error:
        raise WeightsError(
            f"config.json of {file.path.parent} has no usable {error}",
            f"the config of a ViT, with hidden_act one of {', '.join(_ACTIVATIONS)}",
            "check the file",
        ) from None
    _check_depth(file, config["num_hidden_layers"])
    if "pooler.dense.weight" in file.shapes:
        options["representation_size"] = file.shapes["pooler.dense.weight"][0]
    head = file.shapes.get("classifier.weight")
    labels = config.get("id2label") or {}
    names = tuple(labels[key] for key in sorted(labels, key=int))
    if all(str(name).startswith(_NO_NAME) for name in names):
        names = ()
    return WeightsInfo(
        "transformers safetensors",
        options,
        head[0] if head else 0,
        (size, size) if isinstance(size, int) else tuple(size),
        tuple(name_table()),
        class_names=names if head and len(names) == head[0] else None,
        view=_eval_view(preprocessor),
        normalization=_read_normalization(preprocessor),
        unused=("embeddings.mask_token",),
    )


def _check_depth(file: TensorFile, depth: int) -> None:
    """Raises WeightsError if config.json has more layers than the file."""
    found = [re.match(r"encoder\.layer\.(\d+)\.", name) for name in file.shapes]
    there = max((int(match[1]) + 1 for match in found if match), default=0)
    if depth > there:
        raise WeightsError(
            f"config.json of {file.path.parent} has {depth:,} layers, and the file has {there}",
            "the same number",
            "restore config.json, or download all files of the model",
        )


def _eval_view(preprocessor: Mapping[str, Any]) -> EvalView:
    """Returns crop and filter of the image processor: the whole image, unless it crops the centre.

    A `crop_size` of 224 after resizing the short side to 256 is a central fraction of 0.875.
    """
    if not preprocessor:
        return EvalView()
    filter = "bicubic" if preprocessor.get("resample") == _BICUBIC else "bilinear"
    short, cropped = (preprocessor.get(key) for key in ("size", "crop_size"))
    side = cropped or short or {}
    side = side.get("height") if isinstance(side, Mapping) else side
    own = preprocessor.get(_VIEW)
    written = _resizing(EvalView(**own), side) if own and side else {}
    if own and all(preprocessor.get(key) == written.get(key) for key in ("size", "resample")):
        return EvalView(**own)
    if not preprocessor.get("do_center_crop"):
        return EvalView("resize", interpolation=filter)
    # DeiT's processor, and any whose size is {height, width}, resizes without the aspect ratio.
    named = preprocessor.get("image_processor_type", preprocessor.get("feature_extractor_type", ""))
    squash = isinstance(short, Mapping) and "height" in short
    squash = squash or (isinstance(short, int) and named.startswith("DeiT"))
    if isinstance(short, Mapping):
        short = short.get("height", short.get("shortest_edge"))
    cropped = cropped.get("height") if isinstance(cropped, Mapping) else cropped
    fraction = min(cropped / short, 1.0) if short and cropped else EvalView().central_fraction
    if squash and fraction == 1.0:
        return EvalView("resize", interpolation=filter)
    return EvalView("squash_central" if squash else "central", fraction, interpolation=filter)


def _read_normalization(preprocessor: Mapping[str, Any]) -> Normalization | None:
    if preprocessor.get("do_normalize") is False:  # The model takes images in [0, 1].
        return normalization_of((0.0,) * 3, (1.0,) * 3)
    return normalization_of(preprocessor.get("image_mean"), preprocessor.get("image_std"))


def name_table() -> list[Row]:
    """Returns the rows, without the prefix `vit.` of classifiers."""
    ours, attention = "encoder/blocks", f"{_LAYER}.attention.attention"

    def qkv(leaf: str) -> tuple[str, ...]:
        return tuple(f"{attention}.{name}.{leaf}" for name in ("query", "key", "value"))

    return [
        *torch_patch_rows("embeddings.patch_embeddings.projection"),
        row("class_token", "embeddings.cls_token", Same()),
        row("position_embedding/table", "embeddings.position_embeddings", Same()),
        *torch_norm_rows(f"{ours}/attention_norm", f"{_LAYER}.layernorm_before"),
        row(f"{ours}/attention/qkv/kernel", qkv("weight"), Stacked(1, TorchLinear())),
        row(f"{ours}/attention/qkv/bias", qkv("bias"), Stacked(0, Flat())),
        *torch_linear_rows(
            f"{ours}/attention/out", f"{_LAYER}.attention.output.dense", input_axes=2
        ),
        *torch_norm_rows(f"{ours}/mlp_norm", f"{_LAYER}.layernorm_after"),
        *torch_linear_rows(f"{ours}/mlp/expand", f"{_LAYER}.intermediate.dense"),
        *torch_linear_rows(f"{ours}/mlp/contract", f"{_LAYER}.output.dense"),
        *torch_norm_rows("norm", "layernorm"),
        *torch_linear_rows("head/pre_logits", "pooler.dense"),
        *torch_linear_rows("head/linear", "classifier"),
    ]


def to_tensors(loaded: "Loaded") -> Tensors:
    """Returns a folder for `ViTForImageClassification`, or for `ViTModel` without classes."""
    side = square_side(loaded)
    options, shape = checked_options(loaded, "transformers", pooling=("token",), mlp=("gelu",))
    classifies = loaded.num_classes > 0
    if classifies and options.representation_size is not None:
        raise WeightsError(
            "a tanh layer before the head",
            "a linear head, as in ViTForImageClassification",
            "drop the head with --num_classes=0 (ViTModel) or use another format",
        )
    tensors = write_rows(name_table(), with_learned_table(loaded))
    prefix = "vit." if classifies else ""
    named = {n if n.startswith("classifier") else prefix + n: a for n, a in tensors.items()}
    names = loaded.class_names or tuple(f"{_NO_NAME}{i}" for i in range(loaded.num_classes))
    config = {
        "architectures": ["ViTForImageClassification" if classifies else "ViTModel"],
        "model_type": "vit",
        "hidden_size": shape.width,
        "num_hidden_layers": shape.depth,
        "intermediate_size": shape.mlp_dim,
        "num_attention_heads": shape.num_heads,
        "patch_size": shape.patch_size,
        "image_size": side,
        "hidden_act": "gelu_pytorch_tanh" if options.gelu_approximate else "gelu",
        "layer_norm_eps": options.norm_epsilon,
        "qkv_bias": options.qkv_bias,
        "hidden_dropout_prob": options.dropout,
        "attention_probs_dropout_prob": 0.0,
        "pooler_output_size": options.representation_size or shape.width,
        "pooler_act": "tanh",
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    preprocessor = {
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "do_normalize": True,
        "do_rescale": True,
        **_resizing(loaded.view, side),
    }
    return Tensors(named, {"config.json": config, "preprocessor_config.json": preprocessor})


def _resizing(view: EvalView, side: int) -> dict[str, Any]:
    """Returns the image processor that crops and resizes as in a model's evaluation.

    `ViTImageProcessor` cannot crop. "squash_central" becomes a central crop.
    """
    filter = _BICUBIC if view.interpolation == "bicubic" else _BILINEAR
    found: dict[str, Any] = {"do_resize": True, "resample": filter}
    found[_VIEW] = dataclasses.asdict(view)
    square = {"height": side, "width": side}
    if view.crop == "resize":
        return {"image_processor_type": "ViTImageProcessor", "size": square, **found}
    return {
        "image_processor_type": "BitImageProcessor",
        "do_convert_rgb": True,
        "do_center_crop": True,
        "crop_size": square,
        "size": {"shortest_edge": round(side / view.central_fraction)},
        **found,
    }


FORMAT = Format(
    name="transformers",
    reads=("transformers",),
    container="safetensors",
    recognise=recognise,
    describe=describe,
    to_tensors=to_tensors,
)
