"""safetensors files of timm: ViT, DeiT, DINOv2 with registers, DINOv3, SigLIP image towers."""

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

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
_DEIT_TOKEN = "dist_token"
# Key of pretrained_cfg that only this package writes and reads.
_ANTIALIAS = "vit_jax_antialias"
# timm's name of a pooling -> our name.
_POOLINGS = {"token": "token", "avg": "gap", "map": "map"}
# (width, rotary, mlp) -> heads of models that differ from others of that width: DINOv3-H+ and
# SigLIP-g. Source: timm.
_OTHER_HEADS = {(1280, True, "swiglu"): 20, (1536, False, "gelu"): 16}
# timm's architectures that use the tanh approximation of GELU without setting it in config.json.
_TANH_GELU = (
    r"vit_(base_patch32_siglip_256|large_patch16_siglip_(gap_)?512"
    r"|(so400m|giantopt)_patch16_siglip_.*)"
)


def recognise(file: TensorFile) -> TensorFile | None:
    """Returns the file with plain tensor names if it is a ViT of timm, else None."""
    plain = {name.removeprefix("model."): name for name in file.shapes}
    known = {"blocks.0.attn.qkv.weight", "patch_embed.proj.weight"} <= plain.keys()
    return file.renamed(plain) if known else None


def describe(file: TensorFile, given: Mapping[str, Any]) -> WeightsInfo:
    """Reads the architecture from the shapes, and from timm's config.json if there is one.

    Raises:
        WeightsError: neither the file nor the caller's options contain a size.
    """
    config = file.config()
    if "_rope_" in (named := config.get("architecture", "")) or "rope.freqs" in file.shapes:
        raise WeightsError(
            f"{file.path}, {named or 'a model with learned rotations'}",
            "the rotary embedding of DINOv3",
            "this kind of rotary embedding is not supported",
        )
    shapes, arguments = file.shapes, config.get("model_args", {})
    given = _read_sizes(arguments) | dict(given)
    width, _, patch, _ = shapes["patch_embed.proj.weight"]
    # Only DINOv3 has no position table. It rotates queries and keys instead.
    rotary = "pos_embed" not in shapes
    mlp, hidden = _read_mlp(file)
    heads = given.get("num_heads") or _OTHER_HEADS.get((width, rotary, mlp))
    options = vit_options(
        width=width,
        depth=depth_of(shapes, "blocks.{layer}.attn.qkv.weight"),
        mlp_dim=hidden,
        num_heads=heads or heads_of(width, given),
        patch_size=patch,
    )
    if mlp == "swiglu":
        options["mlp_dim"] = hidden
    has_class_token, is_deit = "cls_token" in shapes, _DEIT_TOKEN in shapes
    registers = shapes["reg_token"][1] if "reg_token" in shapes else int(is_deit)
    pooling = _read_pooling(file, rotary, config.get("global_pool"))
    tanh = re.fullmatch(_TANH_GELU, config.get("architecture", ""))
    scale = next((n for n in ("blocks.0.ls1.gamma", "blocks.0.gamma_1") if n in shapes), None)
    options |= {
        "pooling": pooling,
        "class_token": has_class_token if has_class_token != (pooling == "token") else None,
        "num_registers": registers,
        "register_head": "head_dist.weight" in shapes,
        "layer_scale": 1e-5 if scale else None,
        "mlp": mlp,
        "gelu_approximate": arguments.get("act_layer", tanh and "gelu_tanh") == "gelu_tanh",
        "norm_epsilon": 1e-5 if rotary else 1e-6,
        "qkv_bias": any(f"blocks.0.attn.{n}" in shapes for n in ("qkv.bias", "q_bias")),
        "position_embedding": "rope_2d" if rotary else "learned_1d",
    }
    image_size = None
    if not rotary:
        grid = grid_of(shapes["pos_embed"][1], has_class_token + is_deit, given)
        image_size = (grid[0] * patch, grid[1] * patch)
    labels = config.get("label_names") or ()
    head, pretrained = shapes.get("head.weight"), config.get("pretrained_cfg", {})
    return WeightsInfo(
        "timm safetensors",
        options,
        head[0] if head else 0,
        image_size,
        tuple(name_table(eva=rotary, deit=is_deit)),
        class_names=tuple(labels) if head and len(labels) == head[0] else None,
        view=_eval_view(pretrained),
        normalization=normalization_of(pretrained.get("mean"), pretrained.get("std")),
        unused=(r"rope\..*", "mask_token"),
    )


def _eval_view(pretrained: Mapping[str, Any]) -> EvalView:
    """Returns the crop and filter of timm's evaluation. Filters other than bicubic are bilinear."""
    view = EvalView(
        crop="resize" if pretrained.get("crop_mode") == "squash" else "central",
        central_fraction=float(pretrained.get("crop_pct") or 0.875),
        antialias=bool(pretrained.get(_ANTIALIAS, True)),
        interpolation="bicubic" if pretrained.get("interpolation") == "bicubic" else "bilinear",
    )
    if view.crop == "resize":
        return dataclasses.replace(view, central_fraction=EvalView().central_fraction)
    return view


def _read_sizes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns heads and grid from config.json if they are there. Shapes do not determine them."""
    sizes = {k: arguments[k] for k in ("num_heads",) if k in arguments}
    if "img_size" in arguments and "patch_size" in arguments:
        size, patch = arguments["img_size"], arguments["patch_size"]
        height, width = (size, size) if isinstance(size, int) else size
        sizes["grid"] = (height // patch, width // patch)
    return sizes


@dataclasses.dataclass(frozen=True)
class _DeitTokens:
    """The second token of DeiT, which has a vector in the position table; our registers have none.

    The vector is added to the token, which changes no output.
    """

    def read(self, theirs: list[np.ndarray], shapes: list[Shape]) -> list[np.ndarray]:
        del shapes  # The table may be for another grid.
        token, table = theirs
        return [token + table[:, 1:2], np.delete(table, 1, axis=1)]

    def write(self, ours: list[np.ndarray]) -> list[np.ndarray]:
        register, table = ours
        return [register, np.insert(table, 1, 0, axis=1)]


def name_table(*, eva: bool = False, deit: bool = False) -> list[Row]:
    """Returns the rows of a ViT.

    Args:
        eva: the rows of DINOv3, which is another class in timm.
        deit: the rows of a DeiT with two tokens and two heads.
    """
    ours = "encoder/blocks"
    tokens = ("registers", "position_embedding/table")
    return [
        *([row(tokens, (_DEIT_TOKEN, "pos_embed"), _DeitTokens())] if deit else []),
        *torch_patch_rows("patch_embed.proj"),
        row("class_token", "cls_token", Same()),
        row("registers", "reg_token", Same()),
        *([] if deit else [row("position_embedding/table", "pos_embed", Same())]),
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
        *torch_norm_rows("norm", "norm"),
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
    return "token" if "cls_token" in file.shapes and not rotary else "gap"


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
    """Returns a folder that `timm.create_model("local-dir:PATH", pretrained=True)` loads.

    Raises:
        WeightsError: a model that timm's ViT cannot represent.
    """
    options, shape = checked_options(
        loaded, "timm", norm_epsilon=(1e-6,), mlp=("gelu",), pooling=tuple(_POOLINGS.values())
    )
    params, model = with_learned_table(loaded), loaded.model
    assert model.tokens is not None
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
        "no_embed_class": prefix > 0 and params[TABLE].shape[1] == model.tokens - prefix,
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
            "crop_pct": loaded.view.central_fraction,
            "interpolation": loaded.view.interpolation,
            "crop_mode": "squash" if loaded.view.crop == "resize" else "center",
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
