"""npz files of google-research/vision_transformer and big_vision: ViTs and hybrids.

Both have the same tensors with slightly different names. Modules are numbered together (files from
before Flax Linen) or separately by type. The position table has one of three names. big_vision may
stack all layers in one tensor.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vit_jax.errors import WeightsError
from vit_jax.interop.formats import Format, Tensors, WeightsInfo, depth_of
from vit_jax.interop.name_table import Row, Same, Stacked, row, write_rows
from vit_jax.interop.tensors import TensorFile
from vit_jax.interop.vit_formats import (
    checked_options,
    grid_of,
    square_side,
    vit_options,
    with_learned_table,
)
from vit_jax.models.resnet import RESNET_UNITS, ResNetShape
from vit_jax.models.vit_family import VIT, VIT_SIZES
from vit_jax.models.vit_options import ViTShape

if TYPE_CHECKING:
    from vit_jax.interop.load import Loaded

BLOCK = "Transformer/encoderblock_{layer}"
_SCANNED_BLOCK = "Transformer/encoderblock"
# Names of a block's first and second LayerNorm, attention and MLP.
_NUMBERED_TOGETHER = ("LayerNorm_0", "LayerNorm_2", "MultiHeadDotProductAttention_1", "MlpBlock_3")
_NUMBERED_BY_TYPE = ("LayerNorm_0", "LayerNorm_1", "MultiHeadDotProductAttention_0", "MlpBlock_0")
# Names of the position table. The first is the one of vision_transformer.
_TABLES = ("Transformer/posembed_input/pos_embedding", "pos_embedding", "Transformer/pos_embedding")


def recognise(file: TensorFile) -> TensorFile | None:
    """Returns the file with plain tensor names if it is a ViT or hybrid, else None."""
    names = {_plain_name(name): name for name in file.shapes if not name.startswith("opt/")}
    blocks = any(n.startswith(_SCANNED_BLOCK) for n in names)
    return file.renamed(names) if blocks and "embedding/kernel" in names else None


def _plain_name(name: str) -> str:
    """Removes the prefix `params/`, and adds `MAPHead_0/` to the names of files that omit it."""
    name = name.removeprefix("params/")
    inlined = name == "probe" or name.split("/")[0] in _NUMBERED_BY_TYPE
    return f"MAPHead_0/{name}" if inlined else name


def describe(file: TensorFile, given: Mapping[str, Any]) -> WeightsInfo:
    """Reads the architecture from the shapes."""
    shapes = file.shapes
    block, generation = block_names(shapes)
    first = block.format(layer=0)
    scanned = block is _SCANNED_BLOCK
    key_shape = shapes[f"{first}/{generation[2]}/key/kernel"]
    mlp_shape = shapes[f"{first}/{generation[3]}/Dense_0/kernel"]
    depth = key_shape[0] if scanned else depth_of(shapes, f"{BLOCK}/LayerNorm_0/scale")
    patch, _, channels, width = shapes["embedding/kernel"]
    stem = _read_stem(shapes)
    sizes = {"width": width, "depth": depth, "mlp_dim": mlp_shape[-1], "num_heads": key_shape[-2]}
    if stem is None and channels == 3:
        options = vit_options(**sizes, patch_size=patch)
        stride = patch
    else:
        options, stride = _hybrid_options(ViTShape(**sizes, patch_size=patch, stem=stem), file)
    pooling = "token" if "cls" in shapes else "map" if "MAPHead_0/probe" in shapes else "gap"
    options |= {"pooling": pooling}
    table = next((t for t in _TABLES if t in shapes), None)
    image_size = None
    if table is None:
        options["position_embedding"] = "sincos_2d"
    else:
        grid = grid_of(shapes[table][1], pooling == "token", given, stride)
        image_size = (grid[0] * stride, grid[1] * stride)
    if "pre_logits/kernel" in shapes:
        options["representation_size"] = shapes["pre_logits/kernel"][1]
    return WeightsInfo(
        "vision_transformer npz" if table == _TABLES[0] else "big_vision npz",
        options,
        shapes["head/kernel"][1] if "head/kernel" in shapes else 0,
        image_size,
        tuple(name_table(block, generation, table or _TABLES[0], stem)),
    )


def block_names(shapes: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Returns the name of an encoder block, which starts with "Transformer/", and of its parts."""
    block = BLOCK if BLOCK.format(layer=0) + "/LayerNorm_0/scale" in shapes else _SCANNED_BLOCK
    first = block.format(layer=0)
    for parts in (_NUMBERED_TOGETHER, _NUMBERED_BY_TYPE):
        if {
            f"{first}/{parts[2]}/key/kernel",
            f"{first}/{parts[3]}/Dense_0/kernel",
        } <= shapes.keys():
            return block, parts
    raise WeightsError(
        "a file that has encoder blocks with unknown parts",
        "blocks of vision_transformer or big_vision",
        "check where the file comes from",
    )


