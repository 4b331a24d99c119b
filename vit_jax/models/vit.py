"""The Vision Transformer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.config import ModelConfig
from vit_jax.errors import ModelError
from vit_jax.models.attention import Implementation, Rope, choose_attention, log_choice
from vit_jax.models.blocks import BLOCK_INTERMEDIATES, BlockSpec, Encoder
from vit_jax.models.heads import AttentionPooling, Head, pool
from vit_jax.models.layers import LayerNorm
from vit_jax.models.mlp import swiglu_hidden
from vit_jax.models.position import Learned1d, Learned2d, Sincos2d, rope_2d

INTERMEDIATES = ("embedded", "encoded", "pre_logits", *BLOCK_INTERMEDIATES)


@dataclasses.dataclass(frozen=True)
class ViTShape:
    """The sizes that a name like "ViT-B/16" stands for.

    Attributes:
        width: D, features of a token.
        depth: number of encoder blocks.
        mlp_dim: hidden features of a block's MLP.
        num_heads: attention heads.
        patch_size: height and width of a patch in pixels.
    """

    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    patch_size: int


class PatchEmbedding(nnx.Module):
    """Cuts an image into patches and projects each linearly.

    The kernel has the shape of a convolution's, [P, P, 3, D], but is applied as one matmul.

    Source: arXiv:2010.11929, equation 1.
    """

    def __init__(self, patch_size: int, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        shape = (patch_size, patch_size, 3, width)
        self.kernel = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), shape, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width))
        self.patch_size = patch_size
        self.dtype = dtype

    def __call__(self, images: Float[Array, "B H W 3"]) -> Float[Array, "B N D"]:
        """Returns the embedded patches in raster order."""
        batch, height, width, channels = images.shape
        p = self.patch_size
        patches = images.reshape(batch, height // p, p, width // p, p, channels)
        patches = patches.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, p * p * channels)
        kernel = self.kernel[...].reshape(p * p * channels, -1)
        embedded = patches.astype(self.dtype) @ kernel.astype(self.dtype)
        return embedded + self.bias[...].astype(self.dtype)[None, None]


class ViT(nnx.Module):
    """Vision Transformer: patches -> tokens -> encoder -> pooling -> head.

    Args:
        shape: sizes, see `registry.resolve`.
        options: the model section of a config.
        num_classes: C; 0 for features instead of logits.
        image_size: (height, width) in pixels that position information is made for.
        platform: "cpu", "gpu" or "tpu" that it will run on; None: the default backend.
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
        rngs: nnx.Rngs,
    ):
        check_sizes(shape, options, image_size)
        width, dtype = shape.width, jnp.dtype(options.dtype)
        self.dtype = dtype
        self.pooling = options.pooling
        self.image_size = image_size
        self.grid = (image_size[0] // shape.patch_size, image_size[1] // shape.patch_size)
        patches = self.grid[0] * self.grid[1]
        has_class_token = options.pooling == "token"
        self.num_prefix = has_class_token + options.num_registers
        self.tokens = self.num_prefix + patches

        self.patch_embedding = PatchEmbedding(shape.patch_size, width, dtype=dtype, rngs=rngs)
        self.class_token = nnx.Param(jnp.zeros((1, 1, width))) if has_class_token else None
        self.registers = _build_registers(options.num_registers, width, rngs)
        self.position_embedding = _build_position_embedding(
            options.position_embedding, self.grid, has_class_token, width, rngs
        )
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
            _block_spec(shape, options, self.tokens, self.attention.implementation),
            shape.depth,
            stochastic_depth=options.stochastic_depth,
            remat=options.remat,
            scan=options.scan,
            rngs=rngs,
        )
        self.norm = LayerNorm(width, dtype=dtype) if options.norm_placement == "pre" else None
        self.attention_pooling = _build_attention_pooling(shape, options, rngs)
        self.head = Head(
            width * (patches if options.pooling == "flatten" else 1),
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
        """Returns the logits, float32.

        Args:
            images: floating point [B, H, W, 3] in [-1, 1], of the size that the model was made for.
            key: turns dropout and stochastic depth on; without it the model is deterministic.
            return_intermediates: names from INTERMEDIATES. If given, the result is a pair of the
                logits and a dict: "embedded" and "encoded" tokens [B, N, D], "pre_logits" [B, F],
                and with a leading axis over the blocks "attention_weights" [L, B, H, N, N],
                "attention_output", "mlp_output" and "block_output" [L, B, N, D].

        Raises:
            ModelError: images of another size, or an unknown intermediate.
        """
        images = jnp.asarray(images)
        self._check_call(images, return_intermediates)
        keys = (None, None) if key is None else tuple(jax.random.split(key))

        embedded = self.embed(images, keys[0])
        x = embedded
        padding = self.attention.padded_tokens - self.tokens
        if padding:
            x = jnp.pad(x, ((0, 0), (0, padding), (0, 0)))
        x, found = self.encoder(
            x, rope=self._rope(padding), valid_tokens=self.tokens if padding else None, key=keys[1],
            capture=tuple(n for n in return_intermediates if n in BLOCK_INTERMEDIATES),
        )  # fmt: skip
        if padding:
            x = x[:, : self.tokens]
            found = {name: _unpad(name, value, self.tokens) for name, value in found.items()}
        encoded = x if self.norm is None else self.norm(x)

        if self.attention_pooling is not None:
            features = self.attention_pooling(encoded[:, self.num_prefix :])
        else:
            features = pool(encoded, self.pooling, self.num_prefix)
        logits, pre_logits = self.head(features)
        if not return_intermediates:
            return logits
        found.update(embedded=embedded, encoded=encoded, pre_logits=pre_logits)
        return logits, {name: found[name] for name in return_intermediates}

    def embed(
        self, images: Float[Array, "B H W 3"], key: jax.Array | None = None
    ) -> Float[Array, "B N D"]:
        """Returns the tokens that enter the encoder: class token, registers, patches."""
        x = self.patch_embedding(images)
        patches = x.shape[1]
        prefix = []
        if self.position_embedding is not None:
            table = self.position_embedding().astype(self.dtype)
            x = x + table[:, -patches:]
        if self.class_token is not None:
            class_token = self.class_token[...].astype(self.dtype)
            # Only the 1-D table has a row for it.
            if isinstance(self.position_embedding, Learned1d):
                class_token = class_token + self.position_embedding().astype(self.dtype)[:, :1]
            prefix.append(class_token)
        if self.registers is not None:
            prefix.append(self.registers[...].astype(self.dtype))
        prefix = [jnp.broadcast_to(p, (x.shape[0], *p.shape[1:])) for p in prefix]
        x = jnp.concatenate([*prefix, x], axis=1)
        return self.dropout(x, deterministic=key is None, rngs=key)

    def _rope(self, padding: int) -> Rope | None:
        if self.rope_head_dim is None:
            return None
        cos, sin = rope_2d(self.grid, self.rope_head_dim, self.num_prefix)
        rows = ((0, padding), (0, 0))
        return jnp.pad(jnp.asarray(cos), rows), jnp.pad(jnp.asarray(sin), rows)

    def _check_call(self, images: jax.Array, names: tuple[str, ...]) -> None:
        log_choice(self.attention, self.tokens)
        if images.ndim != 4 or images.shape[1:] != (*self.image_size, 3):
            raise ModelError(
                f"images of shape {tuple(images.shape)}",
                f"(batch, {self.image_size[0]}, {self.image_size[1]}, 3)",
                "resize the images, or make the model with their image_size",
            )
        if not jnp.issubdtype(images.dtype, jnp.floating):
            raise ModelError(
                f"images of type {images.dtype}", "floating point in [-1, 1]", "use x / 127.5 - 1"
            )
        for name in names:
            if name not in INTERMEDIATES:
                raise ModelError(
                    f"unknown intermediate {name!r}", "names from " + ", ".join(INTERMEDIATES),
                    "ask for one of these",
                )  # fmt: skip


def _build_position_embedding(
    kind: str, grid: tuple[int, int], has_class_token: bool, width: int, rngs: nnx.Rngs
) -> Learned1d | Learned2d | Sincos2d | None:
    """Returns the module whose table is added to the tokens; None for the other kinds."""
    if kind == "learned_1d":
        return Learned1d(has_class_token + grid[0] * grid[1], width, rngs=rngs)
    if kind == "learned_2d":
        return Learned2d(grid, width, rngs=rngs)
    return Sincos2d(grid, width) if kind == "sincos_2d" else None


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
        dtype=jnp.dtype(options.dtype),
        rngs=rngs,
    )


