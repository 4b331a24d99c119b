"""safetensors files of timm: ViT, DeiT, DINOv2, DINOv3, image towers of CLIP and SigLIP."""

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vit_jax.data.device import IMAGENET_DEVIATION, IMAGENET_MEAN
from vit_jax.errors import WeightsError
from vit_jax.interop.formats import Format, Tensors, WeightsInfo, depth_of
from vit_jax.interop.name_table import (
    Flat,
    QueryValueBias,
    Row,
    Same,
    Shape,
    Split,
    TorchLinear,
    row,
    torch_linear_rows,
    torch_norm_rows,
    torch_patch_rows,
    write_rows,
)
from vit_jax.interop.normalization import normalization_of
from vit_jax.interop.tensors import TensorFile
from vit_jax.interop.vit_formats import (
    TABLE,
    check_keys,
    checked_options,
    grid_of,
    heads_of,
    vit_options,
    with_learned_table,
)
from vit_jax.models.family import EvalView

if TYPE_CHECKING:
    from vit_jax.interop.load import Loaded

_BLOCK = "blocks.{layer}"
# Registers: timm's, those of facebookresearch/dinov2, and DeiT's second token.
_REGISTERS = ("reg_token", "register_tokens", "dist_token")
# Key of pretrained_cfg that only this package writes and reads.
_ANTIALIAS = "vit_jax_antialias"
# timm's name of a pooling -> our name.
_POOLINGS = {"token": "token", "avg": "gap", "map": "map"}
# (width, rotary, mlp) -> heads of models that differ from others of that width: DINOv3-H+ and
# SigLIP-g. Source: timm.
_OTHER_HEADS = {(1280, True, "swiglu"): 20, (1536, False, "gelu"): 16}
# What timm's architectures have without setting it in config.json.
_HEADS_OF_NAME = {"vit_base_patch16_gap_224": 16}
_TANH_GELU = (
    r"vit_(base_patch32_siglip_(gap_)?256|large_patch16_siglip_(gap_)?512"
    r"|(so400m|giantopt)_patch16_siglip_.*)"
)
_QUICK_GELU = r"vit_.*_clip_quickgelu_.*"
# timm's activation -> options.
_ACTIVATIONS = {
    "gelu": {"mlp": "gelu", "gelu_approximate": False},
    "gelu_tanh": {"mlp": "gelu", "gelu_approximate": True},
    "quick_gelu": {"mlp": "quick_gelu"},
}
# Keys of config.json that are read, show in the shapes, or change nothing in evaluation.
_KEYS = (
    "architecture", "num_classes", "num_features", "global_pool", "model_args", "pretrained_cfg",
    "label_names", "label_descriptions",
)  # fmt: skip
_ARGUMENTS = (
    "img_size", "patch_size", "num_heads", "act_layer", "global_pool", "pos_embed",
    "embed_dim", "depth", "mlp_ratio", "qkv_bias", "init_values", "class_token", "reg_tokens",
    "no_embed_class", "pre_norm", "fc_norm", "num_classes", "in_chans", "drop_rate",
    "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate",
    "weight_init", "fix_init", "dynamic_img_size", "dynamic_img_pad", "strict_img_size",
)  # fmt: skip
# Arguments that are not read, with the value that changes nothing.
_NEUTRAL = {
    "pool_include_prefix": False, "final_norm": True, "qk_norm": False, "proj_bias": True,
    "scale_attn_norm": False, "scale_mlp_norm": False,
}  # fmt: skip


def recognise(file: TensorFile) -> TensorFile | None:
    """Returns the file if it is a ViT of timm, else None."""
    known = {"blocks.0.attn.qkv.weight", "patch_embed.proj.weight"} <= file.shapes.keys()
    return file if known else None


