"""The Vision Transformer, and its hybrids with a ResNet stem."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from vit_jax.errors import ModelError
from vit_jax.models.activation_sharding import constrain
from vit_jax.models.attention import (
    AttentionChoice,
    Implementation,
    Rope,
    ValidTokens,
    choose_attention,
    log_choice,
)
from vit_jax.models.blocks import BLOCK_INTERMEDIATES, BlockSpec, Encoder, reduce_intermediates
from vit_jax.models.family import (
    Family,
    ImageModel,
    Layer,
    check_images,
    check_intermediates,
    with_intermediates,
)
from vit_jax.models.heads import HEAD_RULES, AttentionPooling, Head, pool
from vit_jax.models.layers import LayerNorm
from vit_jax.models.naflex import Patches
from vit_jax.models.patches import PatchEmbedding, take_patches
from vit_jax.models.position import Learned1d, TableSpec, build_table, rope_2d
from vit_jax.models.resnet import RESNET_UNITS, Trunk
from vit_jax.models.stacking import Stack
from vit_jax.models.vit_options import (
    LISTED_VITS,
    SMALL_VITS,
    VIT_SIZES,
    ViTConfig,
    ViTShape,
    check_sizes,
    has_class_token,
    mlp_hidden,
    parse_name,
    position_table,
    vit_shape,
)

# Patch embeddings f32[B, N, D] -> patch embeddings.
EditPatches = Callable[[jax.Array], jax.Array]
INTERMEDIATES = ("embedded", "encoded", "pre_logits", *BLOCK_INTERMEDIATES)


class ViT(ImageModel):
    """Vision Transformer: patches -> tokens -> encoder -> pooling -> head.

    `mask_token` adds a learned embedding f32[1, 1, D], which a task can substitute for patch
    embeddings with `edit_patches`.

    Source: arXiv:2010.11929.
    """

    tokens: int  # pyright: ignore[reportIncompatibleVariableOverride]
    parts = (
        "stem", "patch_embedding", "mask_token", "class_token", "registers", "position_embedding",
        "embedding_norm", "encoder", "norm", "attention_pooling", "head", "register_head",
    )  # fmt: skip

    def __init__(
        self,
        shape: ViTShape,
        options: ViTConfig,
        *,
        num_classes: int,
        image_size: tuple[int, int],
        platform: str | None = None,
        mask_token: bool = False,
        rngs: nnx.Rngs,
    ):
        check_sizes(shape, options, image_size)
        width, dtype = shape.width, jnp.dtype(options.dtype)
        self.dtype = dtype
        self.pooling = options.pooling
        self.image_size = image_size
        self.grid = (image_size[0] // shape.stride, image_size[1] // shape.stride)
        patches = self.grid[0] * self.grid[1]
        self.num_prefix = has_class_token(options) + options.num_registers
        self.tokens = self.num_prefix + patches  # pyright: ignore[reportIncompatibleVariableOverride]
        self.num_heads = shape.num_heads

        self.stem = _build_stem(shape, options, rngs)
        channels = 3 if shape.stem is None else shape.stem.channels
        self.patch_embedding = PatchEmbedding(
            shape.patch_size,
            channels,
            width,
            stored_size=options.patch_kernel_size,
            dtype=dtype,
            rngs=rngs,
        )
        class_token = nnx.Param(jnp.zeros((1, 1, width))) if has_class_token(options) else None
        self.class_token = class_token
        self.registers = _build_tokens(options.num_registers, width, rngs)
        table = position_table(options, self.grid, width)
        self._table_grid = self.grid if table is None else table.stored_grid or self.grid
        own = None if options.position_placement == "every_layer" else table
        self.position_embedding = None if own is None else build_table(own, rngs=rngs)
        self.position_placement = options.position_placement
        has_rope = options.position_embedding == "rope_2d"
        self.rope_head_dim = width // shape.num_heads if has_rope else None
        self.dropout = nnx.Dropout(options.dropout)
        self.has_relative = options.position_embedding == "relative"
        self.attention = _choose_attention(shape, options, self.tokens, platform)
        norm = partial(LayerNorm, width, epsilon=options.norm_epsilon, dtype=dtype)
        self.embedding_norm = norm() if options.embedding_norm else None
        self.encoder = Encoder(
            _block_spec(shape, options, self.tokens, table, self.attention.implementation),
            shape.depth,
            stochastic_depth=options.stochastic_depth,
            constant_depth=options.stochastic_depth_rates == "constant",
            remat=options.remat,
            scan=options.scan,
            token_rows=(platform or jax.default_backend()) in ("gpu", "cuda"),
            rngs=rngs,
        )
        self.norm = None if options.norm_placement == "post" else norm()
        self.norm_after_pooling = options.norm_after_pooling
        self.attention_pooling = _build_attention_pooling(shape, options, rngs)
        self.head = Head(
            width * (patches if options.pooling == "flatten" else 1),
            num_classes,
            representation_size=options.representation_size,
            bias_init=options.head_bias_init,
            rngs=rngs,
        )
        # Created last, so that they do not change the initial values of the other parameters.
        self.mask_token = _build_tokens(int(mask_token), width, rngs)
        has_register_head = options.register_head and num_classes > 0
        make_head = partial(Head, width, num_classes, bias_init=options.head_bias_init, rngs=rngs)
        self.register_head = make_head() if has_register_head else None

    @property
    def attention_lengths(self) -> tuple[int, ...]:
        return (self.tokens,)

    @property
    def table_grid(self) -> tuple[int, int]:
        return self._table_grid

    @property
    def intermediates(self) -> tuple[str, ...]:
        return INTERMEDIATES if self.register_head is None else (*INTERMEDIATES, "head_logits")

    def __call__(
        self,
        images: Array | np.ndarray | Patches,
        *,
        key: jax.Array | None = None,
        edit_patches: EditPatches | None = None,
        visible: Int[Array, "B V"] | None = None,
        per_patch: bool = False,
        return_intermediates: tuple[str, ...] = (),
        reduce: Mapping[str, Callable[[jax.Array], jax.Array]] | None = None,
    ) -> Float[Array, "B *N C"] | tuple[Float[Array, "B *N C"], dict[str, jax.Array]]:
        """Returns the logits, float32. `return_intermediates` adds a dict of the named values.

        "embedded" and "encoded" are tokens [B, N, D], "pre_logits" [B, F], and with a leading axis
        over the blocks "attention_weights" [L, B, H, N, N], "attention_output", "mlp_output" and
        "block_output" [L, B, N, D]. A model with a register head also has "head_logits" [2, B, C]:
        those of the head, then those of the register head.

        Args:
            images: floating point [B, H, W, 3] in [-1, 1], of the model's image size; or `Patches`,
                images of any size as padded sequences of patches.
            key: turns dropout and stochastic depth on; without it the model is deterministic.
            edit_patches: function of the patch embeddings [B, N, D] before class token, registers
                and positions are added; returns an array of the same shape.
            visible: patches to compute, in raster order numbers; the others are dropped before the
                patch embedding, so that nothing is computed for them. None: all patches. Positions
                must be those of the stem or `rope_2d`.
            per_patch: apply the head to each patch instead of the pooled features: [B, N, C].
            return_intermediates: names from `intermediates`.
            reduce: name of a block's intermediate -> function of its value without the axis L. It
                is applied inside the loop over the blocks, so that the attention weights of all
                blocks, for example, are never in memory at once.
        """
        if isinstance(images, Patches):
            self._check_patches(images)
            valid_tokens, mask = self.num_prefix + images.lengths, images.mask
        else:
            images = jnp.asarray(images)
            check_images(images, self.image_size)
            log_choice(self.attention, self.tokens)
            valid_tokens = mask = None
        check_intermediates(return_intermediates, self.intermediates)
        keys = (None, None) if key is None else tuple(jax.random.split(key))

        embedded = self.embed(images, keys[0], edit_patches, visible)
        tokens = embedded.shape[1]
        x, found = self._encode(
            self._pad(embedded),
            tokens,
            visible,
            valid_tokens=valid_tokens,
            key=keys[1],
            capture=tuple(n for n in return_intermediates if n in BLOCK_INTERMEDIATES),
            reduce=partial(reduce_intermediates, functions=reduce or {}, tokens=tokens),
        )
        encoded = self.final_norm(_unpad(x, tokens))

        if per_patch:
            features = encoded[:, self.num_prefix :]
        elif self.attention_pooling is not None:
            lengths = None if mask is None else mask.sum(1)
            features = self.attention_pooling(encoded[:, self.num_prefix :], lengths)
        else:
            features = pool(encoded, self.pooling, self.num_prefix, mask)
        if self.norm is not None and self.norm_after_pooling:
            features = self.norm(features)
        logits, pre_logits = self.head(features)
        if self.register_head is not None and not per_patch:
            register_logits, _ = self.register_head(encoded[:, self.num_prefix - 1])
            found["head_logits"] = jnp.stack([logits, register_logits])
            logits = (logits + register_logits) / 2
        found.update(embedded=embedded, encoded=encoded, pre_logits=pre_logits)
        return with_intermediates(logits, found, return_intermediates)

    @property
    def num_layers(self) -> int:
        return self.encoder.depth

    @property
    def map_names(self) -> dict[str, int | None]:
        return {} if self.stem is None else dict.fromkeys(self.stem.names)

    def layer_outputs(
        self, images: jax.Array, layers: frozenset[Layer]
    ) -> dict[Layer, Float[Array, "B *N D"]]:
        check_images(images, self.image_size)
        maps = [layer for layer in layers if isinstance(layer, str)]
        numbers = sorted(layer for layer in layers if isinstance(layer, int))
        found: dict[Layer, Array] = {}
        if self.stem is not None:
            computed = self.stem(images, maps=None if numbers else frozenset(maps))
            found = {name: computed[name] for name in maps}
            images = list(computed.values())[-1]
        x, done = images, 0
        if numbers:
            table = self._position("stem", self.tokens)
            x = self._pad(self._tokens(self.patch_embedding(images), table))
        for number in numbers:
            if number > done:
                x, _ = self._encode(x, self.tokens, span=(done, number))
            found[number], done = _unpad(x, self.tokens), number
        return found

    def final_norm(self, x: Float[Array, "B *N D"]) -> Float[Array, "B *N D"]:
        if self.norm is None or self.norm_after_pooling or x.ndim == 4:
            return x
        return self.norm(x)

    def _encode(
        self,
        x: Float[Array, "B M D"],
        tokens: int,
        visible: Int[Array, "B V"] | None = None,
        valid_tokens: ValidTokens = None,
        **options: Any,
    ) -> tuple[Array, dict[str, Array]]:
        """Applies the encoder, or a part of it, to `tokens` tokens and the padding after them."""
        padding = x.shape[1] - tokens
        return self.encoder(
            x,
            position=self._position("shared", x.shape[1]),
            rope=self._rope(padding, visible),
            valid_tokens=tokens if padding and valid_tokens is None else valid_tokens,
            **options,
        )

    def _pad(self, x: Float[Array, "B N D"]) -> Float[Array, "B M D"]:
        """Adds the padding tokens that the attention kernel needs."""
        padding = self.attention.padding(x.shape[1])
        return jnp.pad(x, ((0, 0), (0, padding), (0, 0))) if padding else x

    def embed(
        self,
        images: Float[Array, "B H W 3"] | Patches,
        key: jax.Array | None = None,
        edit_patches: EditPatches | None = None,
        visible: Int[Array, "B V"] | None = None,
    ) -> Float[Array, "B N D"]:
        """Returns the input tokens of the encoder: class token, registers, patches."""
        if isinstance(images, Patches):
            table = None
            if isinstance(self.position_embedding, Learned1d):
                table = self.position_embedding.of_grids(images.grid, images.patches.shape[1])
            x = self.patch_embedding.of_patches(images.patches)
        else:
            table = self._position("stem", self.tokens)
            table = None if table is None else self._of_visible(table, visible)
            stem = images if self.stem is None else list(self.stem(images).values())[-1]
            x = self.patch_embedding(stem, visible)
        return self._tokens(x, table, key, edit_patches)

    def _tokens(
        self,
        x: Float[Array, "B N D"],
        table: Float[Array, "A M D"] | None,
        key: jax.Array | None = None,
        edit_patches: EditPatches | None = None,
    ) -> Float[Array, "B M D"]:
        """Returns the input tokens of the encoder. The table is of all images or of each."""
        if edit_patches is not None:
            x = constrain(edit_patches(x), "batch")
        prefix = [p for p in (self.class_token, self.registers) if p is not None]
        shared = [
            jnp.broadcast_to(p[...].astype(self.dtype), (x.shape[0], *p.shape[1:])) for p in prefix
        ]
        x = jnp.concatenate([*shared, x], axis=1)
        x = x if table is None else x + table.astype(x.dtype)
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        return self.dropout(x, deterministic=key is None, rngs=key)

    def _check_patches(self, images: Patches) -> None:
        """Raises ModelError unless the model can have sequences of patches as its input."""
        position = self.position_embedding
        if position is not None and self.position_placement != "stem":
            problem = f"position_placement {self.position_placement}"
        elif not (position is None or isinstance(position, Learned1d)) or self.rope_head_dim:
            problem = "a position embedding other than learned_1d or none"
        elif self.stem is not None or self.pooling == "flatten" or self.has_relative:
            problem = "a stem, relative attention, or pooling flatten"
        else:
            size = 3 * self.patch_embedding.patch_size**2
            if images.patches.shape[-1] == size:
                return
            problem = f"patches of {images.patches.shape[-1]} values instead of {size}"
        raise ModelError(
            f"sequences of patches for a ViT with {problem}",
            "a plain ViT with position_embedding learned_1d, and patches of its size",
            "change the options of the model",
        )

    def _position(self, placement: str, tokens: int) -> Float[Array, "1 N D"] | None:
        """Returns the model's position table if its placement is this one, else None."""
        if self.position_embedding is None or self.position_placement != placement:
            return None
        return self.position_embedding(tokens)

    def _of_visible(
        self, table: Float[Array, "1 N D"], visible: Int[Array, "B V"] | None
    ) -> Float[Array, "A T D"]:
        """Returns the rows of a table for the prefix and the visible patches of each image."""
        if visible is None:
            return table
        prefix, patches = (
            jnp.broadcast_to(part, (len(visible), *part.shape[1:]))
            for part in (table[:, : self.num_prefix], table[:, self.num_prefix :])
        )
        return jnp.concatenate([prefix, take_patches(patches, visible)], axis=1)

    def _rope(self, padding: int, visible: Int[Array, "B V"] | None) -> Rope | None:
        if self.rope_head_dim is None:
            return None
        tables = rope_2d(self.grid, self.rope_head_dim, self.num_prefix)
        if visible is not None:
            rows = ((0, 0), (0, padding), (0, 0))
            cos, sin = (self._of_visible(jnp.asarray(table)[None], visible) for table in tables)
        else:
            rows = ((0, padding), (0, 0))
            cos, sin = (jnp.asarray(table) for table in tables)
        return jnp.pad(cos, rows), jnp.pad(sin, rows)


