"""npz files of pairs of towers: LiT of vision_transformer, SigLIP and SigLIP 2 of big_vision.

Both put the tensors of a ViT below `img/` and those of the text tower below `txt/`. The text tower
of a LiT model is a BERT of flaxformer or a small Transformer, as in SigLIP.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vit_jax.errors import WeightsError
from vit_jax.interop import vision_transformer
from vit_jax.interop.formats import EvalView, Format, Tensors, WeightsInfo, depth_of
from vit_jax.interop.name_table import Flat, Row, Same, Stacked, parameters, row, write_rows
from vit_jax.interop.tensors import TensorFile
from vit_jax.interop.towers import (
    Batched,
    Merged,
    Scalar,
    Summed,
    check_pair,
    image_of,
    pair_of,
    pair_options,
    prefixed,
    text_options,
)
from vit_jax.interop.vit_formats import checked_options, heads_of, square_side, with_learned_table

if TYPE_CHECKING:
    from vit_jax.interop.load import Loaded

_ENCODER = "txt/Encoder_0"
_BERT = "txt/BertEncoder_0"
_BERT_LAYER = f"{_BERT}/encoder_block/layer_sequence/layers_{{layer}}"
# Some older files store the position table in two parts, to be added.
_POSITIONS = ("txt/pos_embedding", f"{_ENCODER}/pos_embedding")


def recognise(file: TensorFile) -> TensorFile | None:
    """Returns the file with plain tensor names if it is a pair of towers, else None."""
    names = {n.removeprefix("params/"): n for n in file.shapes if not n.startswith("opt/")}
    return file.renamed(names) if {"img/embedding/kernel", "t"} <= names.keys() else None


def describe(file: TensorFile, given: Mapping[str, Any]) -> WeightsInfo:
    """Reads the architecture from the shapes."""
    names = {n.removeprefix("img/"): n for n in file.shapes if n.startswith("img/")}
    plain = vision_transformer.recognise(file.renamed(names))
    if plain is None:
        raise WeightsError(
            f"{file.path} has an image tower of an unknown kind", "a ViT", "use another file"
        )
    # Names in the file that `recognise` has completed, e.g. those of a pooling head.
    full = {f"img/{n}": f"img/{_shortened(n, names)}" for n in plain.shapes}
    image = vision_transformer.describe(plain, given)
    rows = [
        dataclasses.replace(r, theirs=tuple(full.get(n, n) for n in r.theirs))
        for r in prefixed(image.rows, "image/", "img/")
    ]
    is_bert = f"{_BERT}/layer_norm/scale" in file.shapes
    text, text_rows = _describe_bert(file, given) if is_bert else _describe_text(file)
    has_bias = "b" in file.shapes
    options = pair_options(
        "SigLIP" if has_bias else "LiT",
        {"pooling": "token", **image.options},
        text=text,
        embedding_size=image.num_classes or None,
        projection_bias=True,
        bias_init=-10.0 if has_bias else None,
    )
    return WeightsInfo(
        "big_vision npz (two towers)" if has_bias else "vision_transformer npz (two towers)",
        options,
        0,
        image.image_size,
        (*(_renamed_head(r) for r in rows), *text_rows, *_shared_rows()),
        view=EvalView("resize"),
    )


def _shortened(name: str, names: Mapping[str, str]) -> str:
    return name if name in names else name.removeprefix("MAPHead_0/")


def _renamed_head(row: Row) -> Row:
    ours = tuple(n.replace("image/head/linear", "image_projection") for n in row.ours)
    return dataclasses.replace(row, ours=ours)


def _shared_rows() -> list[Row]:
    return [
        row("log_temperature", "t", Scalar((1,))),
        row("bias", "b", Scalar((1,))),
        row("text/projection/kernel", "txt/head/kernel", Same()),
        row("text/projection/bias", "txt/head/bias", Same()),
    ]


def _describe_text(file: TensorFile) -> tuple[dict[str, Any], list[Row]]:
    """Returns the text section and the rows of a small Transformer."""
    shapes = file.shapes
    names = {
        f"Transformer/{n.removeprefix(_ENCODER + '/')}": n
        for n in shapes
        if n.startswith(f"{_ENCODER}/encoder")
    }
    block, parts = vision_transformer.block_names({name: shapes[n] for name, n in names.items()})
    first = f"{_ENCODER}/{block.removeprefix('Transformer/')}".format(layer=0)
    key = shapes[f"{first}/{parts[2]}/key/kernel"]
    hidden = shapes[f"{first}/{parts[3]}/Dense_0/kernel"][-1]
    scanned = "{layer}" not in block
    depth = key[0] if scanned else depth_of(names, f"{block}/LayerNorm_0/scale")
    vocabulary, width = shapes["txt/Embed_0/embedding"]
    sizes = text_options(width, depth, hidden, key[-2])
    options = {
        **sizes,
        "vocabulary_size": vocabulary,
        "context_length": shapes[_POSITIONS[0]][-2],
        "pooling": "map" if "txt/MAPHead_0/probe" in shapes else "last",
    }
    return options, text_table(block, parts, in_two_parts=_POSITIONS[1] in shapes)


def text_table(block: str, parts: tuple[str, ...], *, in_two_parts: bool = False) -> list[Row]:
    """Returns the rows of the text Transformer, without its projection.

    `block` and `parts` are as in `vision_transformer.name_table`. The position table may be the sum
    of two tensors.
    """
    encoder = vision_transformer.encoder_rows(block, parts)
    pooling = vision_transformer.pooling_rows()
    positions = row("text/positions", _POSITIONS, Summed())
    if not in_two_parts:
        positions = row("text/positions", _POSITIONS[0], Batched())
    renamed = [
        dataclasses.replace(
            r, theirs=tuple(n.replace("Transformer/", f"{_ENCODER}/", 1) for n in r.theirs)
        )
        for r in prefixed(encoder, "text/", "")
    ]
    return [
        row("text/token_embedding", "txt/Embed_0/embedding", Same()),
        positions,
        *renamed,
        *prefixed(pooling, "text/", "txt/"),
    ]


def _describe_bert(file: TensorFile, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Row]]:
    """Returns the text section and the rows of a BERT."""
    shapes, embedder = file.shapes, f"{_BERT}/embedder/embedders"
    vocabulary, width = shapes[f"{embedder}_token_ids/embedding"]
    depth = depth_of(shapes, f"{_BERT_LAYER}/attention_block/layer_norm/scale")
    first = _BERT_LAYER.format(layer=0)
    hidden = shapes[f"{first}/mlp_block/mlp/dense_layer/kernel"][1]
    heads = (given.get("text") or {}).get("num_heads") or heads_of(width, {})
    options = {
        **text_options(width, depth, hidden, heads),
        "vocabulary_size": vocabulary,
        "context_length": shapes[f"{embedder}_position_ids/embedding"][0],
        "num_segments": shapes[f"{embedder}_segment_ids/embedding"][0],
        "pooling": "first",
        "pad_token": 0,
        "norm_placement": "post",
        "norm_epsilon": 1e-12,
    }
    return options, bert_table()


def bert_table() -> list[Row]:
    """Returns the rows of flaxformer's BERT, without its projection."""
    ours, embedder = "text/encoder/blocks", f"{_BERT}/embedder/embedders"
    attention, mlp = f"{_BERT_LAYER}/attention_block", f"{_BERT_LAYER}/mlp_block"

    def qkv(leaf: str) -> tuple[str, ...]:
        return tuple(f"{attention}/attention_layer/{n}/{leaf}" for n in ("query", "key", "value"))

    def norm(ours: str, theirs: str) -> list[Row]:
        return [row(f"{ours}/{n}", f"{theirs}/layer_norm/{n}", Same()) for n in ("scale", "bias")]

    def dense(ours: str, theirs: str, axes: int = 1) -> list[Row]:
        return [
            row(f"{ours}/kernel", f"{theirs}/dense_layer/kernel", Merged(axes)),
            row(f"{ours}/bias", f"{theirs}/dense_layer/bias", Same()),
        ]

    return [
        row("text/token_embedding", f"{embedder}_token_ids/embedding", Same()),
        row("text/positions", f"{embedder}_position_ids/embedding", Same()),
        row("text/segment_embedding", f"{embedder}_segment_ids/embedding", Same()),
        *norm("text/embedding_norm", _BERT),
        row(f"{ours}/attention/qkv/kernel", qkv("kernel"), Stacked(1, Merged())),
        row(f"{ours}/attention/qkv/bias", qkv("bias"), Stacked(0, Flat())),
        *dense(f"{ours}/attention/out", attention, 2),
        *norm(f"{ours}/attention_norm", attention),
        *dense(f"{ours}/mlp/expand", f"{mlp}/mlp"),
        *dense(f"{ours}/mlp/contract", mlp),
        *norm(f"{ours}/mlp_norm", mlp),
    ]


