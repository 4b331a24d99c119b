"""npz files of google-research/vision_transformer and big_vision: MLP-Mixers.

Both projects use the same names.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vit_jax.interop.formats import Format, Tensors, WeightsInfo, depth_of, options_of_sizes
from vit_jax.interop.name_table import Row, Same, parameters, row, write_rows
from vit_jax.interop.tensors import TensorFile
from vit_jax.interop.vit_formats import grid_of, square_side
from vit_jax.models.mixer import MIXER_SIZES

if TYPE_CHECKING:
    from vit_jax.interop.load import Loaded

_BLOCK = "MixerBlock_{layer}"


def recognise(file: TensorFile) -> TensorFile | None:
    """Returns the file with plain tensor names if it is an MLP-Mixer, else None."""
    names = {n.removeprefix("params/"): n for n in file.shapes if not n.startswith("opt/")}
    first = f"{_BLOCK.format(layer=0)}/token_mixing/Dense_0/kernel"
    return file.renamed(names) if {"stem/kernel", first} <= names.keys() else None


def describe(file: TensorFile, given: Mapping[str, Any]) -> WeightsInfo:
    """Reads the architecture from the shapes. A grid that is not square must be given as `grid`."""
    shapes, first = file.shapes, _BLOCK.format(layer=0)
    patch, _, _, width = shapes["stem/kernel"]
    tokens, token_mlp_dim = shapes[f"{first}/token_mixing/Dense_0/kernel"]
    sizes = {
        "width": width,
        "depth": depth_of(shapes, f"{_BLOCK}/token_mixing/Dense_0/kernel"),
        "token_mlp_dim": token_mlp_dim,
        "channel_mlp_dim": shapes[f"{first}/channel_mixing/Dense_0/kernel"][1],
    }
    rows, columns = grid_of(tokens, False, given, patch)
    return WeightsInfo(
        "vision_transformer npz",
        options_of_sizes([f"Mixer-{size}" for size in MIXER_SIZES], patch, sizes),
        shapes["head/kernel"][1] if "head/kernel" in shapes else 0,
        (rows * patch, columns * patch),
        tuple(_name_table()),
    )


def to_tensors(loaded: "Loaded") -> Tensors:
    """Returns the tensors of an MLP-Mixer with the names of the published files."""
    square_side(loaded)  # The files do not store the grid of patches.
    return Tensors(write_rows(_name_table(), parameters(loaded.model)))


def _name_table() -> list[Row]:
    rows = [
        ("patch_embedding", "stem", ("kernel", "bias")),
        ("blocks/token_norm", f"{_BLOCK}/LayerNorm_0", ("scale", "bias")),
        ("blocks/token_mixing/expand", f"{_BLOCK}/token_mixing/Dense_0", ("kernel", "bias")),
        ("blocks/token_mixing/contract", f"{_BLOCK}/token_mixing/Dense_1", ("kernel", "bias")),
        ("blocks/channel_norm", f"{_BLOCK}/LayerNorm_1", ("scale", "bias")),
        ("blocks/channel_mixing/expand", f"{_BLOCK}/channel_mixing/Dense_0", ("kernel", "bias")),
        ("blocks/channel_mixing/contract", f"{_BLOCK}/channel_mixing/Dense_1", ("kernel", "bias")),
        ("norm", "pre_head_layer_norm", ("scale", "bias")),
        ("head/linear", "head", ("kernel", "bias")),
    ]
    return [
        row(f"{ours}/{leaf}", f"{theirs}/{leaf}", Same())
        for ours, theirs, leaves in rows
        for leaf in leaves
    ]


FORMAT = Format(
    name="vision_transformer",
    reads=("vision_transformer", "big_vision"),
    container="npz",
    recognise=recognise,
    describe=describe,
    to_tensors=to_tensors,
)