def _unpad(x: Float[Array, "B M D"], tokens: int) -> Float[Array, "B N D"]:
    return constrain(x[:, :tokens] if x.shape[1] > tokens else x, "batch")


def _build_stem(shape: ViTShape, options: ViTConfig, rngs: nnx.Rngs) -> Trunk | None:
    if shape.stem is None:
        return None
    return Trunk(
        shape.stem,
        1,
        dtype=jnp.dtype(options.dtype),
        remat=options.remat,
        scan=options.scan,
        rngs=rngs,
    )


def _build_attention_pooling(
    shape: ViTShape, options: ViTConfig, rngs: nnx.Rngs
) -> AttentionPooling | None:
    if options.pooling != "map":
        return None
    return AttentionPooling(
        shape.width,
        shape.num_heads,
        shape.mlp_dim,
        gelu_approximate=options.gelu_approximate,
        quick_gelu=options.mlp == "quick_gelu",
        norm_epsilon=options.norm_epsilon,
        dtype=jnp.dtype(options.dtype),
        rngs=rngs,
    )


def _choose_attention(
    shape: ViTShape, options: ViTConfig, tokens: int, platform: str | None
) -> AttentionChoice:
    return choose_attention(
        options.attention_implementation,
        tokens=tokens,
        head_dim=shape.width // shape.num_heads,
        num_heads=shape.num_heads,
        dtype=jnp.dtype(options.dtype),
        has_bias=options.position_embedding == "relative",
        platform=platform,
    )


