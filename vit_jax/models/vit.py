"""The Vision Transformer."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.errors import ModelError
from vit_jax.models.attention import Implementation, Rope, choose_attention, log_choice
from vit_jax.models.blocks import BLOCK_INTERMEDIATES, BlockSpec, Encoder, reduced
from vit_jax.models.corruption import Corruption, corrupt
from vit_jax.models.heads import AttentionPooling, Head, pool
from vit_jax.models.inputs import check_images, check_intermediates
from vit_jax.models.layers import LayerNorm
from vit_jax.models.mlp import swiglu_hidden
from vit_jax.models.options import ModelConfig
from vit_jax.models.placement import constrain
from vit_jax.models.position import Table, build_table, rope_2d
from vit_jax.models.products import contract, spread
from vit_jax.models.resnet import ResNetShape, Trunk
from vit_jax.models.stacking import remat_on

INTERMEDIATES = ("embedded", "encoded", "pre_logits", *BLOCK_INTERMEDIATES)


@dataclasses.dataclass(frozen=True)
class ViTShape:
    """The sizes that a name like "ViT-B/16" stands for.

    Attributes:
        width: D, features of a token.
        depth: number of encoder blocks.
        mlp_dim: hidden features of a block's MLP.
        num_heads: attention heads.
        patch_size: height and width of a patch, in positions of what is cut: pixels, or the stem's
            feature map.
        stem: sizes of the ResNet that a hybrid puts before the patches; None: no hybrid.
    """

    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    patch_size: int
    stem: ResNetShape | None = None

    @property
    def stride(self) -> int:
        """Pixels between neighbouring tokens."""
        return self.patch_size * (1 if self.stem is None else self.stem.stride)


class PatchEmbedding(nnx.Module):
    """Cuts an image, or a feature map of C channels, into patches and projects each linearly.

    The kernel has the shape of a convolution's, [P, P, C, D], but is applied as one matmul.

    Source: arXiv:2010.11929, equation 1.
    """

    def __init__(
        self, patch_size: int, channels: int, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ):  # fmt: skip
        shape = (patch_size, patch_size, channels, width)
        self.kernel = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), shape, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width))
        self.patch_size = patch_size
        self.dtype = dtype

    def __call__(self, images: Float[Array, "B H W C"]) -> Float[Array, "B N D"]:
        """Returns the embedded patches in raster order."""
        batch, height, width, channels = images.shape
        p = self.patch_size
        patches = images.reshape(batch, height // p, p, width // p, p, channels)
        patches = patches.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, p * p * channels)
        kernel = self.kernel[...].reshape(p * p * channels, -1)
        embedded = constrain(contract(patches.astype(self.dtype), kernel), "batch")
        return embedded + spread(self.bias[...], embedded.shape, self.dtype)


class ViT(nnx.Module):
    """Vision Transformer: patches -> tokens -> encoder -> pooling -> head.

    Args:
        shape: sizes, see `registry.resolve`.
        options: the model section of a config.
        num_classes: C; 0 for features instead of logits.
        image_size: (height, width) in pixels that position information is made for.
        platform: "cpu", "gpu" or "tpu" that it will run on; None: the default backend.
        mask_token: whether there is an embedding that hides patches, see `Corruption`.
        rngs: source of the initial values.

    Raises:
        ModelError: sizes that do not go together (image and patch, width and heads, ...).

    Source: arXiv:2010.11929.
    """

    def __init__(
        self,
        shape: ViTShape,
        options: ModelConfig,
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
        self.tokens = self.num_prefix + patches

        self.stem = _build_stem(shape, options, rngs)
        channels = 3 if shape.stem is None else shape.stem.channels
        self.patch_embedding = PatchEmbedding(
            shape.patch_size, channels, width, dtype=dtype, rngs=rngs
        )
        class_token = nnx.Param(jnp.zeros((1, 1, width))) if has_class_token(options) else None
        self.class_token = class_token
        self.registers = _build_tokens(options.num_registers, width, rngs)
        table = position_table(options, self.grid, width)
        once = None if options.position_placement == "every_layer" else table
        self.position_embedding = None if once is None else build_table(once, rngs=rngs)
        self.position_placement = options.position_placement
        has_rope = options.position_embedding == "rope_2d"
        self.rope_head_dim = width // shape.num_heads if has_rope else None
        self.dropout = nnx.Dropout(options.dropout)
        self.attention = choose_attention(
            options.attention_implementation,
            tokens=self.tokens,
            head_dim=width // shape.num_heads,
            num_heads=shape.num_heads,
            dtype=dtype,
            has_bias=options.position_embedding == "relative",
            platform=platform,
        )
        self.encoder = Encoder(
            _block_spec(shape, options, self.tokens, table, self.attention.implementation),
            shape.depth,
            stochastic_depth=options.stochastic_depth,
            remat=remat_on(platform or jax.default_backend(), options.remat, scan=options.scan),
            scan=options.scan,
            rngs=rngs,
        )
        make_norm = partial(LayerNorm, width, epsilon=options.norm_epsilon, dtype=dtype)
        self.norm = make_norm() if options.norm_placement == "pre" else None
        self.attention_pooling = _build_attention_pooling(shape, options, rngs)
        self.head = Head(
            width * (patches if options.pooling == "flatten" else 1),
            num_classes,
            representation_size=options.representation_size,
            bias_init=options.head_bias_init,
            rngs=rngs,
        )
        # Last, so that the others start as they do without it.
        self.mask_token = _build_tokens(int(mask_token), width, rngs)

    intermediates = INTERMEDIATES

    def __call__(
        self,
        images: Array | np.ndarray,
        *,
        key: jax.Array | None = None,
        corruption: Corruption | None = None,
        return_intermediates: tuple[str, ...] = (),
        reduce: Mapping[str, Callable[[jax.Array], jax.Array]] | None = None,
    ) -> Float[Array, "B *N C"] | tuple[Float[Array, "B *N C"], dict[str, jax.Array]]:
        """Returns the logits, float32.

        Args:
            images: floating point [B, H, W, 3] in [-1, 1], of the size that the model was made for.
            key: turns dropout and stochastic depth on; without it the model is deterministic.
            corruption: what takes the place of which patches, for a model with a mask token. Then
                the head is applied to each patch instead of to what is pooled: logits [B, N, C].
            return_intermediates: names from INTERMEDIATES. If given, the result is a pair of the
                logits and a dict: "embedded" and "encoded" tokens [B, N, D], "pre_logits" [B, F],
                and with a leading axis over the blocks "attention_weights" [L, B, H, N, N],
                "max_attention_logit" [L, B, H], "attention_output", "mlp_output" and
                "block_output" [L, B, N, D].
            reduce: name of a block's intermediate -> function applied to it inside the loop over
                the blocks, so that e.g. the attention weights of all are never held at once; it
                gets them without the axis L.

        Raises:
            ModelError: images of another size, or an unknown intermediate.
        """
        images = jnp.asarray(images)
        log_choice(self.attention, self.tokens)
        check_images(images, self.image_size)
        check_intermediates(return_intermediates, INTERMEDIATES)
        keys = (None, None) if key is None else tuple(jax.random.split(key))

        embedded = self.embed(images, keys[0], corruption)
        x = embedded
        padding = self.attention.padded_tokens - self.tokens
        if padding:
            x = jnp.pad(x, ((0, 0), (0, padding), (0, 0)))
        x, found = self.encoder(
            x, position=self._position("shared", x.shape[1]), rope=self._rope(padding),
            valid_tokens=self.tokens if padding else None, key=keys[1],
            capture=tuple(n for n in return_intermediates if n in BLOCK_INTERMEDIATES),
            reduce=partial(reduced, functions=reduce or {}, tokens=self.tokens),
        )  # fmt: skip
        x = constrain(x[:, : self.tokens] if padding else x, "batch")
        encoded = x if self.norm is None else self.norm(x)

        if corruption is not None:
            features = encoded[:, self.num_prefix :]
        elif self.attention_pooling is not None:
            features = self.attention_pooling(encoded[:, self.num_prefix :])
        else:
            features = pool(encoded, self.pooling, self.num_prefix)
        logits, pre_logits = self.head(features)
        if not return_intermediates:
            return logits
        found.update(embedded=embedded, encoded=encoded, pre_logits=pre_logits)
        return logits, {name: found[name] for name in return_intermediates}

    def embed(
        self,
        images: Float[Array, "B H W 3"],
        key: jax.Array | None = None,
        corruption: Corruption | None = None,
    ) -> Float[Array, "B N D"]:
        """Returns the tokens that enter the encoder: class token, registers, patches."""
        x = self.patch_embedding(self._stem_map(images))
        if corruption is not None:
            assert self.mask_token is not None, "made without mask_token"
            x = constrain(corrupt(x, corruption, self.mask_token[...]), "batch")
        prefix = [p for p in (self.class_token, self.registers) if p is not None]
        shared = [spread(p[...], (x.shape[0], *p.shape[1:]), self.dtype) for p in prefix]
        x = jnp.concatenate([*shared, x], axis=1)
        table = self._position("stem", x.shape[1])
        x = x if table is None else x + spread(table, x.shape, x.dtype)
        return self.dropout(x, deterministic=key is None, rngs=key)

    def _stem_map(self, images: Float[Array, "B H W 3"]) -> Float[Array, "B h w C"]:
        return images if self.stem is None else list(self.stem(images).values())[-1]

    def _position(self, placement: str, tokens: int) -> Float[Array, "1 N D"] | None:
        """Returns the model's table if it is added at this place."""
        if self.position_embedding is None or self.position_placement != placement:
            return None
        return self.position_embedding(tokens)

    def _rope(self, padding: int) -> Rope | None:
        if self.rope_head_dim is None:
            return None
        cos, sin = rope_2d(self.grid, self.rope_head_dim, self.num_prefix)
        rows = ((0, padding), (0, 0))
        return jnp.pad(jnp.asarray(cos), rows), jnp.pad(jnp.asarray(sin), rows)


