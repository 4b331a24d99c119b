"""ResNets with group normalisation and weight standardisation: BiT, and the stem of hybrids."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.activation_sharding import constrain
from vit_jax.models.convolution import convolve
from vit_jax.models.family import (
    Family,
    ImageModel,
    Layer,
    as_images,
    check_intermediates,
    with_intermediates,
)
from vit_jax.models.group_norm import group_norm
from vit_jax.models.heads import HEAD_RULES, Head
from vit_jax.models.options import LayerOptions, ModelConfig
from vit_jax.models.stacking import LayerLoop, build_stack, checkpointed, scan_stack
from vit_jax.schema import option

Kernel = Float[Array, "K K I O"]
Map = Float[Array, "B H W C"]
NewMap = Float[Array, "B h w c"]  # May differ from the input `Map` in size and channels.

# Layers in the name: units of the four stages. Source: arXiv:1512.03385, Table 1; 26 and 200:
# arXiv:2106.10270, Table 2 and arXiv:1603.05027.
RESNET_UNITS = {
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
_WIDTHS = (1, 2, 3, 4)


class ResNetConfig(ModelConfig):
    """Options of a BiT ResNet.

    Source: arXiv:1912.11370.
    """

    kind: ClassVar[str] = "a ResNet"

    representation_size: int | None = option(None, at_least=1)
    """Width of a tanh layer before the head, used in pretraining. None: no such layer."""
    pooling: Literal["gap", "flatten"] = option("gap")
    """What the head sees: the mean over the positions of the last feature map, or all of them
    concatenated, which fixes the image size. Source: "flatten" is ours, for comparisons with ViTs.
    """


@dataclasses.dataclass(frozen=True)
class ResNetShape:
    """The sizes that a name like "BiT-R50x1" stands for.

    Attributes:
        units: bottleneck units of each stage; empty: only the root.
        width: channels after the root. Stage i (from 0) has width * 2**i channels in its 3x3
            convolutions and four times as many in its output.
        small: whether the root is for 32-pixel images (3x3 at stride 1, instead of 7x7 at stride 2
            with pooling).
        groups: of the group normalisation.
    """

    units: tuple[int, ...]
    width: int
    small: bool = False
    groups: int = 32

    @property
    def stride(self) -> int:
        """Input pixels per position of the last feature map."""
        return (1 if self.small else 4) * 2 ** max(len(self.units) - 1, 0)

    @property
    def channels(self) -> int:
        """Channels of the last feature map."""
        return 4 * self.width * 2 ** (len(self.units) - 1) if self.units else self.width

    @property
    def image_multiple(self) -> int:
        """Image sides must be divisible by this; 1, because any size works."""
        return 1


def _standardize_v1(kernel: Kernel) -> Kernel:
    centred = kernel - kernel.mean((0, 1, 2), keepdims=True)
    return centred / (jnp.sqrt(jnp.square(centred).mean((0, 1, 2), keepdims=True)) + 1e-5)


def _standardize_v2(kernel: Kernel) -> Kernel:
    centred = kernel - kernel.mean((0, 1, 2), keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean((0, 1, 2), keepdims=True) + 1e-10)


@dataclasses.dataclass(frozen=True)
class ConvStyle:
    """Differences between the ResNet of the published hybrids (v1) and BiT's (v2).

    They also differ in the order of convolution and normalisation, see `UnitV1` and `UnitV2`.

    Attributes:
        standardize: weight standardisation (arXiv:1903.10520) with its own epsilon.
        norm_epsilon: of the group normalisation.
        same_padding: pad as TensorFlow's SAME does, which is not symmetric at stride 2; else by
            half the kernel's size on each side.
        groups: of the group normalisation.
        dtype: type that convolutions run in.
    """

    standardize: Callable[[jax.Array], jax.Array]
    norm_epsilon: float
    same_padding: bool
    groups: int
    dtype: DTypeLike

    def padding(self, size: int) -> str | list[tuple[int, int]]:
        return "SAME" if self.same_padding else [(size // 2, size // 2)] * 2


def style_v1(groups: int, dtype: DTypeLike) -> ConvStyle:
    """Returns the style of the ResNets inside hybrids (google-research/vision_transformer)."""
    return ConvStyle(_standardize_v1, 1e-6, True, groups, dtype)


def style_v2(groups: int, dtype: DTypeLike) -> ConvStyle:
    """Returns the style of BiT (arXiv:1912.11370)."""
    return ConvStyle(_standardize_v2, 1e-5, False, groups, dtype)


class StandardizedConv(nnx.Module):
    """Convolution without bias, whose kernel is standardised for each output channel."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        stride: int = 1,
        *,
        style: ConvStyle,
        rngs: nnx.Rngs,
    ):
        init = nnx.initializers.lecun_normal()
        self.kernel = nnx.Param(init(rngs.params(), (size, size, inputs, outputs), jnp.float32))
        self.stride = stride
        self.style = style

    def __call__(self, x: Map) -> NewMap:
        kernel = self.style.standardize(self.kernel[...])
        padding = self.style.padding(kernel.shape[0])
        y = convolve(x.astype(self.style.dtype), kernel, self.stride, padding)
        return constrain(y, "batch")


