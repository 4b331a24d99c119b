"""The options of a Vision Transformer or a hybrid, and which of them fit together."""

import dataclasses
from typing import ClassVar, Literal

from vit_jax.errors import ModelError
from vit_jax.models.block_options import BlockOptions
from vit_jax.models.blocks import EncoderShape
from vit_jax.models.embedding import PatchShape, TableSpec
from vit_jax.models.family import check_image_size
from vit_jax.models.mlp import swiglu_hidden
from vit_jax.models.options import ModelConfig
from vit_jax.models.resnet import ResNetShape
from vit_jax.schema import option


class ViTConfig(BlockOptions, ModelConfig):
    """Options of a ViT or a hybrid.

    Source: arXiv:2010.11929, sections 3.1 and D; later options cite their own.
    """

    kind: ClassVar[str] = "a ViT"

    width: int | None = option(None, at_least=1)
    """Overrides the width of the named model; None: no override. The sizes below work the same."""
    depth: int | None = option(None, at_least=1)
    """Number of blocks."""
    mlp_dim: int | None = option(None, at_least=1)
    """Hidden features of a block's MLP."""
    num_heads: int | None = option(None, at_least=1)
    """Attention heads of a block."""
    pooling: Literal["token", "gap", "map", "flatten"] = option("token")
    """How tokens become one feature vector: the class token, the mean of the patches, attention
    pooling, or all patches concatenated.
    """
    class_token: bool | None = option(None)
    """Whether there is a class token. None: only with pooling "token"."""
    position_embedding: Literal[
        "none", "learned_1d", "learned_2d", "sincos_2d", "sincos_2d_mae", "relative", "rope_2d"
    ] = option("learned_1d")
    """How tokens know their position: not at all; by a learned vector for each; by the sum of
    learned vectors for row and column; by fixed sines and cosines, with the frequencies of
    big_vision or of MAE; by a learned vector for each offset between two tokens, in the attention
    logits; or by rotated queries and keys (RoPE).
    """
    patch_kernel_size: int | None = option(None, at_least=1)
    """Side in pixels of the stored patch kernel, which is resized to the patch size of the model by
    pseudo-inverse. With `position_grid`, the same weights fit every patch size (arXiv:2212.08013).
    None: the patch size.
    """
    position_grid: int | None = option(None, at_least=1)
    """Rows and columns of the stored table `learned_1d`, which is interpolated to the grid of the
    model's patches. None: that grid.
    """
    position_placement: Literal["stem", "every_layer", "shared"] = option("stem")
    """Where the position table is added: after the patch embedding; to the input of every block,
    each with its own table; or the same table to the input of every block (D.4).
    """
    norm_after_pooling: bool = option(False)
    """Apply the final LayerNorm to the mean of the patches, not to each token before it, as MAE
    does in fine-tuning. Weights of a model without this option are loaded without their final norm.
    """
    num_registers: int = option(0, at_least=0)
    """Extra learned tokens (arXiv:2309.16588). As in DINOv2, they get no position embedding: added
    to a token that is itself learned, it would change nothing.
    """
    register_head: bool = option(False)
    """A second head, on the last register. The logits are the mean of both heads' logits, as in
    DeiT with its second token (arXiv:2012.12877, section 4).
    """
    embedding_norm: bool = option(False)
    """LayerNorm on the tokens before the first block, as in CLIP."""
    representation_size: int | None = option(None, at_least=1)
    """Width of a tanh layer before the head, used in pretraining. None: no such layer."""

    def on_any_platform(self) -> "ViTConfig":
        return self.replace(attention_implementation="auto")

    def with_xla_attention(self) -> "ViTConfig":
        is_auto = self.attention_implementation == "auto"
        return self.replace(attention_implementation="xla") if is_auto else self