def describe(file: TensorFile, given: Mapping[str, Any]) -> WeightsInfo:
    """Reads the architecture from the shapes, and from timm's config.json if there is one."""
    config, shapes = _read_config(file), file.shapes
    named, arguments = (
        config.get("architecture", "").partition(".")[0],
        config.get("model_args", {}),
    )
    _check_parts(file, named)
    width, _, patch, _ = shapes["patch_embed.proj.weight"]
    given = _read_sizes(config, patch) | dict(given)
    position = _read_position(file, named, arguments.get("pos_embed"))
    rotary = position == "rope_2d"
    mlp, hidden = _read_mlp(file)
    heads = given.get("num_heads") or _HEADS_OF_NAME.get(named)
    heads = heads or _OTHER_HEADS.get((width, rotary, mlp))
    num_heads = heads or heads_of(width, given)
    options = vit_options(
        width=width,
        depth=depth_of(shapes, "blocks.{layer}.attn.qkv.weight"),
        mlp_dim=hidden,
        num_heads=num_heads,
        patch_size=patch,
    )
    if mlp == "swiglu":
        options["mlp_dim"] = hidden
    has_class_token, has_norm = "cls_token" in shapes, "norm_pre.weight" in shapes
    is_clip = has_norm and ("_clip_" in named or not config)
    registers = next((shapes[name][1] for name in _REGISTERS if name in shapes), 0)
    pooling = _read_pooling(file, rotary, config.get("global_pool", arguments.get("global_pool")))
    scale = next((n for n in ("blocks.0.ls1.gamma", "blocks.0.gamma_1") if n in shapes), None)
    options |= {
        "pooling": pooling,
        "class_token": has_class_token if has_class_token != (pooling == "token") else None,
        "num_registers": registers,
        "register_head": "head_dist.weight" in shapes,
        "layer_scale": 1e-5 if scale else None,
        "mlp": mlp,
        "embedding_norm": has_norm,
        "norm_placement": "res_post" if "_rpn_" in named else "pre",
        "norm_after_pooling": "fc_norm.weight" in shapes,
        "norm_epsilon": 1e-5 if rotary or is_clip else 1e-6,
        "qkv_bias": any(f"blocks.0.attn.{n}" in shapes for n in ("qkv.bias", "q_bias")),
        "position_embedding": position,
    }
    if mlp == "gelu":
        options |= _read_activation(file, named, arguments.get("act_layer"))
    image_size, place = None, None
    if position == "learned_1d":
        rows, prefix = shapes["pos_embed"][1], has_class_token + registers
        grid = grid_of(rows, prefix, given, patch)
        image_size = (grid[0] * patch, grid[1] * patch)
        if registers and rows == prefix + grid[0] * grid[1]:
            place = int(has_class_token)
    labels = config.get("label_names", ())
    labels = labels if isinstance(labels, list) else ()
    head, pretrained = shapes.get("head.weight"), config.get("pretrained_cfg", {})
    normalization, assumed = None, _assumed(options, num_heads)
    if config:
        assumed = {key: assumed[key] for key in ("normalization", "crop")}
    if pretrained:  # timm fills what is missing with ImageNet's values.
        mean, std = (pretrained.get(key) for key in ("mean", "std"))
        normalization = normalization_of(mean or IMAGENET_MEAN, std or IMAGENET_DEVIATION)
        assumed = {}
    return WeightsInfo(
        "timm safetensors",
        options,
        head[0] if head else 0,
        image_size,
        tuple(
            name_table(
                eva=rotary,
                registers=next((name for name in _REGISTERS if name in shapes), "reg_token"),
                register_rows=place,
                patch_bias="patch_embed.proj.bias" in shapes,
                norm="fc_norm" if "fc_norm.weight" in shapes else "norm",
            )
        ),
        class_names=tuple(map(str, labels)) if head and len(labels) == head[0] else None,
        view=_eval_view(pretrained),
        normalization=normalization,
        assumed=assumed,
        unused=(r"rope\..*", "mask_token"),
    )


def _assumed(options: Mapping[str, Any], num_heads: int) -> dict[str, str]:
    """Returns argument of `load_pretrained` -> its value in a file without config.json."""
    found = {
        "normalization": "images in [-1, 1]",
        "crop": "a central crop of 0.875",
        "pooling": f"pooling {options['pooling']!r}",
        "num_heads": f"{num_heads} attention heads",
    }
    return found | ({"mlp": "the exact GELU"} if options["mlp"] == "gelu" else {})


def _eval_view(pretrained: Mapping[str, Any]) -> EvalView:
    """Returns the crop and filter of timm's evaluation, bicubic if a config names no filter."""
    view = EvalView(
        central_fraction=pretrained.get("crop_pct") or 0.875,
        antialias=bool(pretrained.get(_ANTIALIAS, True)),
        interpolation=pretrained.get("interpolation") or ("bicubic" if pretrained else "bilinear"),
    )
    fraction, mode = view.central_fraction, pretrained.get("crop_mode") or "center"
    if not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise WeightsError(
            f"config.json of a model with crop_pct {fraction!r}",
            "a number above 0, at most 1",
            "change it there; `predict` will follow it",
        )
    for key, known in (
        ("crop_mode", ("center", "squash", None)),
        ("interpolation", ("bilinear", "bicubic", None)),
    ):
        if pretrained.get(key) not in known:
            raise WeightsError(
                f"config.json of a model with {key} {pretrained[key]!r}",
                f"{known[0]!r} or {known[1]!r}",
                "change it there; `predict` will follow it",
            )
    if mode == "center":
        return view
    if fraction == 1:
        return EvalView("resize", antialias=view.antialias, interpolation=view.interpolation)
    return dataclasses.replace(view, crop="squash_central")


