"""MLP-Mixer: each block has an MLP over the tokens and an MLP over the channels.

Source: arXiv:2105.01601.
"""

import dataclasses
import math
import re
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.models.activation_sharding import constrain
from vit_jax.models.block_options import BlockOptions
from vit_jax.models.blocks import drop_branch
from vit_jax.models.embedding import PatchEmbedding, PatchShape
from vit_jax.models.family import (
    Family,
    ImageModel,
    Layer,
    as_images,
    check_image_size,
    check_intermediates,
    override_sizes,
    with_intermediates,
)
from vit_jax.models.heads import HEAD_RULES, Head
from vit_jax.models.layers import LayerNorm
from vit_jax.models.mlp import Mlp
from vit_jax.models.options import ModelConfig
from vit_jax.models.stacking import (
    Stack,
    build_stack,
    keys_and_drop_rates,
    layer_loop,
    save_for_backward,
    scan_stack,
)
from vit_jax.schema import option

_BLOCK_INTERMEDIATES = ("token_mixing_output", "channel_mixing_output", "block_output")
INTERMEDIATES = ("embedded", "encoded", "pre_logits", *_BLOCK_INTERMEDIATES)


class MixerConfig(ModelConfig):
    """Options of an MLP-Mixer.

    Source: arXiv:2105.01601.
    """

    kind: ClassVar[str] = "an MLP-Mixer"

    width: int | None = option(None, at_least=1)
    """Overrides the width of the named model; None: no override. The sizes below work the same."""
    depth: int | None = option(None, at_least=1)
    """Number of blocks."""
    token_mlp_dim: int | None = option(None, at_least=1)
    """Hidden features of the MLP over tokens."""
    channel_mlp_dim: int | None = option(None, at_least=1)
    """Hidden features of the MLP over channels."""
    stochastic_depth: float = option(0.0, at_least=0, below=1)
    """Rate of the last block. It grows linearly from 0 at the first (arXiv:1603.09382)."""


@dataclasses.dataclass(frozen=True)
class MixerShape(PatchShape):
    """The sizes that a name like "Mixer-B/16" stands for."""

    width: int  # D, features of a token.
    depth: int
    token_mlp_dim: int  # Hidden features of the MLPs over the tokens.
    channel_mlp_dim: int  # Hidden features of the MLPs over the channels.
    patch_size: int  # In pixels.


# Width, depth, hidden features over tokens and over channels. Source: arXiv:2105.01601, Table 1.
MIXER_SIZES = {
    "S": (512, 8, 256, 2048),
    "B": (768, 12, 384, 3072),
    "L": (1024, 24, 512, 4096),
    "H": (1280, 32, 640, 5120),
}
_LISTED = ("S/32", "S/16", "B/32", "B/16", "L/32", "L/16", "H/14")


def _parse(name: str) -> MixerShape | None:
    """Returns the shape of "Mixer-{size}/{patch size}"."""
    match = re.fullmatch(r"Mixer-([A-Z])/([1-9]\d*)", name)
    if match is None or match[1] not in MIXER_SIZES:
        return None
    return MixerShape(*MIXER_SIZES[match[1]], int(match[2]))


def mixer_shape(options: MixerConfig) -> MixerShape:
    """Returns the sizes of the named model, with the overrides of the options."""
    names = ("width", "depth", "token_mlp_dim", "channel_mlp_dim")
    return override_sizes(_parse(options.name), options, names)


