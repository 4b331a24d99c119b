"""Folders of Hugging Face transformers: `ViTForImageClassification` and `ViTModel`."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vit_jax.errors import WeightsError, first_few
from vit_jax.interop import towers_transformers
from vit_jax.interop.formats import Format, Tensors, WeightsInfo
from vit_jax.interop.image_processor import read_processor, write_processor
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
from vit_jax.interop.tensors import TensorFile
from vit_jax.interop.vit_formats import (
    check_keys,
    checked_options,
    square_patch,
    square_side,
    vit_options,
    with_learned_table,
)

if TYPE_CHECKING:
    from vit_jax.interop.load import Loaded

_LAYER = "encoder.layer.{layer}"
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
    config = file.config()
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
    if not isinstance(labels, Mapping):
        raise WeightsError(
            f"config.json of {file.path.parent} with id2label {str(labels)[:40]}",
            "an object with the name of each class by its number",
            "correct it, or delete the key",
        )
    names = tuple(str(labels[key]) for key in sorted(labels, key=int))
    if all(name.startswith(_NO_NAME) for name in names):
        names = ()
    view, normalization, assumed = read_processor(file, "ViT")
    return WeightsInfo(
        "transformers safetensors",
        options,
        head[0] if head else 0,
        (size, size) if isinstance(size, int) else tuple(size),
        tuple(name_table()),
        class_names=names if head and len(names) == head[0] else None,
        view=view,
        normalization=normalization,
        assumed=assumed,
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
    processor = write_processor(loaded.view, side)
    return Tensors(named, {"config.json": config, "preprocessor_config.json": processor})


FORMAT = Format(
    name="transformers",
    reads=("transformers",),
    container="safetensors",
    recognise=recognise,
    describe=describe,
    to_tensors=to_tensors,
)