def _read_config(file: TensorFile) -> Mapping[str, Any]:
    """Returns config.json without empty values, after a check of its keys."""
    config = {key: value for key, value in file.config().items() if value is not None}
    if flat := [key for key in ("mean", "input_size", "crop_pct") if key in config]:
        raise WeightsError(
            f"config.json of {file.path.parent} with {flat[0]} at the top, as in an old timm",
            "the keys of the preprocessing in pretrained_cfg",
            "move them there",
        )
    arguments = config.get("model_args", {})
    poolings = {part["global_pool"] for part in (config, arguments) if part.get("global_pool")}
    if len(poolings) > 1:
        raise WeightsError(
            f"config.json of {file.path.parent} with two values of global_pool",
            "the same value at the top and in model_args",
            "delete the one that the model was not trained with",
        )
    check_keys(file, config, _KEYS)
    check_keys(
        file,
        {key: value for key, value in arguments.items() if value != _NEUTRAL.get(key)},
        _ARGUMENTS,
        of="model_args.",
    )
    return config


def _check_parts(file: TensorFile, named: str) -> None:
    """Raises WeightsError for a kind of model that shares only the names of its tensors."""
    shapes, what = file.shapes, named or "a model"
    norms = ("norm.weight", "fc_norm.weight")
    if shapes["patch_embed.proj.weight"][1] != 3:
        problem, wanted = f"takes {shapes['patch_embed.proj.weight'][1]} channels", "3 channels"
    elif "blocks.0.norm1.weight" in shapes and "blocks.0.norm1.bias" not in shapes:
        problem, wanted = "normalises with RMSNorm", "LayerNorm"
    elif not any(norm in shapes for norm in norms):
        problem, wanted = "has no final LayerNorm", f"one of {', '.join(norms)}"
    elif all(norm in shapes for norm in norms):
        problem, wanted = "has two final LayerNorms", f"one of {', '.join(norms)}"
    else:
        return
    raise WeightsError(
        f"{file.path}: {what} {problem}", wanted, "this kind of model is not supported"
    )


def _read_position(file: TensorFile, named: str, argument: str | None) -> str:
    """Returns our name of the position embedding."""
    if argument == "none":
        return "none"
    has_rotations = "_rope_" in named or any(name.startswith("rope.") for name in file.shapes)
    # EVA-02 and PE have a table and rotations, which leave no tensor.
    is_eva = _read_mlp(file)[0] == "swiglu" and "blocks.0.attn.q_bias" in file.shapes
    is_pe = {"norm_pre.weight", "attn_pool.latent"} <= file.shapes.keys()
    has_rotations |= is_eva or is_pe or re.match("eva02_|vit_pe_", named) is not None
    if "pos_embed" in file.shapes and not has_rotations:
        return "learned_1d"
    # DINOv3 has registers, and the periods of its rotations in a buffer.
    is_dinov3 = "dinov3" in named or (not named and "reg_token" in file.shapes)
    if is_dinov3 and "rope.freqs" not in file.shapes and "pos_embed" not in file.shapes:
        return "rope_2d"
    raise WeightsError(
        f"{file.path}: {named or 'a model'} has an unknown kind of position embedding",
        "a table of one vector per token, or the rotary embedding of DINOv3",
        "this kind of model is not supported",
    )


def _read_activation(file: TensorFile, named: str, argument: str | None) -> Mapping[str, Any]:
    """Returns the options of the activation in config.json, else of that of the architecture."""
    if argument is None:
        tanh, quick = (re.fullmatch(p, named) for p in (_TANH_GELU, _QUICK_GELU))
        argument = "gelu_tanh" if tanh else "quick_gelu" if quick else "gelu"
    argument = {"quickgelu": "quick_gelu"}.get(argument, argument)
    if argument not in _ACTIVATIONS:
        raise WeightsError(
            f"config.json of {file.path.parent} with act_layer {argument!r}",
            f"one of {', '.join(_ACTIVATIONS)}",
            "this activation is not supported",
        )
    return _ACTIVATIONS[argument]


