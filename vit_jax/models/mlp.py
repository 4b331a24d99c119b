"""The MLP of an encoder block: two dense layers with an activation between, or the gated SwiGLU."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.models.activation_sharding import constrain
from vit_jax.models.block_options import BlockOptions
from vit_jax.models.layers import gelu
from vit_jax.models.stacking import save_for_backward

_kernel_init = nnx.initializers.xavier_uniform()
_bias_init = nnx.initializers.normal(stddev=1e-6)


def quick_gelu(x: jax.Array) -> jax.Array:
    """Returns x * sigmoid(1.702 x), as in CLIP. Source: arXiv:1606.08415, section 2."""
    return x * jax.nn.sigmoid(1.702 * x)


# The functions that `BlockOptions.activation` names.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": partial(gelu, approximate=False),
    "gelu_tanh": partial(gelu, approximate=True),
    "quick_gelu": quick_gelu,
}


def build_mlp(width: int, hidden: int, options: BlockOptions, *, rngs: nnx.Rngs) -> "Mlp | SwiGlu":
    """Makes the MLP of a block with these options."""
    return (SwiGlu if options.mlp == "swiglu" else Mlp)(width, hidden, options, rngs=rngs)


class Mlp(nnx.Module):
    """Dense -> activation -> dropout -> dense -> dropout. Source: arXiv:2010.11929, section 3.1."""

    def __init__(
        self,
        width: int,
        hidden: int,
        options: BlockOptions,
        *,
        kernel_init: nnx.Initializer = _kernel_init,
        bias_init: nnx.Initializer = _bias_init,
        rngs: nnx.Rngs,
    ):
        dtype = jnp.dtype(options.dtype)
        make = partial(
            nnx.Linear, kernel_init=kernel_init, bias_init=bias_init, dtype=dtype, rngs=rngs
        )
        self.expand = make(width, hidden)
        self.contract = make(hidden, width)
        self.activation = options.activation
        self.dropout = nnx.Dropout(options.dropout)

    def __call__(
        self, x: Float[Array, "*B N D"], *, key: jax.Array | None = None
    ) -> Float[Array, "*B N D"]:
        """Applies the MLP; `key` turns dropout on."""
        keys = (None, None) if key is None else jax.random.split(key)
        hidden = ACTIVATIONS[self.activation](save_for_backward(_shard(self.expand(x))))
        hidden = self.dropout(hidden, deterministic=key is None, rngs=keys[0])
        return self.dropout(self.contract(hidden), deterministic=key is None, rngs=keys[1])


class SwiGlu(nnx.Module):
    """(SiLU(x W_gate) * x W_value) W_out. Source: arXiv:2002.05202, equation 6.

    It has three matrices instead of two, so `hidden` must be two thirds of the plain MLP's for the
    same number of parameters; see `swiglu_hidden`.
    """

    def __init__(self, width: int, hidden: int, options: BlockOptions, *, rngs: nnx.Rngs):
        dtype = jnp.dtype(options.dtype)
        make = partial(
            nnx.Linear, kernel_init=_kernel_init, bias_init=_bias_init, dtype=dtype, rngs=rngs
        )
        self.gate = make(width, hidden)
        self.value = make(width, hidden)
        self.contract = make(hidden, width)
        self.dropout = nnx.Dropout(options.dropout)

    def __call__(
        self, x: Float[Array, "*B N D"], *, key: jax.Array | None = None
    ) -> Float[Array, "*B N D"]:
        """Applies the gated MLP; `key` turns dropout on."""
        keys = (None, None) if key is None else jax.random.split(key)
        gate, value = (save_for_backward(_shard(linear(x))) for linear in (self.gate, self.value))
        hidden = jax.nn.silu(gate) * value
        hidden = self.dropout(hidden, deterministic=key is None, rngs=keys[0])
        return self.dropout(self.contract(hidden), deterministic=key is None, rngs=keys[1])


def _shard(hidden: jax.Array) -> jax.Array:
    """Splits hidden features over `tensor`, as Megatron-LM does (arXiv:1909.08053)."""
    return constrain(hidden, "batch", *(None,) * (hidden.ndim - 2), "tensor")


def swiglu_hidden(mlp_dim: int) -> int:
    """Returns two thirds of `mlp_dim`, rounded up to a multiple of 8.

    With it, SwiGLU has as many parameters as a plain MLP.

    >>> swiglu_hidden(3072)
    2048
    """
    return (int(mlp_dim * 2 / 3) + 7) // 8 * 8
