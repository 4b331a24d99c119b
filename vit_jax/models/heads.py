"""Pooling of tokens to one feature vector, and the classification head."""

import re
from collections.abc import Mapping
from functools import partial

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from vit_jax.models.activation_sharding import Dimension, constrain
from vit_jax.models.attention import NumValid, attend, attention_weights
from vit_jax.models.block_options import BlockOptions
from vit_jax.models.layers import LayerNorm
from vit_jax.models.mlp import Mlp

# Every family names its head `head`. A ViT can also have a `register_head`.
_HEAD = r"(register_)?head"
# Options of the model section that describe the head. A new head does not take them from weights.
HEAD_OPTIONS = frozenset({"representation_size", "register_head"})
# Sharding of the heads' parameters, the same in every family, see `Family.sharding_rules`.
HEAD_RULES = ((rf"{_HEAD}/.*/kernel", ("fsdp", "tensor")),)

_xavier_uniform = nnx.initializers.xavier_uniform()


class AttentionPooling(nnx.Module):
    """MAP head: a learned query (probe) attends to all tokens, then LayerNorm and a residual MLP.

    It has the activation, norm epsilon and dtype of the blocks. Its MLP is never gated.

    Source: arXiv:2106.04560, section 3.1 (multihead attention pooling).
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        mlp_dim: int,
        options: BlockOptions,
        *,
        rngs: nnx.Rngs,
    ):
        head_dim, dtype = width // num_heads, jnp.dtype(options.dtype)
        make = partial(nnx.LinearGeneral, kernel_init=_xavier_uniform, dtype=dtype, rngs=rngs)
        self.probe = nnx.Param(_xavier_uniform(rngs.params(), (1, width), jnp.float32)[None])
        self.query = make(width, (num_heads, head_dim))
        self.key = make(width, (num_heads, head_dim))
        self.value = make(width, (num_heads, head_dim))
        self.out = make((num_heads, head_dim), width, axis=(-2, -1))
        self.norm = LayerNorm(width, epsilon=options.norm_epsilon, dtype=dtype)
        self.mlp = Mlp(width, mlp_dim, options, rngs=rngs)

    def __call__(
        self,
        tokens: Float[Array, "B N D"],
        num_valid: NumValid = None,
        mask: Bool[Array, "#B 1 1 N"] | None = None,
    ) -> Float[Array, "B D"]:
        """Returns one vector per example.

        Tokens after the first `num_valid`, and those where the mask is False, get no weight.
        """
        shape = (tokens.shape[0], *self.probe.shape[1:])
        probe = constrain(jnp.broadcast_to(self.probe[...], shape), "batch")
        query, key, value = (
            constrain(layer(x), "batch", None, "tensor")
            for layer, x in ((self.query, probe), (self.key, tokens), (self.value, tokens))
        )
        attended = attend(query, key, value, num_valid=num_valid, mask=mask)
        x = constrain(self.out(attended), "batch")
        return (x + constrain(self.mlp(self.norm(x)), "batch"))[:, 0]

    def weights(self, tokens: Float[Array, "B N D"]) -> Float[Array, "B H N"]:
        """Returns the probe's attention weights over the tokens, f32; each row sums to 1."""
        query = self.query(self.probe[...])
        query = jnp.broadcast_to(query, (tokens.shape[0], *query.shape[1:]))
        return attention_weights(query, self.key(tokens))[:, :, 0]


class Head(nnx.Module):
    """Optional dense layer with tanh, then a zero-initialised linear layer.

    Without classes, the head returns its features. `representation_size` is the width of the tanh
    layer, if any. A `bias_init` of -10 suits sigmoid cross-entropy over many classes.
    `num_features` is the number of features before the linear layer.

    Source: arXiv:2010.11929, section 3.2 and D.3 (one hidden layer during pretraining, none in
    fine-tuning; zero-initialised).
    """

    def __init__(
        self,
        features: int,
        num_classes: int,
        *,
        representation_size: int | None = None,
        bias_init: float = 0.0,
        rngs: nnx.Rngs,
    ):
        size = representation_size or features
        make_linear = partial(
            nnx.Linear,
            size,
            num_classes,
            kernel_init=nnx.initializers.zeros,
            bias_init=nnx.initializers.constant(bias_init),
            rngs=rngs,
        )
        self.num_features = size
        self.pre_logits = nnx.Linear(features, size, rngs=rngs) if representation_size else None
        self.linear = make_linear() if num_classes else None

    def __call__(
        self, features: Float[Array, "B *N F"]
    ) -> tuple[Float[Array, "B *N C"], Float[Array, "B *N R"]]:
        """Returns the logits and the inputs of the linear layer, both f32."""
        features = constrain(features.astype(jnp.float32), "batch")
        if self.pre_logits is not None:
            features = constrain(jnp.tanh(self.pre_logits(features)), "batch")
        if self.linear is None:
            return features, features
        between: list[Dimension] = [None] * (features.ndim - 2)
        return constrain(self.linear(features), "batch", *between, "tensor"), features


def is_head(name: str) -> bool:
    """Whether a parameter belongs to a head."""
    return re.match(rf"{_HEAD}/", name) is not None


def count_classes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Returns the number of classes of a model with these parameters; 0: it returns features."""
    kernel = shapes.get("head/linear/kernel")
    return 0 if kernel is None else kernel[-1]


def pool_tokens(
    tokens: Float[Array, "B N D"], pooling: str, num_prefix: int
) -> Float[Array, "B F"]:
    """Pools tokens (class token if any, registers, patches) by a method without parameters.

    "token" is the first token, "gap" the mean of the patches, "flatten" all patches concatenated.
    """
    if pooling == "token":
        return tokens[:, 0]
    patches = tokens[:, num_prefix:]
    if pooling == "gap":
        return jnp.mean(patches, axis=1, dtype=jnp.float32).astype(tokens.dtype)
    return patches.reshape(patches.shape[0], -1)
