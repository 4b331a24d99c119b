"""Our models in the formats of other projects."""

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from vit_jax.errors import WeightsError
from vit_jax.interop import native, timm, transformers, vision_transformer
from vit_jax.interop.load import Loaded
from vit_jax.interop.rows import write_rows
from vit_jax.models.registry import resolve
from vit_jax.models.resnet import ResNetShape
from vit_jax.models.vit import ViT, ViTShape
from vit_jax.named_tree import leaf_names

# Values of options that a format can say; others would silently make another function of the same
# weights. Options that come with parameters of their own are caught by the name tables.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "norm_placement": ("pre",),
    "position_embedding": ("learned_1d", "learned_2d", "sincos_2d"),
    "position_placement": ("stem",),
}
_TABLE = "position_embedding/table"


def save(loaded: Loaded, path: Path, format: str) -> None:
    """Writes a model; nothing appears under `path` unless all of it could be written.

    Args:
        loaded: model and what describes it.
        path: an npz file for vision_transformer, else a folder; must not exist.
        format: a key of FORMATS.

    Raises:
        WeightsError: the path exists, or the format cannot hold the model.
    """
    path = path.expanduser()
    if os.path.lexists(path):
        raise WeightsError(f"{path} exists", "a new path", "choose another, or remove it")
    if format == "vision_transformer" and path.suffix != ".npz":
        raise WeightsError(f"{path.name} for that format", "a name that ends in .npz", "rename it")
    part = path.with_name(f".{path.name}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(part)  # Of a process that was killed.
        FORMATS[format](loaded, part)
        part.rename(path)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        _remove(part)


def cannot_write(path: Path, error: OSError) -> WeightsError:
    """Returns what to raise where a destination cannot be written."""
    return WeightsError(
        f"cannot write {path}: {error.strerror or error}", "a writable place with free space",
        "choose another destination, or free some space",
    )  # fmt: skip


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _save_vision_transformer(loaded: Loaded, path: Path) -> None:
    """Npz as google-research/vision_transformer has it; as big_vision without a class token."""
    shape, options = _vit(loaded), loaded.options
    _require(
        loaded, "vision_transformer", gelu_approximate=(True,), norm_epsilon=(1e-6,),
        qkv_bias=(True,), pooling=("token", "gap", "map"),
        class_token=(None, options.pooling == "token"),
    )  # fmt: skip
    if shape.stem is not None and shape.stem.small:
        raise WeightsError(
            f"{options.name}, whose stem is for small images", "a stem that the format can say",
            "use --format=orbax, which holds every model",
        )  # fmt: skip
    _square(loaded)  # The format has no place for another grid.
    if options.pooling == "token":
        parts, table = vision_transformer.NUMBERED_OVER_ALL, vision_transformer.TABLES[0]
    else:
        parts, table = vision_transformer.NUMBERED_BY_KIND, vision_transformer.TABLES[1]
    rows = vision_transformer.name_table(vision_transformer.BLOCK, parts, table, shape.stem)
    params = _parameters(loaded, with_table=options.pooling == "token")
    np.savez(path, **write_rows(rows, params.__getitem__, set(params)))  # pyright: ignore


def _save_transformers(loaded: Loaded, path: Path) -> None:
    """A folder that `ViTForImageClassification` (without classes `ViTModel`) loads."""
    shape, options = _vit(loaded), loaded.options
    _require(loaded, "transformers", pooling=("token",), mlp=("gelu",))
    params = _parameters(loaded, with_table=True)
    classifies = loaded.num_classes > 0
    if classifies and options.representation_size is not None:
        raise WeightsError(
            "a tanh layer before the head", "a linear head, as ViTForImageClassification has it",
            "drop one with --num_classes=0 (ViTModel) or use another format",
        )  # fmt: skip
    rows = transformers.name_table()
    tensors = write_rows(rows, params.__getitem__, set(params))
    prefix = "vit." if classifies else ""
    named = {n if n.startswith("classifier") else prefix + n: a for n, a in tensors.items()}
    names = loaded.class_names or tuple(f"LABEL_{i}" for i in range(loaded.num_classes))
    config = {
        "architectures": ["ViTForImageClassification" if classifies else "ViTModel"],
        "model_type": "vit",
        "hidden_size": shape.width,
        "num_hidden_layers": shape.depth,
        "intermediate_size": shape.mlp_dim,
        "num_attention_heads": shape.num_heads,
        "patch_size": shape.patch_size,
        "image_size": _square(loaded),
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
    side = _square(loaded)
    preprocessor = {
        "image_processor_type": "ViTImageProcessor",
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": {"height": side, "width": side},
    }
    _write_folder(path, named, {"config.json": config, "preprocessor_config.json": preprocessor})


# Our sizes -> the architecture of timm to start from; its sizes are all given beside it.
_TIMM_NAMES = {192: "tiny", 384: "small", 768: "base", 1024: "large"}


def _save_timm(loaded: Loaded, path: Path) -> None:
    """A folder that `timm.create_model("local-dir:PATH", pretrained=True)` loads."""
    shape, options = _vit(loaded), loaded.options
    _require(loaded, "timm", norm_epsilon=(1e-6,), mlp=("gelu",), pooling=("token", "gap", "map"))
    params = _parameters(loaded, with_table=True)
    model = loaded.model
    assert isinstance(model, ViT)
    prefix = model.num_prefix
    if options.num_registers and "class_token" in params:
        # timm has a position for all tokens before the patches or for none of them.
        params["class_token"] = params["class_token"] + params[_TABLE][:, :1]
        params[_TABLE] = params[_TABLE][:, 1:]
    tensors = write_rows(timm.name_table(), params.__getitem__, set(params))
    pooling = {ours: theirs for theirs, ours in timm.POOLINGS.items()}[options.pooling]
    arguments = {
        "img_size": list(loaded.image_size),
        "patch_size": shape.patch_size,
        "embed_dim": shape.width,
        "depth": shape.depth,
        "num_heads": shape.num_heads,
        # timm cuts the product off; half a feature more makes it exact.
        "mlp_ratio": (shape.mlp_dim + 0.5) / shape.width,
        "qkv_bias": options.qkv_bias,
        "init_values": options.layer_scale,
        "class_token": "class_token" in params,
        "reg_tokens": options.num_registers,
        "no_embed_class": prefix > 0 and params[_TABLE].shape[1] == model.tokens - prefix,
        "global_pool": pooling,
        "fc_norm": False,
        "act_layer": "gelu_tanh" if options.gelu_approximate else "gelu",
    }
    architecture = f"vit_{_TIMM_NAMES.get(shape.width, 'base')}_patch16_224"
    config = {
        "architecture": architecture,
        "num_classes": loaded.num_classes,
        "num_features": shape.width,
        "global_pool": pooling,
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [3, *loaded.image_size],
            "fixed_input_size": True,
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
            "crop_pct": loaded.view.central_fraction,
            "crop_mode": "squash" if loaded.view.crop == "resize" else "center",
            "num_classes": loaded.num_classes,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }
    if loaded.class_names:
        config["label_names"] = list(loaded.class_names)
    _write_folder(path, tensors, {"config.json": config})


def _save_orbax(loaded: Loaded, path: Path) -> None:
    """A folder of ours, which holds every model, the grid of its positions included."""
    about = {
        "model": loaded.options.to_mapping(),
        "num_classes": loaded.num_classes,
        "image_size": list(loaded.image_size),
        "class_names": list(loaded.class_names or ()),
        "view": dataclasses.asdict(loaded.view),
    }
    native.write_native(path, about, nnx.to_pure_dict(nnx.state(loaded.model)))


# format -> writer.
FORMATS: Mapping[str, Callable[[Loaded, Path], None]] = {
    "vision_transformer": _save_vision_transformer,
    "transformers": _save_transformers,
    "timm": _save_timm,
    "orbax": _save_orbax,
}


def _vit(loaded: Loaded) -> ViTShape:
    shape = resolve(loaded.options)
    if isinstance(shape, ResNetShape):
        raise WeightsError(
            f"{loaded.options.name}, a ResNet", "a ViT or hybrid for that format",
            "use --format=orbax, which holds every model",
        )  # fmt: skip
    return shape


def _require(loaded: Loaded, format: str, **values: tuple[Any, ...]) -> None:
    """Raises WeightsError for an option whose value the format cannot say."""
    for name, allowed in {**_PLAIN, **values}.items():
        value = getattr(loaded.options, name)
        if value not in allowed:
            raise WeightsError(
                f"model.{name} = {value!r} in format {format}",
                f"{' or '.join(repr(a) for a in allowed)}",
                f"convert with --model.{name}={allowed[0]} if you accept another function of the"
                " same weights, or use --format=orbax, which holds every model",
            )


def _parameters(loaded: Loaded, *, with_table: bool) -> dict[str, np.ndarray]:
    """Returns our parameters by name; with a 1-D table also where positions are fixed or 2-D."""
    state = nnx.to_pure_dict(nnx.state(loaded.model))
    names, leaves = leaf_names(state), jax.tree.leaves(state)
    params = {name: np.asarray(leaf) for name, leaf in zip(names, leaves, strict=True)}
    kind = loaded.options.position_embedding
    model = loaded.model
    assert isinstance(model, ViT)
    if kind == "learned_1d" or (kind == "sincos_2d" and not with_table):
        return params
    table = model.position_embedding
    assert table is not None
    params = {n: a for n, a in params.items() if not n.startswith("position_embedding/")}
    rows = np.asarray(table(model.tokens))
    patches = model.grid[0] * model.grid[1]
    params[_TABLE] = np.concatenate([rows[:, : "class_token" in params], rows[:, -patches:]], 1)
    return params


def _square(loaded: Loaded) -> int:
    height, width = loaded.image_size
    if height != width:
        raise WeightsError(
            f"image size {height}x{width}", "a square image for that format",
            "use --format=timm or orbax",
        )  # fmt: skip
    return height


def _write_folder(
    path: Path, tensors: Mapping[str, np.ndarray], files: Mapping[str, Any]
) -> None:  # fmt: skip
    from safetensors.numpy import save_file

    path.mkdir()
    save_file(dict(tensors), path / "model.safetensors", metadata={"format": "pt"})
    # safetensors makes files that nobody else may read.
    mask = os.umask(0)
    os.umask(mask)
    (path / "model.safetensors").chmod(0o666 & ~mask)
    for name, content in files.items():
        (path / name).write_text(json.dumps(content, indent=2) + "\n")
