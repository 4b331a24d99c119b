"""Folders of Hugging Face transformers: `CLIPModel` and `SiglipModel`, also SigLIP 2."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vit_jax.errors import WeightsError
from vit_jax.interop.formats import Format, Tensors, WeightsInfo
from vit_jax.interop.image_processor import read_processor, write_processor
from vit_jax.interop.name_table import (
    Flat,
    Row,
    Same,
    Split,
    Stacked,
    TorchLinear,
    parameters,
    row,
    torch_linear_rows,
    torch_norm_rows,
    torch_patch_rows,
    write_rows,
)
from vit_jax.interop.tensors import TensorFile
from vit_jax.interop.towers import (
    Scalar,
    Table,
    check_pair,
    image_of,
    pair_of,
    pair_options,
    prefixed,
    text_options,
)
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

MODEL_TYPES = ("clip", "siglip")
_LAYER = "encoder.layers.{layer}"
# hidden_act -> activation of the text tower. `_image_activation` has that of the image tower.
_ACTIVATIONS = {
    "quick_gelu": "quick_gelu", "gelu": "gelu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
}  # fmt: skip
# Keys of config.json and of its sections that are read, or change nothing in evaluation.
_KEYS = (
    "text_config", "vision_config", "text_config_dict", "vision_config_dict", "projection_dim",
    "logit_scale_init_value",
)  # fmt: skip
_TOWER_KEYS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act",
    "layer_norm_eps", "vocab_size", "max_position_embeddings", "projection_dim", "projection_size",
    "image_size", "patch_size", "num_channels", "vision_use_head",
)  # fmt: skip
# Buffers in files of older versions.
_UNUSED = (r"(text|vision)_model\.embeddings\.position_ids",)
# Configurations leave out values that are those of their class. Source: transformers 5.
_DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "clip": {
        "text": {
            "vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048,
            "num_hidden_layers": 12, "num_attention_heads": 8, "max_position_embeddings": 77,
            "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "eos_token_id": 49407,
        },
        "vision": {
            "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
            "num_attention_heads": 12, "image_size": 224, "patch_size": 32,
            "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
        },
    },
    "siglip": {
        "text": {
            "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 3072,
            "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 64,
            "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
        },
        "vision": {
            "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
            "num_attention_heads": 12, "image_size": 224, "patch_size": 16,
            "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "vision_use_head": True,
        },
    },
}  # fmt: skip


def recognise(file: TensorFile) -> TensorFile | None:
    """Returns the file if its config.json describes a CLIP or SigLIP model, else None."""
    return file if file.config().get("model_type") in MODEL_TYPES else None


def describe(file: TensorFile, given: Mapping[str, Any]) -> WeightsInfo:
    """Reads the architecture from config.json, the normalisation from preprocessor_config.json."""
    del given
    config = file.config()
    kind = config["model_type"]
    named = (config.get("architectures") or [""])[0]
    if named.endswith("ForImageClassification"):
        raise WeightsError(
            f"{file.path.parent} is a {named}",
            "CLIPModel or SiglipModel, with both towers",
            "use the model without a classifier, e.g. for `fewshot`",
        )
    check_keys(file, config, _KEYS)
    towers = []
    for section, defaults in _DEFAULTS[kind].items():
        # Files of old versions repeat values in text_config_dict; these have priority there.
        own = dict(config.get(f"{section}_config") or {})
        own |= config.get(f"{section}_config_dict") or {}
        check_keys(file, own, _TOWER_KEYS)
        towers.append({**defaults, **own})
    text, image = towers
    for tower in (text, image):
        if tower["hidden_act"] not in _ACTIVATIONS or not tower.get("vision_use_head", True):
            raise WeightsError(
                f"config.json of {file.path.parent} with hidden_act {tower['hidden_act']!r}"
                f" and vision_use_head {tower.get('vision_use_head', True)}",
                f"hidden_act one of {', '.join(_ACTIVATIONS)}, and a pooling head",
                "use another file",
            )
    is_clip, size = kind == "clip", image["image_size"]
    eos = text.get("eos_token_id")
    own = {
        "is_causal": is_clip,
        "pooling": "end_token" if is_clip else "last",
        # CLIPModel takes the largest token if the config has the 2 of its first version.
        "end_token": eos if is_clip and eos != 2 else None,
        "activation": _ACTIVATIONS[text["hidden_act"]],
        "norm_epsilon": text["layer_norm_eps"],
        "vocabulary_size": text["vocab_size"],
        "context_length": text["max_position_embeddings"],
    }
    options = pair_options(
        "CLIP" if is_clip else "SigLIP",
        {
            **vit_options(**_sizes(image), patch_size=square_patch(file, image["patch_size"])),
            **_image_activation(image["hidden_act"]),
            "pooling": "token" if is_clip else "map",
            "embedding_norm": is_clip,
            "norm_epsilon": image["layer_norm_eps"],
        },
        text={**text_options(**_sizes(text)), **own},
        embedding_size=file.shapes["visual_projection.weight"][0] if is_clip else None,
        projection_bias=not is_clip,
        bias_init=None if is_clip else -10.0,
    )
    view, normalization, assumed = read_processor(file, "CLIP" if is_clip else "Siglip")
    return WeightsInfo(
        f"transformers safetensors ({'CLIPModel' if is_clip else 'SiglipModel'})",
        options,
        0,
        (size, size) if isinstance(size, int) else tuple(size),
        tuple(clip_table() if is_clip else siglip_table()),
        view=view,
        normalization=normalization,
        assumed=assumed,
        unused=_UNUSED,
    )


def _sizes(tower: Mapping[str, Any]) -> dict[str, int]:
    return {
        "width": tower["hidden_size"],
        "depth": tower["num_hidden_layers"],
        "mlp_dim": tower["intermediate_size"],
        "num_heads": tower["num_attention_heads"],
    }


def _image_activation(hidden_act: str) -> dict[str, Any]:
    if hidden_act == "quick_gelu":
        return {"mlp": "quick_gelu"}
    return {"mlp": "gelu", "gelu_approximate": _ACTIVATIONS[hidden_act] == "gelu_tanh"}


def _encoder_rows() -> list[Row]:
    """Returns the rows of an encoder, which are the same in all four towers."""
    ours, attention = "encoder/blocks", f"{_LAYER}.self_attn"

    def qkv(leaf: str) -> tuple[str, ...]:
        return tuple(f"{attention}.{name}_proj.{leaf}" for name in "qkv")

    return [
        *torch_norm_rows(f"{ours}/attention_norm", f"{_LAYER}.layer_norm1"),
        row(f"{ours}/attention/qkv/kernel", qkv("weight"), Stacked(1, TorchLinear())),
        row(f"{ours}/attention/qkv/bias", qkv("bias"), Stacked(0, Flat())),
        *torch_linear_rows(f"{ours}/attention/out", f"{attention}.out_proj", input_axes=2),
        *torch_norm_rows(f"{ours}/mlp_norm", f"{_LAYER}.layer_norm2"),
        *torch_linear_rows(f"{ours}/mlp/expand", f"{_LAYER}.mlp.fc1"),
        *torch_linear_rows(f"{ours}/mlp/contract", f"{_LAYER}.mlp.fc2"),
    ]


def _text_rows() -> list[Row]:
    return [
        row("token_embedding", "embeddings.token_embedding.weight", Same()),
        row("positions", "embeddings.position_embedding.weight", Same()),
        *_encoder_rows(),
        *torch_norm_rows("norm", "final_layer_norm"),
    ]


def clip_table() -> list[Row]:
    """Returns the rows of `CLIPModel`."""
    image = [
        *torch_patch_rows("embeddings.patch_embedding", bias=False),
        row("class_token", "embeddings.class_embedding", Flat()),
        row("position_embedding/table", "embeddings.position_embedding.weight", Table()),
        *torch_norm_rows("embedding_norm", "pre_layrnorm"),
        *_encoder_rows(),
        *torch_norm_rows("norm", "post_layernorm"),
    ]
    return [
        *prefixed(image, "image/", "vision_model."),
        *prefixed(_text_rows(), "text/", "text_model."),
        row("image_projection/kernel", "visual_projection.weight", TorchLinear()),
        row("text/projection/kernel", "text_projection.weight", TorchLinear()),
        row("log_temperature", "logit_scale", Scalar(())),
    ]


def siglip_table() -> list[Row]:
    """Returns the rows of `SiglipModel`."""
    pooling, head = "attention_pooling", "head"
    inputs = ("query", "key", "value")
    image = [
        *torch_patch_rows("embeddings.patch_embedding"),
        row("position_embedding/table", "embeddings.position_embedding.weight", Table()),
        *_encoder_rows(),
        *torch_norm_rows("norm", "post_layernorm"),
        row(f"{pooling}/probe", f"{head}.probe", Same()),
        row(
            [f"{pooling}/{name}/kernel" for name in inputs],
            f"{head}.attention.in_proj_weight",
            Split(TorchLinear()),
        ),
        row(
            [f"{pooling}/{name}/bias" for name in inputs],
            f"{head}.attention.in_proj_bias",
            Split(Flat()),
        ),
        *torch_linear_rows(f"{pooling}/out", f"{head}.attention.out_proj", input_axes=2),
        *torch_norm_rows(f"{pooling}/norm", f"{head}.layernorm"),
        *torch_linear_rows(f"{pooling}/mlp/expand", f"{head}.mlp.fc1"),
        *torch_linear_rows(f"{pooling}/mlp/contract", f"{head}.mlp.fc2"),
    ]
    return [
        *prefixed(image, "image/", "vision_model."),
        *prefixed(_text_rows(), "text/", "text_model."),
        *torch_linear_rows("text/projection", "text_model.head"),
        row("log_temperature", "logit_scale", Scalar((1,))),
        row("bias", "logit_bias", Scalar((1,))),
    ]


def to_tensors(loaded: "Loaded") -> Tensors:
    """Returns a folder for `CLIPModel` if the text tower is causal, else for `SiglipModel`."""
    options, model, shape = pair_of(loaded)
    image, is_clip = image_of(loaded), options.text.is_causal
    side = square_side(loaded)
    image_options, image_shape = checked_options(
        image,
        "transformers",
        pooling=("token" if is_clip else "map",),
        embedding_norm=(is_clip,),
        mlp=("gelu", "quick_gelu"),
        qkv_bias=(True,),
    )
    check_pair(
        options,
        "transformers",
        {
            "text.pooling": ("end_token" if is_clip else "last",),
            "text.pad_token": (None,),
            "text.norm_placement": ("pre",),
            "projection_bias": (not is_clip,),
        },
    )
    params = {name: array for name, array in parameters(model).items() if name[:6] != "image/"}
    params |= {f"image/{name}": array for name, array in with_learned_table(image).items()}
    if is_clip:
        _move_patch_bias(params)
    tensors = write_rows(clip_table() if is_clip else siglip_table(), params)
    text = {
        **_their_sizes(shape),
        "vocab_size": options.text.vocabulary_size,
        "max_position_embeddings": options.text.context_length,
        "hidden_act": _their_activation(options.text.activation),
        "layer_norm_eps": options.text.norm_epsilon,
    }
    activation = "gelu_tanh" if image_options.gelu_approximate else "gelu"
    vision = {
        **_their_sizes(image_shape),
        "image_size": side,
        "patch_size": image_shape.patch_size,
        "hidden_act": _their_activation(
            "quick_gelu" if image_options.mlp == "quick_gelu" else activation
        ),
        "layer_norm_eps": image_options.norm_epsilon,
    }
    config = {
        "architectures": ["CLIPModel" if is_clip else "SiglipModel"],
        "model_type": "clip" if is_clip else "siglip",
        "text_config": text,
        "vision_config": vision,
    }
    if is_clip:
        end = options.text.end_token
        text |= {"eos_token_id": 2 if end is None else end}
        for part in (config, text, vision):
            part["projection_dim"] = model.embedding_size
    else:
        text["projection_size"] = model.embedding_size
    processor = write_processor(loaded.view, side)
    return Tensors(tensors, {"config.json": config, "preprocessor_config.json": processor})


def _their_sizes(shape: Any) -> dict[str, int]:
    return {
        "hidden_size": shape.width,
        "num_hidden_layers": shape.depth,
        "intermediate_size": shape.mlp_dim,
        "num_attention_heads": shape.num_heads,
    }


def _their_activation(activation: str) -> str:
    return "gelu_pytorch_tanh" if activation == "gelu_tanh" else activation


def _move_patch_bias(params: dict[str, Any]) -> None:
    """Adds the bias of the patches to their position vectors, because CLIP has no such bias.

    It comes from the normalisation of the images, which loading folds into the patch embedding.
    """
    table, bias = "image/position_embedding/table", "image/patch_embedding/bias"
    if params[bias].any():
        moved = params[table].copy()
        moved[:, 1:] += params[bias]
        params |= {table: moved, bias: params[bias] * 0}


FORMAT = Format(
    name="transformers",
    reads=("transformers",),
    container="safetensors",
    recognise=recognise,
    describe=describe,
    to_tensors=to_tensors,
)