def parts_of(*, together: bool = False) -> tuple[str, ...]:
    """Returns the names of a block's parts, numbered together or by type."""
    return _NUMBERED_TOGETHER if together else _NUMBERED_BY_TYPE


def table_of(has_class_token: bool) -> str:
    """Returns the name of the position table: vision_transformer's with a class token."""
    return _TABLES[0] if has_class_token else _TABLES[1]


def to_tensors(loaded: "Loaded") -> Tensors:
    """Returns the tensors of a model under the names of vision_transformer.

    A model without a class token gets the names of big_vision.
    """
    has_class_token = getattr(loaded.options, "pooling", None) == "token"
    options, shape = checked_options(
        loaded,
        "vision_transformer",
        gelu_approximate=(True,),
        norm_epsilon=(1e-6,),
        qkv_bias=(True,),
        pooling=("token", "gap", "map"),
        class_token=(None, has_class_token),
    )
    if shape.stem is not None and shape.stem.small:
        raise WeightsError(
            f"{options.name}, whose stem is for small images",
            "a stem with a 7x7 root",
            "use format orbax, which holds every model",
        )
    square_side(loaded)  # The files do not store the grid of the position table.
    parts, table = parts_of(together=has_class_token), table_of(has_class_token)
    rows = name_table(BLOCK, parts, table, shape.stem)
    return Tensors(write_rows(rows, with_learned_table(loaded, sincos=has_class_token)))


def name_table(
    block: str, parts: tuple[str, ...], table: str, stem: ResNetShape | None
) -> list[Row]:
    """Returns the rows of a ViT or hybrid.

    `block` contains `{layer}` unless all layers are in one tensor. `parts` are the names of a
    block's LayerNorms, attention and MLP, `table` is the name of the position table.
    """
    return [
        *(_stem_rows(stem) if stem else ()),
        row("patch_embedding/kernel", "embedding/kernel", Same()),
        row("patch_embedding/bias", "embedding/bias", Same()),
        row("class_token", "cls", Same()),
        row("position_embedding/table", table, Same()),
        *encoder_rows(block, parts),
        *pooling_rows(),
        row("head/pre_logits/kernel", "pre_logits/kernel", Same()),
        row("head/pre_logits/bias", "pre_logits/bias", Same()),
        row("head/linear/kernel", "head/kernel", Same()),
        row("head/linear/bias", "head/bias", Same()),
    ]


def encoder_rows(block: str, parts: tuple[str, ...]) -> list[Row]:
    """Returns the rows of the blocks and of the final LayerNorm; arguments as in `name_table`."""
    layer_axes = 0 if "{layer}" in block else 1
    return [
        *_block_rows("encoder/blocks", block, parts, layer_axes),
        row("norm/scale", "Transformer/encoder_norm/scale", Same()),
        row("norm/bias", "Transformer/encoder_norm/bias", Same()),
    ]


