"""The text tower of a pair of towers: tokens -> embeddings -> encoder -> pooling -> projection."""

import re
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from vit_jax.errors import ConfigError, ModelError, nearest
from vit_jax.models.activation_sharding import constrain
from vit_jax.models.attention import Mask
from vit_jax.models.block_options import BlockOptions
from vit_jax.models.blocks import Encoder, EncoderShape
from vit_jax.models.heads import AttentionPooling
from vit_jax.models.layers import LayerNorm
from vit_jax.models.options import ModelConfig
from vit_jax.models.vit_family import SMALL_VITS, VIT_SIZES
from vit_jax.schema import Section, option

# name: width, depth, MLP dim, heads. Published text towers have the sizes of ViTs; the small ones
# belong to ViT-Mini, -Micro, -Nano and -Pico.
TEXT_SIZES = {
    **{f"Text-{size}": sizes for size, sizes in VIT_SIZES.items()},
    **{
        f"Text-{match[1]}": (shape.width, shape.depth, shape.mlp_dim, shape.num_heads)
        for name, shape in SMALL_VITS.items()
        if (match := re.fullmatch(r"ViT-(\w+)/\d+", name))
    },
}


class TextConfig(Section):
    """Options of a text tower. The name of a pair of towers sets their defaults."""

    kind: ClassVar[str] = "a text tower"

    name: str = option("Text-B")
    """Width, depth, MLP dim and heads, e.g. `Text-B`: those of the ViT of that size."""
    width: int | None = option(None, at_least=1)
    """Overrides the width of the named size; None: no override. The sizes below work the same."""
    depth: int | None = option(None, at_least=1)
    """Number of blocks."""
    mlp_dim: int | None = option(None, at_least=1)
    """Hidden features of a block's MLP."""
    num_heads: int | None = option(None, at_least=1)
    """Attention heads of a block."""
    vocabulary_size: int = option(32_000, at_least=1)
    """Number of token embeddings. It must be that of the tokenizer."""
    context_length: int = option(64, at_least=1)
    """Number of position embeddings: the longest text, in tokens."""
    is_causal: bool = option(False)
    """Whether a token attends only to itself and the tokens before it, as in CLIP."""
    pad_token: int | None = option(None, at_least=0)
    """Token that no token attends to, as in BERT, nor attention pooling. None: all tokens are
    attended to, as in SigLIP.
    """
    pooling: Literal["first", "last", "end_token", "map", "mean"] = option("last")
    """How tokens become one vector. first: BERT's class token. last: the last position, as in
    SigLIP. end_token: the position of `end_token`, as in CLIP. map: attention pooling. mean: the
    mean of all tokens that are not padding.
    """
    end_token: int | None = option(None, at_least=0)
    """Token that ends a text, for pooling `end_token`, which takes its first position. None: the
    position of the largest token, as in CLIP, whose end token is the last of its vocabulary.
    """
    activation: Literal["gelu", "gelu_tanh", "quick_gelu"] = option("gelu_tanh")
    """gelu: exact. gelu_tanh: its tanh approximation. quick_gelu: x * sigmoid(1.702 x)."""
    norm_placement: Literal["pre", "post"] = option("pre")
    """post: LayerNorm after each residual sum and after the embedding, as in BERT."""
    norm_epsilon: float = option(1e-6, above=0)
    """Added to the variance in LayerNorm."""
    num_segments: int = option(0, at_least=0)
    """Number of segment embeddings, as in BERT. The first is added to every token."""

    def check(self) -> None:
        """Raises ConfigError for a token that is not in the vocabulary."""
        for name in ("pad_token", "end_token"):
            token = getattr(self, name)
            if token is not None and token >= self.vocabulary_size:
                raise ConfigError(
                    f"is {token}",
                    f"a token below vocabulary_size {self.vocabulary_size}",
                    "correct one of them",
                    key=name,
                )
        if self.name not in TEXT_SIZES:
            raise ConfigError(
                f"is {self.name!r}",
                f"one of {', '.join(TEXT_SIZES)}",
                f"did you mean {nearest(self.name, list(TEXT_SIZES))!r}?",
                key="name",
            )


def text_shape(options: TextConfig) -> EncoderShape:
    """Returns the sizes of a text tower."""
    named = zip(("width", "depth", "mlp_dim", "num_heads"), TEXT_SIZES[options.name], strict=True)
    shape = EncoderShape(**{name: getattr(options, name) or size for name, size in named})
    if shape.width % shape.num_heads:
        raise ModelError(
            f"a text tower of width {shape.width} with {shape.num_heads} heads",
            "a multiple of the heads",
            "change model.text.width or model.text.num_heads",
        )
    return shape


def check_vocabulary(options: TextConfig, vocabulary_size: int, tokenizer: str) -> None:
    """Raises ModelError unless a tokenizer has as many tokens as the tower has embeddings."""
    if vocabulary_size != options.vocabulary_size:
        raise ModelError(
            f"{tokenizer} with {vocabulary_size:,} tokens for a text tower with"
            f" {options.vocabulary_size:,} embeddings",
            "the same number",
            f"use the tokenizer of the weights, or set model.text.vocabulary_size to"
            f" {vocabulary_size}",
        )