def _read_sizes(config: Mapping[str, Any], patch: int) -> dict[str, Any]:
    """Returns heads and grid from config.json if they are there. Shapes do not determine them."""
    arguments = config.get("model_args", {})
    sizes = {k: arguments[k] for k in ("num_heads",) if k in arguments}
    stored = (config.get("pretrained_cfg", {}).get("input_size") or (3,))[1:]
    if size := arguments.get("img_size", stored):
        height, width = (size, size) if isinstance(size, int) else size
        sizes["stored_grid"] = (height // patch, width // patch)
    return sizes


@dataclasses.dataclass(frozen=True)
class _RegistersWithRows:
    """Registers that have vectors in the position table, e.g. DeiT's second token; ours have none.

    The vectors are added to the registers, which changes no output.
    """

    first: int  # Row of the first register.

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]:
        del shapes  # The table may be for another grid.
        registers, table = theirs
        rows = slice(self.first, self.first + registers.shape[1])
        return [registers + table[:, rows], np.delete(table, rows, axis=1)]

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]:
        registers, table = ours
        at = [self.first] * registers.shape[1]
        return [registers, np.insert(table, at, 0, axis=1)]


def name_table(
    *,
    eva: bool = False,
    registers: str = "reg_token",
    register_rows: int | None = None,
    patch_bias: bool = True,
    norm: str = "norm",
) -> list[Row]:
    """Returns the rows of a ViT.

    Args:
        eva: the rows of DINOv3, which is another class in timm.
        registers: timm's name of the registers.
        register_rows: the first row of the registers in the position table; None: they have none.
        patch_bias: whether the patch embedding has a bias.
        norm: timm's name of the final LayerNorm.
    """
    ours, table, tokens = (
        "encoder/blocks",
        "position_embedding/table",
        [row("registers", registers, Same()), row("position_embedding/table", "pos_embed", Same())],
    )
    if register_rows is not None:
        layout = _RegistersWithRows(register_rows)
        tokens = [row(("registers", table), (registers, "pos_embed"), layout)]
    return [
        *torch_patch_rows("patch_embed.proj", bias=patch_bias),
        row("class_token", "cls_token", Same()),
        *tokens,
        *torch_norm_rows("embedding_norm", "norm_pre"),
        *torch_norm_rows(f"{ours}/attention_norm", f"{_BLOCK}.norm1"),
        *torch_linear_rows(f"{ours}/attention/qkv", f"{_BLOCK}.attn.qkv"),
        row(
            f"{ours}/attention/qkv/bias",
            (f"{_BLOCK}.attn.q_bias", f"{_BLOCK}.attn.v_bias"),
            QueryValueBias(),
        ),
        *torch_linear_rows(f"{ours}/attention/out", f"{_BLOCK}.attn.proj", input_axes=2),
        row(f"{ours}/attention_scale", f"{_BLOCK}.{'gamma_1' if eva else 'ls1.gamma'}", Same()),
        *torch_norm_rows(f"{ours}/mlp_norm", f"{_BLOCK}.norm2"),
        *torch_linear_rows(f"{ours}/mlp/expand", f"{_BLOCK}.mlp.fc1"),
        *_gated_rows(f"{ours}/mlp", f"{_BLOCK}.mlp"),
        *torch_linear_rows(f"{ours}/mlp/contract", f"{_BLOCK}.mlp.fc2"),
        row(f"{ours}/mlp_scale", f"{_BLOCK}.{'gamma_2' if eva else 'ls2.gamma'}", Same()),
        *torch_norm_rows("norm", norm),
        *_pooling_rows(),
        *torch_linear_rows("head/linear", "head"),
        *torch_linear_rows("register_head/linear", "head_dist"),
    ]


def _gated_rows(ours: str, theirs: str) -> list[Row]:
    """Returns the rows of SwiGLU: gate and value in one layer (DINOv2) or in two (DINOv3)."""
    both = tuple(f"{ours}/{name}" for name in ("gate", "value"))
    return [
        *torch_linear_rows(both[0], f"{theirs}.fc1_g"),
        *torch_linear_rows(both[1], f"{theirs}.fc1_x"),
        row([f"{n}/kernel" for n in both], f"{theirs}.fc1.weight", Split(TorchLinear())),
        row([f"{n}/bias" for n in both], f"{theirs}.fc1.bias", Split(Flat())),
    ]


def _pooling_rows() -> list[Row]:
    both = ("attention_pooling/key", "attention_pooling/value")
    return [
        row("attention_pooling/probe", "attn_pool.latent", Same()),
        *torch_linear_rows("attention_pooling/query", "attn_pool.q"),
        row([f"{n}/kernel" for n in both], "attn_pool.kv.weight", Split(TorchLinear())),
        row([f"{n}/bias" for n in both], "attn_pool.kv.bias", Split(Flat())),
        *torch_linear_rows("attention_pooling/out", "attn_pool.proj", input_axes=2),
        *torch_norm_rows("attention_pooling/norm", "attn_pool.norm"),
        *torch_linear_rows("attention_pooling/mlp/expand", "attn_pool.mlp.fc1"),
        *torch_linear_rows("attention_pooling/mlp/contract", "attn_pool.mlp.fc2"),
    ]