class GroupNorm(nnx.Module):
    """Normalises over the positions and channels of a group, in float32. See `group_norm`."""

    def __init__(self, channels: int, style: ConvStyle, *, zero_scale: bool = False):
        self.scale = nnx.Param(jnp.zeros(channels) if zero_scale else jnp.ones(channels))
        self.bias = nnx.Param(jnp.zeros(channels))
        self.style = style

    def __call__(self, x: Map) -> Map:
        scale, bias = self.scale[...], self.bias[...]
        x = x.astype(self.style.dtype)
        return group_norm(x, scale, bias, self.style.groups, self.style.norm_epsilon)


class UnitV1(nnx.Module):
    """Bottleneck unit with normalisation after each convolution; its last scale starts at zero.

    Source: arXiv:1512.03385, with group normalisation and weight standardisation.
    """

    def __init__(self, inputs: int, width: int, stride: int, *, style: ConvStyle, rngs: nnx.Rngs):
        conv = partial(StandardizedConv, style=style, rngs=rngs)
        outputs = 4 * width
        projects = inputs != outputs or stride != 1
        self.conv_proj = conv(inputs, outputs, 1, stride) if projects else None
        self.norm_proj = GroupNorm(outputs, style) if projects else None
        self.conv1, self.norm1 = conv(inputs, width, 1), GroupNorm(width, style)
        self.conv2, self.norm2 = conv(width, width, 3, stride), GroupNorm(width, style)
        self.conv3 = conv(width, outputs, 1)
        self.norm3 = GroupNorm(outputs, style, zero_scale=True)

    def __call__(self, x: Map) -> NewMap:
        residual = x
        if self.conv_proj is not None and self.norm_proj is not None:
            residual = self.norm_proj(self.conv_proj(x))
        y = jax.nn.relu(self.norm1(self.conv1(x)))
        y = jax.nn.relu(self.norm2(self.conv2(y)))
        return jax.nn.relu(residual + self.norm3(self.conv3(y)))


class UnitV2(nnx.Module):
    """Bottleneck unit with normalisation before each convolution. Source: arXiv:1603.05027."""

    def __init__(self, inputs: int, width: int, stride: int, *, style: ConvStyle, rngs: nnx.Rngs):
        conv = partial(StandardizedConv, style=style, rngs=rngs)
        outputs = 4 * width
        projects = inputs != outputs or stride != 1
        self.norm1, self.conv1 = GroupNorm(inputs, style), conv(inputs, width, 1)
        self.conv_proj = conv(inputs, outputs, 1, stride) if projects else None
        self.norm2, self.conv2 = GroupNorm(width, style), conv(width, width, 3, stride)
        self.norm3, self.conv3 = GroupNorm(width, style), conv(width, outputs, 1)

    def __call__(self, x: Map) -> NewMap:
        y = jax.nn.relu(self.norm1(x))
        residual = x if self.conv_proj is None else self.conv_proj(y)
        y = self.conv1(y)
        y = self.conv2(jax.nn.relu(self.norm2(y)))
        return residual + self.conv3(jax.nn.relu(self.norm3(y)))