def has_class_token(options: ModelConfig) -> bool:
    """Returns whether a class token stands before the patches."""
    return options.pooling == "token" if options.class_token is None else options.class_token


def position_table(options: ModelConfig, grid: tuple[int, int], width: int) -> Table | None:
    """Returns what the table that is added to the tokens looks like; None for the other kinds."""
    kind = options.position_embedding
    if kind not in ("learned_1d", "learned_2d", "sincos_2d"):
        return None
    return Table(kind, grid, width, has_class_token(options), options.num_registers)


def _build_stem(shape: ViTShape, options: ModelConfig, rngs: nnx.Rngs) -> Trunk | None:
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
    shape: ViTShape, options: ModelConfig, rngs: nnx.Rngs
) -> AttentionPooling | None:
    if options.pooling != "map":
        return None
    return AttentionPooling(
        shape.width,
        shape.num_heads,
        shape.mlp_dim,
        gelu_approximate=options.gelu_approximate,
        norm_epsilon=options.norm_epsilon,
        dtype=jnp.dtype(options.dtype),
        rngs=rngs,
    )


def _block_spec(
    shape: ViTShape,
    options: ModelConfig,
    tokens: int,
    table: Table | None,
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


def mlp_hidden(shape: ViTShape, options: ModelConfig) -> int:
    """Returns the hidden features of a block's MLP; SwiGLU's are fewer unless set by hand."""
    if options.mlp == "swiglu" and options.mlp_dim is None:
        return swiglu_hidden(shape.mlp_dim)
    return shape.mlp_dim


def check_sizes(shape: ViTShape, options: ModelConfig, image_size: tuple[int, int]) -> None:
    """Raises ModelError where sizes do not go together."""
    p, what = shape.stride, "patch size" if shape.stem is None else "stride of stem and patches"
    if any(side < p or side % p for side in image_size):
        below, above = (tuple(max(p, side // p * p + d) for side in image_size) for d in (0, p))
        raise ModelError(
            f"image size {image_size[0]}x{image_size[1]} with {what} {p}",
            f"a multiple of {p}",
            f"use e.g. {below[0]}x{below[1]} or {above[0]}x{above[1]}, or another patch size",
        )
    if options.pooling == "token" and not has_class_token(options):
        raise ModelError(
            "pooling token with class_token False", "a class token to pool", "use pooling gap"
        )
    if options.position_placement != "stem" and position_table(options, (1, 1), 1) is None:
        raise ModelError(
            f"position_placement {options.position_placement} with position_embedding"
            f" {options.position_embedding}",
            "a table: learned_1d, learned_2d or sincos_2d",
            "use position_placement stem",
        )
    head_dim, rest = divmod(shape.width, shape.num_heads)
    if rest:
        raise ModelError(
            f"width {shape.width} with {shape.num_heads} heads", "a multiple of the heads",
            "change model.width or model.num_heads",
        )  # fmt: skip
    kind = options.position_embedding
    divisor = {
        "learned_2d": (shape.width, 2),
        "sincos_2d": (shape.width, 4),
        "rope_2d": (head_dim, 4),
    }
    size, factor = divisor.get(kind, (0, 1))
    if size % factor:
        what = "head dimension" if kind == "rope_2d" else "width"
        raise ModelError(
            f"position_embedding {kind} with {what} {size}",
            f"a multiple of {factor}",
            "change model.width, model.num_heads or the position embedding",
        )  # fmt: skip