def _block_spec(
    shape: ViTShape,
    options: ViTConfig,
    tokens: int,
    table: TableSpec | None,
    implementation: Implementation,
) -> BlockSpec:
    return BlockSpec(
        width=shape.width,
        num_heads=shape.num_heads,
        tokens=tokens,
        position_table=table if options.position_placement == "every_layer" else None,
        mlp=options.mlp,
        mlp_hidden=mlp_hidden(shape, options),
        gelu_approximate=options.gelu_approximate,
        norm_placement=options.norm_placement,
        norm_epsilon=options.norm_epsilon,
        layer_scale=options.layer_scale,
        relative=options.position_embedding == "relative",
        qk_norm=options.qk_norm,
        qkv_bias=options.qkv_bias,
        dropout=options.dropout,
        attention_implementation=implementation,
        dtype=jnp.dtype(options.dtype),
    )


def _build_tokens(count: int, width: int, rngs: nnx.Rngs) -> nnx.Param | None:
    if not count:
        return None
    init = nnx.initializers.normal(stddev=0.02)
    return nnx.Param(init(rngs.params(), (1, count, width), jnp.float32))


def _build(
    options: ViTConfig,
    *,
    num_classes: int,
    image_size: tuple[int, int],
    key: jax.Array,
    platform: str | None = None,
    mask_token: bool = False,
) -> ViT:
    return ViT(
        vit_shape(options),
        options,
        num_classes=num_classes,
        image_size=image_size,
        platform=platform,
        mask_token=mask_token,
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
        ("tokens", f"{model.tokens:,}", " + ".join(tokens)),
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
    build_flags=("mask_token",),
)