def _block_rows(ours: str, theirs: str, parts: tuple[str, ...], layer_axes: int) -> list[Row]:
    norm_1, norm_2, attention, mlp = (f"{theirs}/{part}" for part in parts)

    def qkv(leaf: str) -> tuple[str, ...]:
        return tuple(f"{attention}/{name}/{leaf}" for name in ("query", "key", "value"))

    return [
        row(f"{ours}/attention_norm/scale", f"{norm_1}/scale", Same()),
        row(f"{ours}/attention_norm/bias", f"{norm_1}/bias", Same()),
        row(f"{ours}/attention/qkv/kernel", qkv("kernel"), Stacked(1 + layer_axes, Same())),
        row(f"{ours}/attention/qkv/bias", qkv("bias"), Stacked(layer_axes, Same())),
        row(f"{ours}/attention/out/kernel", f"{attention}/out/kernel", Same()),
        row(f"{ours}/attention/out/bias", f"{attention}/out/bias", Same()),
        row(f"{ours}/mlp_norm/scale", f"{norm_2}/scale", Same()),
        row(f"{ours}/mlp_norm/bias", f"{norm_2}/bias", Same()),
        *_mlp_rows(f"{ours}/mlp", mlp),
    ]


def _mlp_rows(ours: str, theirs: str) -> list[Row]:
    return [
        row(f"{ours}/{our}/{leaf}", f"{theirs}/{their}/{leaf}", Same())
        for our, their in (("expand", "Dense_0"), ("contract", "Dense_1"))
        for leaf in ("kernel", "bias")
    ]


def pooling_rows() -> list[Row]:
    """Returns the rows of the MAP head."""
    attention = "MAPHead_0/MultiHeadDotProductAttention_0"
    return [
        row("attention_pooling/probe", "MAPHead_0/probe", Same()),
        *(
            row(f"attention_pooling/{name}/{leaf}", f"{attention}/{name}/{leaf}", Same())
            for name in ("query", "key", "value", "out")
            for leaf in ("kernel", "bias")
        ),
        row("attention_pooling/norm/scale", "MAPHead_0/LayerNorm_0/scale", Same()),
        row("attention_pooling/norm/bias", "MAPHead_0/LayerNorm_0/bias", Same()),
        *_mlp_rows("attention_pooling/mlp", "MAPHead_0/MlpBlock_0"),
    ]


def _stem_rows(stem: ResNetShape) -> list[Row]:
    """Returns the rows of a hybrid's ResNet."""
    rows = [row("stem/conv_root/kernel", "conv_root/kernel", Same())]
    rows += [row(f"stem/norm_root/{leaf}", f"gn_root/{leaf}", Same()) for leaf in ("scale", "bias")]
    for stage, count in enumerate(stem.units, 1):
        rows += _unit_rows(f"stem/stage{stage}/first", f"block{stage}/unit1", 1)
        if count > 1:
            rows += _unit_rows(f"stem/stage{stage}/blocks", f"block{stage}/unit{{layer}}", 2)
    return rows


def _unit_rows(ours: str, theirs: str, first: int) -> list[Row]:
    rows = []
    for suffix in ("1", "2", "3", "_proj"):
        conv = row(f"{ours}/conv{suffix}/kernel", f"{theirs}/conv{suffix}/kernel", Same(), first)
        norms = [
            row(f"{ours}/norm{suffix}/{leaf}", f"{theirs}/gn{suffix}/{leaf}", Same(), first)
            for leaf in ("scale", "bias")
        ]
        rows += [conv, *norms]
    return rows


def _read_stem(shapes: Mapping[str, tuple[int, ...]]) -> ResNetShape | None:
    if "conv_root/kernel" not in shapes:
        return None
    units = []
    while count := depth_of(shapes, f"block{len(units) + 1}/unit{{layer}}/conv1/kernel", 1):
        units.append(count)
    return ResNetShape(tuple(units), shapes["conv_root/kernel"][3])


def _hybrid_options(shape: ViTShape, file: TensorFile) -> tuple[dict[str, Any], int]:
    names = [f"R{n}+ViT-{size}/{shape.stride}" for n in RESNET_UNITS for size in VIT_SIZES]
    for name in (*VIT.sizes, *names):
        if (VIT.sizes.get(name) or VIT.parse(name)) == shape:
            return {"name": name}, shape.stride
    raise WeightsError(
        f"{file.path} is a hybrid of {shape}",
        f"the sizes of {VIT.pattern}",
        "add its sizes to the ViT family in vit_jax/models",
    )


FORMAT = Format(
    name="vision_transformer",
    reads=("vision_transformer", "big_vision"),
    container="npz",
    recognise=recognise,
    describe=describe,
    to_tensors=to_tensors,
)