def _read_pooling(file: TensorFile, rotary: bool, named: str | None) -> str:
    """Returns our name of the pooling. Uses `global_pool` if config.json has it."""
    if named:
        if named not in _POOLINGS:
            raise WeightsError(
                f"{file.path} is pooled by {named!r}",
                f"one of {', '.join(_POOLINGS)}",
                "change global_pool in config.json",
            )
        return _POOLINGS[named]
    if "attn_pool.latent" in file.shapes:
        return "map"
    # DINOv3 has a class token, but timm pools the mean of the patches.
    pools_mean = rotary or "fc_norm.weight" in file.shapes
    return "token" if "cls_token" in file.shapes and not pools_mean else "gap"


def _read_mlp(file: TensorFile) -> tuple[str, int]:
    """Returns the kind of a block's MLP and its number of hidden features."""
    shapes = file.shapes
    first, gate, second = (f"blocks.0.mlp.{n}.weight" for n in ("fc1", "fc1_g", "fc2"))
    if second not in shapes or not {first, gate} & shapes.keys():
        raise WeightsError(
            f"{file.path} has blocks with unknown parts",
            "blocks with mlp.fc1 and mlp.fc2",
            "check where the file comes from",
        )
    hidden = shapes[second][1]
    return ("gelu" if shapes.get(first, (0,))[0] == hidden else "swiglu"), hidden


# Width -> size of the timm architecture to name in config.json, which overrides all its sizes.
_ARCHITECTURES = {192: "tiny", 384: "small", 768: "base", 1024: "large"}


def to_tensors(loaded: "Loaded") -> Tensors:
    """Returns a folder that `timm.create_model("local-dir:PATH", pretrained=True)` loads."""
    options, shape = checked_options(
        loaded,
        "timm",
        norm_epsilon=(1e-6,),
        mlp=("gelu",),
        embedding_norm=(False,),
        pooling=tuple(_POOLINGS.values()),
    )
    params, model = with_learned_table(loaded), loaded.model
    assert model.num_tokens is not None
    prefix = model.num_prefix
    if options.num_registers and "class_token" in params:
        # In timm either all prefix tokens have a position embedding or none of them.
        params["class_token"] = params["class_token"] + params[TABLE][:, :1]
        params[TABLE] = params[TABLE][:, 1:]
    pooling = {ours: theirs for theirs, ours in _POOLINGS.items()}[options.pooling]
    arguments = {
        "img_size": list(loaded.image_size),
        "patch_size": shape.patch_size,
        "embed_dim": shape.width,
        "depth": shape.depth,
        "num_heads": shape.num_heads,
        # timm computes int(width * mlp_ratio). The extra half feature prevents rounding down.
        "mlp_ratio": (shape.mlp_dim + 0.5) / shape.width,
        "qkv_bias": options.qkv_bias,
        "init_values": options.layer_scale,
        "class_token": "class_token" in params,
        "reg_tokens": options.num_registers,
        "no_embed_class": prefix > 0 and params[TABLE].shape[1] == model.num_tokens - prefix,
        "global_pool": pooling,
        "fc_norm": False,
        "act_layer": "gelu_tanh" if options.gelu_approximate else "gelu",
    }
    config = {
        "architecture": f"vit_{_ARCHITECTURES.get(shape.width, 'base')}_patch16_224",
        "num_classes": loaded.num_classes,
        "num_features": shape.width,
        "global_pool": pooling,
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [3, *loaded.image_size],
            "fixed_input_size": True,
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
            "crop_pct": 1.0 if loaded.view.crop == "resize" else loaded.view.central_fraction,
            "interpolation": loaded.view.interpolation,
            "crop_mode": "center" if loaded.view.crop == "central" else "squash",
            "num_classes": loaded.num_classes,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }
    if not loaded.view.antialias:
        config["pretrained_cfg"][_ANTIALIAS] = False
    if loaded.class_names:
        config["label_names"] = list(loaded.class_names)
    return Tensors(write_rows(name_table(), params), {"config.json": config})


FORMAT = Format(
    name="timm",
    reads=("timm",),
    container="safetensors",
    recognise=recognise,
    describe=describe,
    to_tensors=to_tensors,
)