def _block_spec(
    shape: ViTShape, options: ModelConfig, tokens: int, implementation: Implementation
) -> BlockSpec:
    return BlockSpec(
        width=shape.width,
        num_heads=shape.num_heads,
        tokens=tokens,
        mlp=options.mlp,
        mlp_hidden=mlp_hidden(shape, options),
        gelu_approximate=options.gelu_approximate,
        norm_placement=options.norm_placement,
        layer_scale=options.layer_scale,
        relative=options.position_embedding == "relative",
        qk_norm=options.qk_norm,
        dropout=options.dropout,
        attention_implementation=implementation,
        dtype=jnp.dtype(options.dtype),
    )


def _build_registers(count: int, width: int, rngs: nnx.Rngs) -> nnx.Param | None:
    if not count:
        return None
    init = nnx.initializers.normal(stddev=0.02)
    return nnx.Param(init(rngs.params(), (1, count, width), jnp.float32))


def _unpad(name: str, value: jax.Array, tokens: int) -> jax.Array:
    """Cuts padding tokens off a captured intermediate."""
    if name == "attention_weights":
        return value[..., :tokens, :tokens]
    return value[..., :tokens, :]


def mlp_hidden(shape: ViTShape, options: ModelConfig) -> int:
    """Returns the hidden features of a block's MLP; SwiGLU's are fewer unless set by hand."""
    if options.mlp == "swiglu" and options.mlp_dim is None:
        return swiglu_hidden(shape.mlp_dim)
    return shape.mlp_dim


def check_sizes(shape: ViTShape, options: ModelConfig, image_size: tuple[int, int]) -> None:
    """Raises ModelError where sizes do not go together."""
    p = shape.patch_size
    if any(side < p or side % p for side in image_size):
        below, above = (tuple(max(p, side // p * p + d) for side in image_size) for d in (0, p))
        raise ModelError(
            f"image size {image_size[0]}x{image_size[1]} with patch size {p}",
            f"a multiple of {p}",
            f"use e.g. {below[0]}x{below[1]} or {above[0]}x{above[1]}, or another patch size",
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
