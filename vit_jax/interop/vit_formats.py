"""Shared code of the ViT formats: reading sizes from shapes, and checks before writing."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx

from vit_jax.errors import ARGUMENT, UserError, WeightsError, first_few
from vit_jax.interop.formats import options_of_sizes
from vit_jax.interop.name_table import parameters
from vit_jax.interop.tensors import TensorFile
from vit_jax.models.embedding import Learned1d, Sincos2d
from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import build_model, model_shape
from vit_jax.models.vit_family import VIT_SIZES
from vit_jax.models.vit_options import ViTConfig, ViTShape

if TYPE_CHECKING:
    from vit_jax.interop.load import Loaded

# Width -> number of heads of the published models of that width. Source: the papers' tables, timm.
_HEADS = {192: 3, 256: 4, 320: 5, 384: 6, 512: 8, 640: 10, 768: 12, 832: 13, 896: 14, 1024: 16,
          1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16, 4096: 32}  # fmt: skip

# Option values that every format can represent. With other values the same weights would compute
# another function. Options that add parameters are not listed: writing the name table detects them.
_REPRESENTABLE: dict[str, tuple[Any, ...]] = {
    "mlp": ("gelu", "swiglu"),
    "norm_placement": ("pre",),
    "norm_after_pooling": (False,),
    "position_embedding": ("learned_1d", "learned_2d", "sincos_2d", "sincos_2d_mae"),
    "patch_kernel_size": (None,),
    "position_grid": (None,),
    "position_placement": ("stem",),
    "register_head": (False,),
}
TABLE = "position_embedding/table"
# Keys that transformers writes for any model: labels, types, training, generation of text.
_OF_ANY_MODEL = (
    r"_.*|model_type|architectures|transformers_version|(torch_)?dtype|use_bfloat16|torchscript"
    r"|id2label|label2id|num_labels|problem_type|finetuning_task|task_specific_params"
    r"|initializer_(range|factor)|.*dropout|output_.*|(use_)?return_dict.*|tie_.*|tf_legacy_loss"
    r"|tokenizer_class|prefix|.*token_id|(begin_)?suppress_tokens|bad_words_ids|max_length"
    r"|min_length|do_sample|early_stopping|num_beams|num_beam_groups|num_return_sequences"
    r"|temperature|top_[kp]|typical_p|.*_penalty|.*no_repeat_ngram_size|remove_invalid_values"
    r"|is_(encoder_)?decoder|add_cross_attention|cross_attention_hidden_size|pruned_heads"
    r"|chunk_size_feed_forward|attn_implementation|use_cache|gradient_checkpointing|layerdrop"
    r"|is_composition|use_mask_token|out_features|out_indices|stage_names|padding"
)


def check_keys(
    file: TensorFile, config: Mapping[str, Any], known: Sequence[str], of: str = ""
) -> None:
    """Raises WeightsError for a key of config.json that may change what the model computes.

    `known` has keys that are read, and those that change nothing here. `of` is a prefix for
    messages.
    """
    unknown = [
        f"{of}{key} = {value!r}"
        for key, value in config.items()
        if key not in known and value is not None and not re.fullmatch(_OF_ANY_MODEL, key)
    ]
    if unknown:
        raise WeightsError(
            f"config.json of {file.path.parent} with {first_few(unknown, 3)}",
            "keys that are known here",
            "this kind of model is not supported; if the key changes nothing, delete it",
        )


def square_patch(file: TensorFile, patch: Any) -> int:
    """Returns the side of a square patch, which config.json may give as [height, width]."""
    sides = {patch} if isinstance(patch, int) else set(patch)
    if len(sides) != 1:
        raise WeightsError(
            f"config.json of {file.path.parent} with patch_size {patch}",
            "square patches",
            "this kind of model is not supported",
        )
    return sides.pop()


def vit_options(
    *, width: int, depth: int, mlp_dim: int, num_heads: int, patch_size: int
) -> dict[str, Any]:
    """Returns the model options of these sizes: a named model, or the nearest one with overrides.

    >>> vit_options(width=768, depth=12, mlp_dim=3072, num_heads=12, patch_size=16)
    {'name': 'ViT-B/16'}
    """
    sizes = {"width": width, "depth": depth, "mlp_dim": mlp_dim, "num_heads": num_heads}
    return options_of_sizes([f"ViT-{size}" for size in VIT_SIZES], patch_size, sizes)


def heads_of(width: int, given: Mapping[str, Any]) -> int:
    """Returns the number of attention heads of a model of this width, for files that lack it."""
    heads = given.get("num_heads") or _HEADS.get(width)
    if heads is None:
        raise WeightsError(
            f"a model of width {width}, whose file does not contain the number of heads",
            "the number of attention heads",
            f"give {ARGUMENT}=",
            argument="num_heads",
        )
    return heads


def grid_of(
    rows: int, prefix_tokens: int, given: Mapping[str, Any], stride: int
) -> tuple[int, int]:
    """Returns the (rows, columns) of patches of a position table with `rows` vectors.

    It is the grid that the caller gives, else the one in the file's config.json, else a square. The
    table may have vectors for prefix tokens or not. `given` may have "grid" and "image_size" of the
    caller, and "stored_grid" of the config.json. The stride is in pixels.

    A table that is square but also fits the caller's rectangular images is an error.
    """
    # Of several prefix tokens, often only the class token has a vector.
    sizes = (rows, rows - min(prefix_tokens, 1), rows - prefix_tokens)

    def fits(grid: tuple[int, int]) -> bool:
        return grid[0] * grid[1] in sizes

    grid, stored, size = (given.get(key) for key in ("grid", "stored_grid", "image_size"))
    if grid is None and stored is not None and fits(stored):
        grid = stored
    if grid is None:
        squares = [math.isqrt(n) for n in sizes if math.isqrt(n) ** 2 == n]
        grid = (squares[0], squares[0]) if squares else None
        wanted = (size[0] // stride, size[1] // stride) if isinstance(size, Sequence) else None
        if grid is not None and wanted not in (None, grid) and fits(wanted):
            raise WeightsError(
                f"a position table of {rows} vectors, which fits {grid[0]} x {grid[1]} patches and"
                f" the {wanted[0]} x {wanted[1]} patches of the requested image size",
                "rows x columns of the patches of the pretraining images",
                f"give rows and columns with {ARGUMENT}",
                argument="grid",
            )
    if grid is None or not fits(grid):
        raise WeightsError(
            f"a position table of {rows} vectors and grid {grid}",
            "rows x columns of the patches of the pretraining images",
            f"give rows and columns with {ARGUMENT}",
            argument="grid",
        )
    return grid[0], grid[1]


def checked_options(
    loaded: "Loaded", format: str, **allowed: tuple[Any, ...]
) -> tuple[ViTConfig, ViTShape]:
    """Checks that a format can represent a ViT or hybrid, and returns its options and sizes.

    `allowed` has the values of options that the format can represent.
    """
    options = loaded.options
    assert isinstance(options, ViTConfig)
    for name, values in {**_REPRESENTABLE, **allowed}.items():
        value = getattr(options, name)
        if value not in values:
            fix = "use format orbax, which holds every model"
            if _weights_fit(loaded, {name: values[0]}):
                changed = f"--model.{name}={values[0]}"
                fix += f", or convert with {changed}, which changes the model's output"
            raise WeightsError(
                f"model.{name} = {value!r} in format {format}", " or ".join(map(repr, values)), fix
            )
    shape = model_shape(options)
    assert isinstance(shape, ViTShape)
    return options, shape


def _weights_fit(loaded: "Loaded", changes: Mapping[str, Any]) -> bool:
    """Whether the weights fit a model with other options; it may do without a register head."""

    def shapes(options: ModelConfig) -> dict[str, tuple[int, ...]]:
        sizes = {"num_classes": loaded.num_classes, "image_size": loaded.image_size}
        made = nnx.eval_shape(lambda: build_model(options, **sizes, key=jax.random.key(0)))
        named = parameters(made).items()
        return {n: leaf.shape for n, leaf in named if not n.startswith("register_head/")}

    try:
        return shapes(loaded.options.replace(**changes)) == shapes(loaded.options)
    except UserError:  # The options contradict each other.
        return False


def with_learned_table(loaded: "Loaded", *, sincos: bool = True) -> dict[str, np.ndarray]:
    """Returns the parameters by name. Converts position tables to an equal learned 1-D table.

    Without `sincos`, the table `sincos_2d` is left out.
    """
    params = {name: np.asarray(array) for name, array in parameters(loaded.model).items()}
    model, table = loaded.model, getattr(loaded.model, "position_embedding", None)
    if (
        table is None
        or isinstance(table, Learned1d)
        or (isinstance(table, Sincos2d) and table.spec.kind == "sincos_2d" and not sincos)
    ):
        return params
    assert model.num_tokens is not None
    params = {n: a for n, a in params.items() if not n.startswith("position_embedding/")}
    rows = np.asarray(table(model.num_tokens))
    patches = model.grid[0] * model.grid[1]
    params[TABLE] = np.concatenate([rows[:, : "class_token" in params], rows[:, -patches:]], 1)
    return params


def square_side(loaded: "Loaded") -> int:
    """Returns the side in pixels of the image, which must be square."""
    height, width = loaded.image_size
    if height != width:
        raise WeightsError(
            f"image size {height}x{width}",
            "a square image for that format",
            "use --format=timm or orbax",
        )
    return height
