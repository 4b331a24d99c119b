"""The Vision Transformer, and its hybrids with a ResNet stem. Source: arXiv:2010.11929."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.models.attention import Rope
from vit_jax.models.attention_choice import log_choice
from vit_jax.models.blocks import BLOCK_INTERMEDIATES, Encoder
from vit_jax.models.embedding import PatchEmbedding, build_table
from vit_jax.models.family import (
    ImageModel,
    Layer,
    as_images,
    check_intermediates,
    with_intermediates,
)
from vit_jax.models.heads import AttentionPooling, Head, pool_tokens
from vit_jax.models.layers import LayerNorm
from vit_jax.models.position import rope_2d
from vit_jax.models.resnet import Trunk
from vit_jax.models.vit_options import (
    ViTConfig,
    ViTShape,
    block_shape,
    check_sizes,
    has_class_token,
    position_table_spec,
)

INTERMEDIATES = ("embedded", "encoded", "pre_logits", *BLOCK_INTERMEDIATES)


class ViT(ImageModel):
    """Vision Transformer: images -> patches -> tokens -> encoder -> pooling -> head.

    In shapes, P is the number of patches, and N that of tokens: class token, registers and patches.
    (In the paper, P is a patch's side and N the number of patches.) `num_tokens` is N.

    The position table is added to the input of the encoder. Or, as in appendix D.4 of the paper, it
    is added to the input of every block, the same one ("shared") or each block's own
    ("every_layer"). Rope and relative positions are part of the attention.
    """

    parts = (
        "stem", "patch_embedding", "class_token", "registers", "position_embedding",
        "embedding_norm", "encoder", "norm", "attention_pooling", "head",
    )  # fmt: skip

    def __init__(
        self,
        shape: ViTShape,
        options: ViTConfig,
        *,
        num_classes: int,
        image_size: tuple[int, int],
        platform: str | None = None,
        rngs: nnx.Rngs,
    ):
        check_sizes(shape, options, image_size)
        self.config = options
        width, dtype = shape.width, jnp.dtype(options.dtype)
        self.image_size, self.dtype = image_size, dtype
        self.pooling, self.norm_after_pooling = options.pooling, options.norm_after_pooling
        self.grid = (image_size[0] // shape.stride, image_size[1] // shape.stride)
        num_patches = self.grid[0] * self.grid[1]
        self.num_prefix = has_class_token(options) + options.num_registers
        self.num_tokens: int = self.num_prefix + num_patches  # pyright: ignore[reportIncompatibleVariableOverride]
        self.num_heads, self.head_dim = shape.num_heads, width // shape.num_heads

        self.stem = None if shape.stem is None else Trunk(shape.stem, 1, options, rngs=rngs)
        channels = 3 if shape.stem is None else shape.stem.channels
        self.patch_embedding = PatchEmbedding(
            shape.patch_size,
            channels,
            width,
            stored_patch_size=options.patch_kernel_size,
            dtype=dtype,
            rngs=rngs,
        )
        self.class_token = nnx.Param(jnp.zeros((1, 1, width))) if has_class_token(options) else None
        count = options.num_registers
        self.registers = learned_tokens(count, width, rngs) if count else None
        table_spec = position_table_spec(options, self.grid, width)  # None: no table.
        table_per_block = options.position_placement == "every_layer"
        model_spec, block_spec = (None, table_spec) if table_per_block else (table_spec, None)
        self.position_embedding = build_table(model_spec, rngs=rngs) if model_spec else None
        self.blocks_share_positions = options.position_placement == "shared"
        # The table may be stored for another grid. Then it is resampled at each call.
        self.stored_grid = (table_spec.stored_grid if table_spec else None) or self.grid
        self.has_rope = options.position_embedding == "rope_2d"
        self.dropout = nnx.Dropout(options.dropout)
        make_norm = partial(LayerNorm, width, epsilon=options.norm_epsilon, dtype=dtype)
        self.embedding_norm = make_norm() if options.embedding_norm else None
        self.encoder = Encoder(
            block_shape(shape, options),
            options,
            num_tokens=self.num_tokens,
            position_table=block_spec,
            relative=options.position_embedding == "relative",
            platform=platform,
            rngs=rngs,
        )
        log_choice(self.encoder.attention_choice, self.num_tokens)
        self.norm: Any = None if options.norm_placement == "post" else make_norm()
        make_pooling = partial(AttentionPooling, width, shape.num_heads, shape.mlp_dim, options)
        self.attention_pooling = make_pooling(rngs=rngs) if self.pooling == "map" else None
        self.head = Head(
            width * (num_patches if self.pooling == "flatten" else 1),
            num_classes,
            representation_size=options.representation_size,
            bias_init=options.head_bias_init,
            rngs=rngs,
        )

    def __call__(
        self,
        images: Array | np.ndarray,
        *,
        key: jax.Array | None = None,
        return_intermediates: tuple[str, ...] = (),
    ) -> Float[Array, "B C"] | tuple[Float[Array, "B C"], dict[str, jax.Array]]:
        """Returns the logits, float32. `return_intermediates` adds a dict of the named values.

        "embedded" and "encoded" are tokens [B, N, D], "pre_logits" the input of the head's last
        layer. Stacked over the L blocks (H heads): "attention_weights" [L, B, H, N, N], and the
        outputs "attention_output", "mlp_output", "block_output", each [L, B, N, D].

        Args:
            images: floating point [B, height, width, 3] in [-1, 1], of the model's image size.
            key: turns dropout and stochastic depth on; without it the model is deterministic.
            return_intermediates: names from `intermediates`.
        """
        images = as_images(images, self.image_size)
        check_intermediates(return_intermediates, self.intermediates)
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        embedded = self.embed(self.embed_patches(images), key=keys[0])
        encoded, captured = self.encode(embedded, key=keys[1], capture=return_intermediates)
        logits, pre_logits = self.head(self.pool(encoded))
        captured |= {"embedded": embedded, "encoded": encoded, "pre_logits": pre_logits}
        return with_intermediates(logits, captured, return_intermediates)

    def embed_patches(self, images: Float[Array, "B H W 3"]) -> Float[Array, "B P D"]:
        """Embeds the patches of the images or, in a hybrid, of the last map of its ResNet."""
        if self.stem is not None:
            images = list(self.stem(images).values())[-1]
        return self.patch_embedding(images)

    def embed(
        self,
        patches: Float[Array, "B P D"],
        position_rows: Float[Array, "#B N D"] | None = None,
        *,
        key: jax.Array | None = None,
    ) -> Float[Array, "B N D"]:
        """Returns the encoder's input: class token, registers and patches, with their positions.

        Equation 1; `embed_patches` has multiplied the patches by E. For a part of the patches, as
        in MAE, pass `position_rows`, one for each token of the result. Without them, all rows of
        the table are added, unless the blocks do it. A key turns dropout on.
        """
        if position_rows is None and not self.blocks_share_positions:
            position_rows = self.all_position_rows()
        prefix = [
            jnp.broadcast_to(token[...].astype(self.dtype), (len(patches), *token.shape[1:]))
            for token in (self.class_token, self.registers)
            if token is not None
        ]
        x = jnp.concatenate([*prefix, patches], axis=1)
        x = x if position_rows is None else x + position_rows.astype(x.dtype)
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        return self.dropout(x, deterministic=key is None, rngs=key)

    def encode(
        self,
        x: Float[Array, "B N D"],
        *,
        rope: Rope | None = None,
        key: jax.Array | None = None,
        capture: tuple[str, ...] = (),
        span: tuple[int, int] | None = None,
    ) -> tuple[Float[Array, "B N D"], dict[str, jax.Array]]:
        """Returns the tokens after the blocks and `final_norm`, and intermediates of the blocks.

        For a part of the tokens, pass their `rope`. A position table in the blocks (placement
        "shared" or "every_layer") needs all tokens. With a span (first, end), only
        `blocks[first:end]` are applied, without the final norm.
        """
        if self.has_rope and rope is None:
            cos, sin = rope_2d(self.grid, self.head_dim, self.num_prefix)
            rope = jnp.asarray(cos), jnp.asarray(sin)
        position = self.all_position_rows() if self.blocks_share_positions else None
        x, captured = self.encoder(
            x, position=position, rope=rope, key=key, capture=capture, span=span
        )
        return (self.final_norm(x) if span is None else x), captured

    def all_position_rows(self) -> Float[Array, "1 N D"] | None:
        """Returns a row of the model's position table for each token; None: it has no table."""
        return self.position_embedding(self.num_tokens) if self.position_embedding else None

    def pool(self, encoded: Float[Array, "B N D"]) -> Float[Array, "B F"]:
        """Returns a vector for each image; F is D, or P * D for pooling "flatten"."""
        if self.attention_pooling is not None:
            return self.attention_pooling(encoded[:, self.num_prefix :])
        features = pool_tokens(encoded, self.pooling, self.num_prefix)
        return self.norm(features) if self.norm_after_pooling else features

    def final_norm(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """LayerNorm (equation 4), unless the blocks end with one or `pool` does it."""
        return x if self.norm is None or self.norm_after_pooling else self.norm(x)

    def layer_outputs(
        self, images: jax.Array, layers: frozenset[Layer]
    ) -> dict[Layer, Float[Array, "B *N D"]]:
        """Returns, for a number n, the tokens after n blocks; for a name, that map of the stem."""
        images = as_images(images, self.image_size)
        map_names = frozenset(layer for layer in layers if isinstance(layer, str))
        numbers = sorted(layer for layer in layers if isinstance(layer, int))
        outputs: dict[Layer, Array] = {}
        if self.stem is not None:
            # None: all maps, because the blocks need the last one.
            outputs |= self.stem(images, maps=None if numbers else map_names)
            images = list(outputs.values())[-1]
        x = self.embed(self.patch_embedding(images)) if numbers else images
        done = 0
        for number in numbers:
            if number > done:
                x, _ = self.encode(x, span=(done, number))
            outputs[number], done = x, number
        return {layer: outputs[layer] for layer in layers}

    @property
    def intermediates(self) -> tuple[str, ...]:
        return INTERMEDIATES

    @property
    def num_layers(self) -> int:
        return self.encoder.depth

    @property
    def attention_lengths(self) -> tuple[int, ...]:
        return (self.num_tokens,)

    @property
    def table_grid(self) -> tuple[int, int]:
        return self.stored_grid

    @property
    def map_names(self) -> dict[str, int | None]:
        # None: maps of the stem have no number, because they come before the blocks.
        return {} if self.stem is None else dict.fromkeys(self.stem.names)


def learned_tokens(count: int, width: int, rngs: nnx.Rngs) -> nnx.Param:
    """Returns `count` learned tokens [1, count, D]."""
    return nnx.Param(nnx.initializers.normal(0.02)(rngs.params(), (1, count, width), jnp.float32))