class MixerBlock(nnx.Module):
    """An MLP over the tokens and one over the channels, each with LayerNorm and a residual.

    Source: arXiv:2105.01601, equation 1.
    """

    def __init__(self, shape: MixerShape, tokens: int, options: BlockOptions, *, rngs: nnx.Rngs):
        dtype = jnp.dtype(options.dtype)
        make_mlp = partial(
            Mlp,
            kernel_init=nnx.initializers.lecun_normal(),
            bias_init=nnx.initializers.zeros,
            options=options,
            rngs=rngs,
        )
        self.token_norm = LayerNorm(shape.width, dtype=dtype)
        self.token_mixing = make_mlp(tokens, shape.token_mlp_dim)
        self.channel_norm = LayerNorm(shape.width, dtype=dtype)
        self.channel_mixing = make_mlp(shape.width, shape.channel_mlp_dim)

    def __call__(
        self,
        x: Float[Array, "B N D"],
        *,
        key: jax.Array | None = None,
        drop_rate: Float[Array, ""] | None = None,
    ) -> tuple[Float[Array, "B N D"], dict[str, jax.Array]]:
        """Returns the new tokens, and the values in `_BLOCK_INTERMEDIATES` by name.

        A key turns stochastic depth on; `drop_rate` is the probability that an example skips a
        residual branch of this block.
        """
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        across_tokens = self.token_norm(x).swapaxes(1, 2)
        mixed = constrain(self.token_mixing(across_tokens).swapaxes(1, 2), "batch")
        x = save_for_backward(x + drop_branch(mixed, keys[0], drop_rate))
        processed = constrain(self.channel_mixing(self.channel_norm(x)), "batch")
        x = x + drop_branch(processed, keys[1], drop_rate)
        return x, dict(zip(_BLOCK_INTERMEDIATES, (mixed, processed, x), strict=True))


