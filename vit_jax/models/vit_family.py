"""The family of ViTs and hybrids: names, sizes, how one is built, described and sharded."""

import dataclasses
import math
import re

import jax
from flax import nnx

from vit_jax.models.distilled_vit import DistilledViT
from vit_jax.models.family import Family, override_sizes
from vit_jax.models.heads import HEAD_RULES
from vit_jax.models.resnet import RESNET_UNITS, ResNetShape
from vit_jax.models.stacking import Stack
from vit_jax.models.vit import ViT
from vit_jax.models.vit_options import ViTConfig, ViTShape, has_class_token, mlp_hidden

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


def _build(
    options: ViTConfig,
    *,
    num_classes: int,
    image_size: tuple[int, int],
    key: jax.Array,
    platform: str | None = None,
) -> ViT:
    has_two_heads = options.register_head and num_classes > 0
    return (DistilledViT if has_two_heads else ViT)(
        vit_shape(options),
        options,
        num_classes=num_classes,
        image_size=image_size,
        platform=platform,
        rngs=nnx.Rngs(params=key),
    )


def _describe(options: ViTConfig, model: ViT) -> list[tuple[str, str, str]]:
    shape, stem, registers = vit_shape(options), vit_shape(options).stem, options.num_registers
    tokens = ["class token"] * has_class_token(options)
    if registers:
        tokens.append(f"{registers} register{'s' * (registers > 1)}")
    tokens.append(f"{model.grid[0] * model.grid[1]:,} patches")
    rows = [
        ("width", f"{shape.width:,}", ""),
        ("depth", f"{shape.depth}", "blocks"),
        ("heads", f"{shape.num_heads}", f"of {shape.width // shape.num_heads} features"),
        ("MLP dim", f"{mlp_hidden(shape, options):,}", ""),
        ("patch size", f"{shape.patch_size}", "px" if stem is None else "on the stem's map"),
        ("grid", f"{model.grid[0]} x {model.grid[1]}", f"stride {shape.stride} px"),
        ("tokens", f"{model.num_tokens:,}", " + ".join(tokens)),
    ]
    if stem is not None:
        units = " + ".join(map(str, stem.units)) or "root only"
        rows.insert(0, ("stem units", f"{sum(stem.units)}", units))
    return rows


def _stack(options: ViTConfig, image_size: tuple[int, int]) -> Stack:
    shape = vit_shape(options)
    patches = math.prod(image_size) // shape.stride**2
    tokens = patches + has_class_token(options) + options.num_registers
    # Both norms and residuals, q, k, v, the output of each branch; the hidden features before and
    # after GELU; the attention weights.
    features = 9 * shape.width + 2 * mlp_hidden(shape, options)
    logits = shape.num_heads * tokens**2
    written = logits if options.attention_implementation in ("xla", "einsum") else 0
    return Stack(shape.depth, shape.width, tokens, tokens * features + logits, written)


VIT = Family(
    name="ViT",
    options=ViTConfig,
    sizes=LISTED_VITS,
    small=frozenset(SMALL_VITS),
    parse=parse_name,
    pattern=(
        f"ViT-{{{','.join(VIT_SIZES)}}}/PATCH,"
        f" R{{{','.join(map(str, RESNET_UNITS))}}}+ViT-SIZE/STRIDE with a multiple of 16,"
        f" R+ViT-Ti/16, {', '.join(SMALL_VITS)}"
    ),
    shape=vit_shape,
    stack=_stack,
    build=_build,
    describe=_describe,
    # As in Megatron-LM (arXiv:1909.08053), attention is split over `tensor` by heads and MLPs by
    # hidden features; the other large dimension is split over `fsdp`.
    sharding_rules=(
        (r".*attention/qkv/kernel", ("fsdp", None, "tensor", None)),
        (r".*attention/qkv/bias", (None, "tensor", None)),
        (r".*attention/out/kernel", ("tensor", None, "fsdp")),
        (r".*attention/relative/table", (None, "tensor", None)),
        (r".*mlp/(expand|gate|value)/kernel", ("fsdp", "tensor")),
        (r".*mlp/(expand|gate|value)/bias", ("tensor",)),
        (r".*mlp/contract/kernel", ("tensor", "fsdp")),
        (r"attention_pooling/(query|key|value)/kernel", ("fsdp", "tensor", None)),
        (r"attention_pooling/(query|key|value)/bias", ("tensor", None)),
        (r"attention_pooling/out/kernel", ("tensor", None, "fsdp")),
        *HEAD_RULES,
        # Convolutions are split by output channel, because their kernels are standardised over the
        # other dimensions; position tables inside blocks by feature.
        (r"(patch_embedding|stem/.*)/kernel", (None, None, None, "fsdp")),
        (r"encoder/blocks/position_embedding/.*", ("fsdp",)),
    ),
    layer_order=(
        r"(stem|(patch|position)_embedding|embedding_norm)/.*|(class|mask)_token|registers",
        r"encoder/blocks/.*",
    ),
    formats=("vision_transformer", "transformers", "timm"),
)
