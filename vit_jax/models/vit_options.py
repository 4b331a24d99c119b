"""Options, sizes and names of Vision Transformers and of their hybrids with a ResNet stem."""

import dataclasses
import re
from typing import ClassVar, Literal

from vit_jax.errors import ModelError
from vit_jax.models.family import check_image_size, override_sizes
from vit_jax.models.mlp import swiglu_hidden
from vit_jax.models.options import ModelConfig
from vit_jax.models.patches import PatchShape
from vit_jax.models.position import TableSpec
from vit_jax.models.resnet import RESNET_UNITS, ResNetShape
from vit_jax.schema import option


class ViTConfig(ModelConfig):
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
    norm_placement: Literal["pre", "post", "res_post"] = option("pre")
    """Where a block applies LayerNorm: before each branch; after each residual sum; or to each
    branch's output, before it is added (arXiv:2111.09883, section 3.2).
    """
    norm_after_pooling: bool = option(False)
    """Apply the final LayerNorm to the mean of the patches, not to each token before it, as MAE
    does in fine-tuning. Weights of a model without this option are loaded without their final norm.
    """
    norm_epsilon: float = option(1e-6, above=0)
    """Added to the variance in LayerNorm."""
    num_registers: int = option(0, at_least=0)
    """Extra learned tokens (arXiv:2309.16588). As in DINOv2, they get no position embedding: added
    to a token that is itself learned, it would change nothing.
    """
    register_head: bool = option(False)
    """A second head, on the last register. The logits are the mean of both heads' logits, as in
    DeiT with its second token (arXiv:2012.12877, section 4).
    """
    layer_scale: float | None = option(None, above=0)
    """Initial value of the residual scale of each channel (arXiv:2103.17239). None: no scale."""
    qk_norm: bool = option(False)
    """LayerNorm on queries and keys (arXiv:2302.05442)."""
    qkv_bias: bool = option(True)
    """Whether queries, keys and values have a bias."""
    embedding_norm: bool = option(False)
    """LayerNorm on the tokens before the first block, as in CLIP."""
    mlp: Literal["gelu", "quick_gelu", "swiglu"] = option("gelu")
    """quick_gelu is x * sigmoid(1.702 x), as in CLIP."""
    gelu_approximate: bool = option(True)
    """True: the tanh approximation that the paper's code uses. False: the exact erf form."""
    representation_size: int | None = option(None, at_least=1)
    """Width of a tanh layer before the head, used in pretraining. None: no such layer."""
    dropout: float = option(0.0, at_least=0, below=1)
    """Rate after every dense layer except qkv, and after the position embedding (Table 3)."""
    stochastic_depth: float = option(0.0, at_least=0, below=1)
    """Rate of the last block, see `stochastic_depth_rates`."""
    stochastic_depth_rates: Literal["linear", "constant"] = option("linear")
    """linear: the rate grows linearly from 0 at the first block (arXiv:1603.09382). constant: all
    blocks have the rate of the last (arXiv:2204.07118).
    """
    attention_implementation: Literal["auto", "xla", "cudnn", "einsum", "pallas"] = option(
        "auto", changes_result=False
    )
    """Program of the attention. auto: the fastest for the device and the sizes."""

    def on_any_platform(self) -> "ViTConfig":
        return self.replace(attention_implementation="auto")

    def with_xla_attention(self) -> "ViTConfig":
        is_auto = self.attention_implementation == "auto"
        return self.replace(attention_implementation="xla") if is_auto else self


@dataclasses.dataclass(frozen=True)
class ViTShape(PatchShape):
    """The sizes that a name like "ViT-B/16" stands for."""

    width: int  # D, features of a token.
    depth: int
    mlp_dim: int  # Hidden features of a block's MLP.
    num_heads: int
    patch_size: int  # In pixels or, in a hybrid, in positions of the stem's feature map.
    stem: ResNetShape | None = None  # Of a hybrid; None: patches are cut from the image.

    @property
    def stride(self) -> int:
        return super().stride * (1 if self.stem is None else self.stem.stride)