class Mixer(ImageModel):
    """MLP-Mixer: patches -> tokens -> blocks -> LayerNorm -> mean of the tokens -> head.

    The MLPs over the tokens depend on the image size. Source: arXiv:2105.01601.
    """

    parts = ("patch_embedding", "blocks", "norm", "head")

    def __init__(
        self,
        shape: MixerShape,
        options: MixerConfig,
        *,
        num_classes: int,
        image_size: tuple[int, int],
        rngs: nnx.Rngs,
    ):
        dtype = jnp.dtype(options.dtype)
        check_image_size(image_size, shape.patch_size, "patch size")
        self.image_size = image_size
        self.grid = (image_size[0] // shape.patch_size, image_size[1] // shape.patch_size)
        self.num_tokens = self.grid[0] * self.grid[1]
        self.depth = shape.depth
        self.stochastic_depth = options.stochastic_depth
        self.loop = layer_loop(options.scan, options.remat)
        self.patch_embedding = PatchEmbedding(
            shape.patch_size, 3, shape.width, dtype=dtype, rngs=rngs
        )
        make = partial(MixerBlock, shape, self.num_tokens, BlockOptions(dtype=options.dtype))
        self.blocks = build_stack(lambda rngs: make(rngs=rngs), shape.depth, rngs)
        self.norm = LayerNorm(shape.width, dtype=dtype)
        self.head = Head(shape.width, num_classes, bias_init=options.head_bias_init, rngs=rngs)

    @property
    def intermediates(self) -> tuple[str, ...]:
        return INTERMEDIATES

    def __call__(
        self,
        images: Array | np.ndarray,
        *,
        key: jax.Array | None = None,
        return_intermediates: tuple[str, ...] = (),
    ) -> Float[Array, "B C"] | tuple[Float[Array, "B C"], dict[str, jax.Array]]:
        """Returns the logits, float32. `return_intermediates` adds a dict of the named values.

        "embedded" and "encoded" are tokens [B, N, D], "pre_logits" [B, D], and with a leading axis
        over the blocks "token_mixing_output", "channel_mixing_output" and "block_output"
        [L, B, N, D]. A key turns stochastic depth on.
        """
        images = as_images(images, self.image_size)
        check_intermediates(return_intermediates, INTERMEDIATES)
        embedded = self.patch_embedding(images)
        x, found = self._blocks(embedded, key, return_intermediates)
        encoded = self.norm(constrain(x, "batch"))
        logits, pre_logits = self.head(encoded.mean(1, dtype=jnp.float32))
        found.update(embedded=embedded, encoded=encoded, pre_logits=pre_logits)
        return with_intermediates(logits, found, return_intermediates)

    @property
    def num_layers(self) -> int:
        return self.depth

    def layer_outputs(
        self, images: jax.Array, layers: frozenset[Layer]
    ) -> dict[Layer, Float[Array, "B *N D"]]:
        images = as_images(images, self.image_size)
        x, done, found = self.patch_embedding(images), 0, {}
        for number in sorted(layer for layer in layers if isinstance(layer, int)):
            if number > done:
                x, _ = self._blocks(x, None, (), (done, number))
            found[number], done = constrain(x, "batch"), number
        return found

    def final_norm(self, x: Float[Array, "B *N D"]) -> Float[Array, "B *N D"]:
        return self.norm(x)

    def _blocks(
        self,
        x: Float[Array, "B N D"],
        key: jax.Array | None,
        capture: tuple[str, ...],
        span: tuple[int, int] | None = None,
    ) -> tuple[Float[Array, "B N D"], dict[str, jax.Array]]:
        def body(block: MixerBlock, x: jax.Array, layer: Any) -> tuple[jax.Array, Any]:
            key, drop_rate = layer
            x, found = block(constrain(x, "batch"), key=key, drop_rate=drop_rate)
            return x, {name: value for name, value in found.items() if name in capture}

        return scan_stack(
            self.blocks,
            body,
            x,
            self.depth,
            span=span,
            per_layer=keys_and_drop_rates(key, self.depth, self.stochastic_depth),
            loop=self.loop,
        )


def _build(
    options: MixerConfig,
    *,
    num_classes: int,
    image_size: tuple[int, int],
    key: jax.Array,
    platform: str | None = None,
) -> Mixer:
    del platform  # Other families choose attention kernels by it.
    return Mixer(
        mixer_shape(options),
        options,
        num_classes=num_classes,
        image_size=image_size,
        rngs=nnx.Rngs(params=key),
    )


def _describe(options: MixerConfig, model: Mixer) -> list[tuple[str, str, str]]:
    shape = mixer_shape(options)
    return [
        ("width", f"{shape.width:,}", ""),
        ("depth", f"{shape.depth}", "blocks"),
        ("token MLP dim", f"{shape.token_mlp_dim:,}", ""),
        ("channel MLP dim", f"{shape.channel_mlp_dim:,}", ""),
        ("patch size", f"{shape.patch_size}", "px"),
        ("tokens", f"{model.num_tokens:,}", f"{model.grid[0]} x {model.grid[1]} patches"),
    ]


def _stack(options: MixerConfig, image_size: tuple[int, int]) -> Stack:
    shape = mixer_shape(options)
    tokens = math.prod(image_size) // shape.patch_size**2
    # Three inputs and outputs of each MLP, and its hidden features before and after GELU.
    values = tokens * (6 * shape.width + 2 * shape.channel_mlp_dim)
    values += 2 * shape.width * shape.token_mlp_dim
    return Stack(shape.depth, shape.width, tokens, values)


MIXER = Family(
    name="Mixer",
    options=MixerConfig,
    sizes={f"Mixer-{name}": _parse(f"Mixer-{name}") for name in _LISTED},
    parse=_parse,
    pattern=f"Mixer-{{{','.join(MIXER_SIZES)}}}/PATCH",
    shape=mixer_shape,
    stack=_stack,
    build=_build,
    describe=_describe,
    sharding_rules=(
        (r".*(token|channel)_mixing/expand/kernel", ("fsdp", "tensor")),
        (r".*(token|channel)_mixing/expand/bias", ("tensor",)),
        (r".*(token|channel)_mixing/contract/kernel", ("tensor", "fsdp")),
        *HEAD_RULES,
        (r"patch_embedding/kernel", (None, None, None, "fsdp")),
    ),
    layer_order=(r"patch_embedding/.*", r"blocks/.*"),
    formats=("mixer",),
)