def to_tensors(loaded: "Loaded") -> Tensors:
    """Returns the tensors of a pair under the names of LiT, or of SigLIP if it has a bias."""
    options, model, _ = pair_of(loaded)
    image, is_bert = image_of(loaded), options.text.norm_placement == "post"
    image_options, shape = checked_options(
        image,
        "vision_transformer",
        gelu_approximate=(True,),
        mlp=("gelu",),
        norm_epsilon=(1e-6,),
        qkv_bias=(True,),
        embedding_norm=(False,),
        pooling=("token", "gap", "map"),
        class_token=(None, image.options.pooling == "token"),  # pyright: ignore[reportAttributeAccessIssue]
    )
    check_pair(
        options,
        "vision_transformer",
        {
            "text.is_causal": (False,),
            "text.activation": ("gelu_tanh",),
            "text.norm_epsilon": (1e-12 if is_bert else 1e-6,),
            "text.pad_token": (0 if is_bert else None,),
            "text.pooling": ("first",) if is_bert else ("last", "map"),
            "projection_bias": (True,),
        },
    )
    square_side(loaded)  # The files do not store the grid of the position table.
    # LiT's image towers are numbered together, as those of vision_transformer.
    is_lit = options.bias_init is None
    has_class_token = image_options.pooling == "token"
    parts = vision_transformer.parts_of(together=is_lit and has_class_token)
    block = vision_transformer.BLOCK
    rows = vision_transformer.name_table(
        block, parts, vision_transformer.table_of(has_class_token), shape.stem
    )
    text = bert_table() if is_bert else text_table(block, vision_transformer.parts_of())
    params = {name: array for name, array in parameters(model).items() if name[:6] != "image/"}
    learned = with_learned_table(image, sincos=has_class_token)
    params |= {f"image/{name}": array for name, array in learned.items()}
    named = [_renamed_head(r) for r in prefixed(rows, "image/", "img/")]
    tensors = write_rows([*named, *text, *_shared_rows()], params)
    prefix = "" if is_lit else "params/"
    return Tensors({prefix + name: array for name, array in tensors.items()})


FORMAT = Format(
    name="vision_transformer",
    reads=("vision_transformer", "big_vision"),
    container="npz",
    recognise=recognise,
    describe=describe,
    to_tensors=to_tensors,
)