# name: width, depth, MLP dim, heads. Source: B, L, H: arXiv:2010.11929, Table 1; Ti, S: DeiT and
# arXiv:2106.10270, Table 2; M, g, G: arXiv:2106.04560, Table 2; So400m: arXiv:2305.13035.
VIT_SIZES = {
    "Ti": (192, 12, 768, 3),
    "S": (384, 12, 1536, 6),
    "M": (512, 12, 2048, 8),
    "B": (768, 12, 3072, 12),
    "L": (1024, 24, 4096, 16),
    "So400m": (1152, 27, 4304, 16),
    "H": (1280, 32, 5120, 16),
    "g": (1408, 40, 6144, 16),
    "G": (1664, 48, 8192, 16),
}
_LISTED_PATCHES = (32, 16, 14, 8)
_LISTED_HYBRIDS = (
    "R26+ViT-S/32", "R50+ViT-B/32", "R50+ViT-B/16", "R50+ViT-L/32", "R50+ViT-L/16",
)  # fmt: skip

# Models for 32-pixel images that train on a CPU. Every family has one of each size. Mini takes 97
# to 100 million multiply-accumulates, Micro 19 to 20, Nano 4.2 to 4.4, Pico 1.05 to 1.1. Source:
# ours.
SMALL_VITS = {
    "ViT-Mini/4": ViTShape(128, 7, 512, 4, 4),
    "R+ViT-Mini/4": ViTShape(128, 3, 512, 4, 2, ResNetShape((1, 1), 32, small=True, groups=8)),
    "ViT-Micro/4": ViTShape(64, 5, 256, 2, 4),
    "R+ViT-Micro/4": ViTShape(64, 3, 256, 2, 2, ResNetShape((1, 1), 12, small=True, groups=4)),
    "ViT-Nano/4": ViTShape(32, 4, 128, 2, 4),
    "R+ViT-Nano/4": ViTShape(32, 2, 128, 2, 2, ResNetShape((1, 1), 6, small=True, groups=2)),
    "ViT-Pico/4": ViTShape(16, 3, 64, 2, 4),
    "R+ViT-Pico/4": ViTShape(16, 1, 128, 2, 2, ResNetShape((1, 1), 3, small=True, groups=1)),
}


def parse_name(name: str) -> ViTShape | None:
    """Returns the shape of "ViT-{size}/{patch size}" or "R{layers}+ViT-{size}/{stride}"."""
    match = re.fullmatch(r"(?:R(\d+)\+)?ViT-([A-Za-z0-9]+)/([1-9]\d*)", name)
    if match is None:
        return None
    small = SMALL_VITS.get(f"ViT-{match[2]}/4")
    if small is not None and match[1] is None:
        return dataclasses.replace(small, patch_size=int(match[3]))
    if match[2] not in VIT_SIZES:
        return None
    sizes, stride = VIT_SIZES[match[2]], int(match[3])
    if match[1] is None:
        return ViTShape(*sizes, stride)
    stem = _stem_shape(RESNET_UNITS.get(int(match[1])), stride)
    return None if stem is None else ViTShape(*sizes, stride // stem.stride, stem)


def _stem_shape(units: tuple[int, ...] | None, stride: int) -> ResNetShape | None:
    """Returns the ResNet of a hybrid with a patch every `stride` pixels; None: not possible.

    If the stride is a multiple of 32, the ResNet has its four stages. If it is another multiple of
    16, the units of stage 4 are moved to stage 3.

    Source: arXiv:2010.11929, section 4.1 and Table 6.
    """
    if units is None or stride % 16:
        return None
    return ResNetShape(units if stride % 32 == 0 else (*units[:2], units[2] + units[3]), 64)


def _listed() -> dict[str, ViTShape]:
    names = [f"ViT-{size}/{patch}" for size in VIT_SIZES for patch in _LISTED_PATCHES]
    shapes = {name: parse_name(name) for name in (*names, *_LISTED_HYBRIDS)}
    # The published model of this name cuts 8x8 patches from the root's feature map, so that a
    # 224-pixel image has 49 patches. Source: arXiv:2106.10270, Table 2.
    hybrid = ViTShape(*VIT_SIZES["Ti"], 8, ResNetShape((), 64))
    return {**{n: s for n, s in shapes.items() if s}, "R+ViT-Ti/16": hybrid, **SMALL_VITS}


def vit_shape(options: ViTConfig) -> ViTShape:
    """Returns the sizes of the named model, with the overrides of the options."""
    shape = LISTED_VITS.get(options.name) or parse_name(options.name)
    return override_sizes(shape, options, ("width", "depth", "mlp_dim", "num_heads"))


LISTED_VITS = _listed()


def has_class_token(options: ViTConfig) -> bool:
    """Whether the model has a class token."""
    return options.pooling == "token" if options.class_token is None else options.class_token


def position_table(options: ViTConfig, grid: tuple[int, int], width: int) -> TableSpec | None:
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
    if options.position_placement != "stem" and position_table(options, (1, 1), 1) is None:
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