class TextTower(nnx.Module):
    """Text encoder with the blocks of the ViT.

    Without `embedding_size` there is no projection, and E is the width. `dtype`, `remat` and `scan`
    are those of `pair`. `platform` is the one that it will run on; None: the default backend.

    Source: arXiv:2103.00020, section 2.4 (CLIP); arXiv:2303.15343, section 4 (SigLIP);
    arXiv:2111.07991, section 4 (LiT); arXiv:1810.04805, section 3 (BERT).
    """

    def __init__(
        self,
        options: TextConfig,
        *,
        embedding_size: int | None,
        projection_bias: bool = True,
        pair: ModelConfig,
        platform: str | None = None,
        rngs: nnx.Rngs,
    ):
        shape, dtype = text_shape(options), jnp.dtype(pair.dtype)
        self.options, self.dtype, self.num_heads = options, dtype, shape.num_heads
        self.num_tokens = options.context_length
        make_norm = partial(LayerNorm, shape.width, epsilon=options.norm_epsilon, dtype=dtype)
        make_table = partial(_build_table, width=shape.width, rngs=rngs)
        is_post = options.norm_placement == "post"
        self.token_embedding = make_table(options.vocabulary_size, stddev=0.02)
        self.positions = make_table(options.context_length, stddev=0.01)
        segments = options.num_segments
        self.segment_embedding = make_table(segments, stddev=0.02) if segments else None
        self.embedding_norm = make_norm() if is_post else None
        platform = platform or jax.default_backend()
        of_blocks = BlockOptions(
            mlp="quick_gelu" if options.activation == "quick_gelu" else "gelu",
            gelu_approximate=options.activation == "gelu_tanh",
            norm_placement=options.norm_placement,
            norm_epsilon=options.norm_epsilon,
            # The kernels that take a mask.
            attention_implementation="einsum" if platform == "cpu" else "xla",
            dtype=pair.dtype,
            remat=pair.remat,
            scan=pair.scan,
        )
        self.encoder = Encoder(
            shape, of_blocks, num_tokens=self.num_tokens, platform=platform, rngs=rngs
        )
        self.norm = None if is_post else make_norm()
        make_pooling = partial(
            AttentionPooling, shape.width, shape.num_heads, shape.mlp_dim, of_blocks, rngs=rngs
        )
        self.attention_pooling = make_pooling() if options.pooling == "map" else None
        self.embedding_size = embedding_size or shape.width
        make_linear = partial(nnx.Linear, use_bias=projection_bias, rngs=rngs)
        self.projection = make_linear(shape.width, embedding_size) if embedding_size else None

    def __call__(self, tokens: Array | np.ndarray) -> Float[Array, "B E"]:
        """Returns one vector per text, f32, not normalised.

        Tokens are whole numbers [B, N], N at most `context_length`.
        """
        tokens = jnp.asarray(tokens)
        check_tokens(tokens, self.options)
        x = self.token_embedding[...][tokens] + self.positions[...][None, : tokens.shape[1]]
        if self.segment_embedding is not None:
            x = x + self.segment_embedding[...][:1][None]
        x = constrain(x.astype(self.dtype), "batch")
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        x, _ = self.encoder(x, mask=self._mask(tokens))
        x = x if self.norm is None else self.norm(x)
        features = constrain(self._pool(x, tokens).astype(jnp.float32), "batch")
        if self.projection is None:
            return features
        return constrain(self.projection(features), "batch", "tensor")

    def _is_text(self, tokens: Int[Array, "B N"]) -> Bool[Array, "B N"]:
        return tokens != self.options.pad_token

    def _mask(self, tokens: Int[Array, "B N"]) -> Mask | None:
        mask = None
        if self.options.is_causal:
            n = tokens.shape[1]
            mask = jnp.tril(jnp.ones((n, n), bool))[None, None]
        if self.options.pad_token is not None:
            shown = self._is_text(tokens)[:, None, None, :]
            n = tokens.shape[1]
            shown = jnp.broadcast_to(shown, (*shown.shape[:2], n, n))
            mask = shown if mask is None else mask & shown
        return mask

    def _pool(self, x: Float[Array, "B N D"], tokens: Int[Array, "B N"]) -> Float[Array, "B D"]:
        pooling, end = self.options.pooling, self.options.end_token
        if self.attention_pooling is not None:
            is_masked = self.options.pad_token is not None
            mask = self._is_text(tokens)[:, None, None, :] if is_masked else None
            return self.attention_pooling(x, mask=mask)
        if pooling == "mean":
            if self.options.pad_token is None:
                return x.mean(1, dtype=jnp.float32)
            weights = self._is_text(tokens).astype(jnp.float32)[:, :, None]
            return (x * weights).sum(1) / jnp.maximum(weights.sum(1), 1)
        if pooling == "end_token":
            at = tokens.argmax(-1) if end is None else (tokens == end).argmax(-1)
            return jnp.take_along_axis(x, at[:, None, None], axis=1)[:, 0]
        return x[:, 0] if pooling == "first" else x[:, -1]


def check_tokens(tokens: Any, options: TextConfig) -> None:
    """Raises ModelError unless tokens are whole numbers [B, N], N at most the context length."""
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ModelError(
            f"tokens of shape {tuple(tokens.shape)} and type {tokens.dtype}",
            "whole numbers of shape (batch, tokens)",
            "tokenize the texts and pad them to one length",
        )
    if tokens.shape[1] > options.context_length:
        raise ModelError(
            f"texts of {tokens.shape[1]} tokens for a text tower of {options.context_length}",
            f"at most {options.context_length} tokens",
            "cut the texts, or set model.text.context_length for a model that is trained anew",
        )


def _build_table(rows: int, stddev: float, *, width: int, rngs: nnx.Rngs) -> nnx.Param:
    init = nnx.initializers.normal(stddev=stddev)
    return nnx.Param(init(rngs.params(), (rows, width), jnp.float32))