@dataclasses.dataclass(frozen=True)
class ViTShape(PatchShape, EncoderShape):
    """The sizes that a name like "ViT-B/16" stands for."""

    patch_size: int  # In pixels or, in a hybrid, in positions of the stem's feature map.
    stem: ResNetShape | None = None  # Of a hybrid; None: patches are cut from the image.

    @property
    def stride(self) -> int:
        return super().stride * (1 if self.stem is None else self.stem.stride)


def has_class_token(options: ViTConfig) -> bool:
    """Whether the model has a class token."""
    return options.pooling == "token" if options.class_token is None else options.class_token


def position_table_spec(options: ViTConfig, grid: tuple[int, int], width: int) -> TableSpec | None:
    """Returns the kind and sizes of the position table; None: a model without a table."""
    kind = options.position_embedding
    if kind not in ("learned_1d", "learned_2d", "sincos_2d", "sincos_2d_mae"):
        return None
    side = options.position_grid
    return TableSpec(
        kind,
        grid,
        width,
        has_class_token(options),
        options.num_registers,
        stored_grid=None if side is None else (side, side),
    )


def mlp_hidden(shape: ViTShape, options: ViTConfig) -> int:
    """Returns a block's hidden features: for SwiGLU two thirds, unless `mlp_dim` is set."""
    if options.mlp == "swiglu" and options.mlp_dim is None:
        return swiglu_hidden(shape.mlp_dim)
    return shape.mlp_dim


def block_shape(shape: ViTShape, options: ViTConfig) -> EncoderShape:
    """Returns the sizes of the encoder, with the hidden features of its kind of MLP."""
    return EncoderShape(shape.width, shape.depth, mlp_hidden(shape, options), shape.num_heads)


def check_sizes(shape: ViTShape, options: ViTConfig, image_size: tuple[int, int]) -> None:
    """Raises ModelError unless sizes and options fit together."""
    what = "patch size" if shape.stem is None else "stride of stem and patches"
    check_image_size(image_size, shape.stride, what)
    if options.pooling == "token" and not has_class_token(options):
        raise ModelError(
            "pooling token with class_token False", "a class token to pool", "use pooling gap"
        )
    if options.norm_after_pooling and (
        options.pooling != "gap" or options.norm_placement == "post" or options.register_head
    ):
        raise ModelError(
            f"norm_after_pooling with pooling {options.pooling}, norm_placement"
            f" {options.norm_placement} and register_head {options.register_head}",
            "pooling gap, a final norm, and one head",
            "change one of them",
        )
    if options.register_head and not options.num_registers:
        raise ModelError(
            "register_head with num_registers 0", "at least one register", "use num_registers 1"
        )
    if options.position_grid is not None and options.position_embedding != "learned_1d":
        raise ModelError(
            f"position_grid with position_embedding {options.position_embedding}",
            "position_embedding learned_1d, the only one with a stored grid",
            "leave it out",
        )
    if options.position_placement != "stem" and position_table_spec(options, (1, 1), 1) is None:
        raise ModelError(
            f"position_placement {options.position_placement} with position_embedding"
            f" {options.position_embedding}",
            "a table: learned_1d, learned_2d, sincos_2d or sincos_2d_mae",
            "use position_placement stem",
        )
    head_dim, rest = divmod(shape.width, shape.num_heads)
    if rest:
        raise ModelError(
            f"width {shape.width} with {shape.num_heads} heads",
            "a multiple of the heads",
            "change model.width or model.num_heads",
        )
    kind = options.position_embedding
    divisor = {
        "learned_2d": (shape.width, 2),
        "sincos_2d": (shape.width, 4),
        "sincos_2d_mae": (shape.width, 4),
        "rope_2d": (head_dim, 4),
    }
    size, factor = divisor.get(kind, (0, 1))
    if size % factor:
        what = "head dimension" if kind == "rope_2d" else "width"
        raise ModelError(
            f"position_embedding {kind} with {what} {size}",
            f"a multiple of {factor}",
            "change model.width, model.num_heads or the position embedding",
        )