class Stage(nnx.Module):
    """A first unit that changes the size, and a stack `blocks` of identical units after it."""

    def __init__(
        self,
        unit: type[UnitV1] | type[UnitV2],
        count: int,
        inputs: int,
        width: int,
        stride: int,
        *,
        style: ConvStyle,
        loop: LayerLoop,
        rngs: nnx.Rngs,
    ):
        def make(rngs: nnx.Rngs) -> nnx.Module:
            return unit(4 * width, width, 1, style=style, rngs=rngs)

        self.first = unit(inputs, width, stride, style=style, rngs=rngs)
        self.blocks = build_stack(make, count - 1, rngs) if count > 1 else None
        self.rest = count - 1
        self.loop = loop

    def __call__(self, x: Map) -> NewMap:
        x = checkpointed(self.first, x, self.loop.remat)
        if self.blocks is None:
            return x

        def body(unit: UnitV1 | UnitV2, x: jax.Array, extra: None) -> tuple[jax.Array, None]:
            return unit(x), extra

        return scan_stack(self.blocks, body, x, self.rest, loop=self.loop)[0]


class Trunk(nnx.Module):
    """Root and stages of a ResNet: image -> feature maps.

    Version 1 is that inside hybrids, 2 is BiT. Its stages scan, and keep everything for the
    backward pass, if the options `scan` and `remat` are "auto".

    Source: arXiv:2010.11929, section 3.1 (hybrids); arXiv:1912.11370 (BiT).
    """

    def __init__(self, shape: ResNetShape, version: int, options: LayerOptions, *, rngs: nnx.Rngs):
        make_style = style_v1 if version == 1 else style_v2
        self.style = make_style(shape.groups, jnp.dtype(options.dtype))
        remat = "none" if options.remat == "auto" else options.remat
        loop = LayerLoop(options.scan is not False, remat)
        size, stride = (3, 1) if shape.small else (7, 2)
        self.conv_root = StandardizedConv(3, shape.width, size, stride, style=self.style, rngs=rngs)
        self.norm_root = GroupNorm(shape.width, self.style) if version == 1 else None
        self.pools = not shape.small
        self.stages = len(shape.units)
        channels = shape.width
        for i, count in enumerate(shape.units):
            width = shape.width * 2**i
            stage = Stage(
                UnitV1 if version == 1 else UnitV2,
                count,
                channels,
                width,
                1 if i == 0 else 2,
                style=self.style,
                loop=loop,
                rngs=rngs,
            )
            setattr(self, f"stage{i + 1}", stage)
            channels = 4 * width

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the feature maps, in the order of the forward pass."""
        return ("root", *(f"stage{i + 1}" for i in range(self.stages)))

    def __call__(
        self, images: Float[Array, "B H W 3"], maps: frozenset[str] | None = None
    ) -> dict[str, Float[Array, "B _ _ _"]]:
        """Returns the feature maps by name: "root", "stage1", ..., in this order.

        With `maps`, computes no stage after the last of these.
        """
        last = self.stages if maps is None else max(map(self.names.index, maps))
        x = self.conv_root(images)
        if self.norm_root is not None:
            x = jax.nn.relu(self.norm_root(x))
        if self.pools:
            padding: Any = self.style.padding(3)  # Flax annotates it as a string only.
            x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding=padding)
        found = {"root": x}
        for name in self.names[1 : last + 1]:
            x = getattr(self, name)(x)
            found[name] = x
        return found


class ResNet(ImageModel):
    """BiT ResNet: trunk -> group normalisation, ReLU, pooling -> head. Source: arXiv:1912.11370.

    With mean pooling, images of other sizes than `image_size` work as well.
    """

    parts = ("trunk", "norm", "head")

    def __init__(
        self,
        shape: ResNetShape,
        options: ResNetConfig,
        *,
        num_classes: int,
        image_size: tuple[int, int],
        rngs: nnx.Rngs,
    ):
        self.image_size, self.pooling = image_size, options.pooling
        height, width = image_size
        self.grid = (math.ceil(height / shape.stride), math.ceil(width / shape.stride))
        self.trunk = Trunk(shape, 2, options, rngs=rngs)
        self.norm = GroupNorm(shape.channels, self.trunk.style)
        self.head = Head(
            shape.channels * (math.prod(self.grid) if self.pooling == "flatten" else 1),
            num_classes,
            representation_size=options.representation_size,
            bias_init=options.head_bias_init,
            rngs=rngs,
        )

    @property
    def intermediates(self) -> tuple[str, ...]:
        return (*self.trunk.names, "encoded", "pre_logits")

    @property
    def num_layers(self) -> int:
        return self.trunk.stages

    @property
    def map_names(self) -> dict[str, int | None]:
        return {name: number for number, name in enumerate(self.trunk.names)}

    def layer_outputs(
        self, images: jax.Array, layers: frozenset[Layer]
    ) -> dict[Layer, Float[Array, "B *N D"]]:
        images = as_images(images, self.image_size if self.pooling == "flatten" else None)
        names = {number: self.trunk.names[number] for number in layers if isinstance(number, int)}
        maps = self.trunk(images, frozenset(names.values()))
        return {number: maps[name] for number, name in names.items()}

    def final_norm(self, x: Float[Array, "B *N D"]) -> Float[Array, "B *N D"]:
        return jax.nn.relu(self.norm(x)) if x.shape[-1] == self.norm.scale.shape[0] else x

    def __call__(
        self,
        images: Array | np.ndarray,
        *,
        key: jax.Array | None = None,
        return_intermediates: tuple[str, ...] = (),
    ) -> Float[Array, "B C"] | tuple[Float[Array, "B C"], dict[str, jax.Array]]:
        """Returns the logits, float32. `return_intermediates` adds a dict of the named values.

        "root", "stage1", ... are feature maps [B, H, W, C], "encoded" is the last of them
        normalised, "pre_logits" is [B, F]. The key is not used, because a ResNet has no dropout.
        """
        del key
        images = as_images(images, self.image_size if self.pooling == "flatten" else None)
        check_intermediates(return_intermediates, self.intermediates)
        maps = self.trunk(images)
        encoded = self.final_norm(list(maps.values())[-1])
        if self.pooling == "gap":
            features = encoded.mean((1, 2), dtype=jnp.float32)
        else:
            features = encoded.reshape(len(encoded), -1)
        logits, pre_logits = self.head(features)
        found = {**maps, "encoded": encoded, "pre_logits": pre_logits}
        return with_intermediates(logits, found, return_intermediates)


# Models for 32-pixel images that train on a CPU. They cost as much as the ViTs of the same name.
# Source: ours.
_SMALL = {
    "BiT-R-Mini": ResNetShape((1, 1, 2), 32, small=True, groups=8),
    "BiT-R-Micro": ResNetShape((1, 2, 3), 12, small=True, groups=4),
    "BiT-R-Nano": ResNetShape((1, 2, 2), 6, small=True, groups=2),
    "BiT-R-Pico": ResNetShape((1, 2, 2), 3, small=True, groups=1),
}
_SIZES = {
    f"BiT-R{layers}x{width}": ResNetShape(units, 64 * width)
    for layers, units in RESNET_UNITS.items()
    for width in _WIDTHS
} | _SMALL


def resnet_shape(options: ResNetConfig) -> ResNetShape:
    """Returns the sizes of a model."""
    return _SIZES[options.name]


def _build(
    options: ResNetConfig,
    *,
    num_classes: int,
    image_size: tuple[int, int],
    key: jax.Array,
    platform: str | None = None,
) -> ResNet:
    del platform  # Other families choose attention kernels by it.
    shape, rngs = resnet_shape(options), nnx.Rngs(params=key)
    return ResNet(shape, options, num_classes=num_classes, image_size=image_size, rngs=rngs)


def _describe(options: ResNetConfig, model: ResNet) -> list[tuple[str, str, str]]:
    shape, (rows, columns) = resnet_shape(options), model.grid
    return [
        ("units", f"{sum(shape.units)}", " + ".join(map(str, shape.units))),
        ("width", f"{shape.width:,}", "channels after the root"),
        (
            "last feature map",
            f"{rows} x {columns}",
            f"{shape.channels:,} channels, stride {shape.stride}",
        ),
    ]


RESNET = Family(
    name="ResNet",
    options=ResNetConfig,
    sizes=_SIZES,
    small=frozenset(_SMALL),
    parse=lambda name: None,
    pattern=(
        f"BiT-R{{{','.join(map(str, RESNET_UNITS))}}}x{{{','.join(map(str, _WIDTHS))}}},"
        f" {', '.join(_SMALL)}"
    ),
    shape=resnet_shape,
    build=_build,
    describe=_describe,
    # Sharded by output channel, because kernels are standardised over the other dimensions.
    sharding_rules=(*HEAD_RULES, (r"trunk/.*/kernel", (None, None, None, "fsdp"))),
    layer_order=(
        r"trunk/conv_root/.*",
        *(
            rf"trunk/stage{stage}/{part}/.*"
            for stage in range(1, 5)
            for part in ("first", "blocks")
        ),
    ),
    formats=("big_transfer",),
)
