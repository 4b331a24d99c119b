"""Optimizers of optax that differ from the code of the recipes' authors, as the authors have them.

Each is a chain of optax's own parts, with the arguments of optax's function that recipes use.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.named_tree import map_named


def clip_tensors(max_norm: float) -> optax.GradientTransformation:
    """Scales each tensor whose norm is larger to this norm. Source: arXiv:2104.14294, its code."""

    def clip(update: jax.Array) -> jax.Array:
        return update * jnp.minimum(1, max_norm / (jnp.linalg.norm(update.ravel()) + 1e-6))

    return optax.stateless(lambda updates, _: jax.tree.map(clip, updates))


def lamb(
    learning_rate: float,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    mask: Callable[[Any], Any] | None = None,
    *,
    always_adapt: bool = False,
) -> optax.GradientTransformation:
    """LAMB, with the trust ratio on the parameters that have weight decay only.

    `mask` maps parameters to whether each has weight decay. `always_adapt` applies the trust ratio
    to all parameters, as `optax.lamb` does.

    Source: arXiv:1904.00962; the choice of parameters is that of apex's FusedLAMB, which DeiT III
    (arXiv:2204.07118) uses. A head of zeros cannot grow under a trust ratio.
    """
    trust = optax.scale_by_trust_ratio()
    return optax.chain(
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
        optax.add_decayed_weights(weight_decay, mask),
        trust if always_adapt or mask is None else optax.masked(trust, mask),
        optax.scale_by_learning_rate(learning_rate),
    )


def adafactor(
    learning_rate: float,
    min_dim_size_to_factor: int = 128,
    decay_rate: float = 0.8,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: float | None = 1.0,
    momentum: float | None = None,
    dtype_momentum: DTypeLike = jnp.float32,
    eps: float = 1e-30,
    *,
    beta2_cap: float = 1.0,
) -> optax.GradientTransformation:
    """`optax.adafactor` with a largest decay rate of the second moment.

    In step t, counted from 1, the decay rate is 1 - t^-decay_rate, but at most `beta2_cap`.

    Source: arXiv:1804.04235; the cap: arXiv:2106.04560, section 3.4.
    """

    def capped(step: jax.Array, power: float) -> jax.Array:
        return jnp.minimum(beta2_cap, 1 - (step + 1.0) ** -power)

    rescale = optax.scale_by_factored_rms(
        decay_rate=decay_rate,
        min_dim_size_to_factor=min_dim_size_to_factor,
        epsilon=eps,
        decay_rate_fn=capped,  # pyright: ignore[reportArgumentType]
    )
    # What follows the rescaling in optax's function, which has no cap.
    parts = [rescale]
    if clipping_threshold is not None:
        parts.append(optax.clip_by_block_rms(clipping_threshold))
    if multiply_by_parameter_scale:
        parts.append(optax.scale_by_param_block_rms())
    if momentum is not None:
        parts.append(optax.ema(momentum, debias=False, accumulator_dtype=dtype_momentum))
    return optax.chain(*parts, optax.scale_by_learning_rate(learning_rate))


def muon(
    learning_rate: float,
    beta: float = 0.95,
    ns_steps: int = 5,
    eps: float = 1e-8,
    consistent_rms: float | None = None,
    mu_dtype: DTypeLike | None = None,
    adam_b1: float = 0.9,
    adam_b2: float = 0.999,
    adam_learning_rate: float | None = None,
    *,
    is_matrix: Callable[[str], bool],
) -> optax.GradientTransformation:
    """Muon with Nesterov momentum on matrices, and Adam without it on everything else.

    `optax.contrib.muon` hands `nesterov` on to Adam, and corrects the bias of the two terms of the
    Nesterov sum separately, which changes their proportion in the first steps.

    `consistent_rms` scales updates by this times sqrt(max(inputs, outputs)) (arXiv:2502.16982);
    None: by sqrt(max(1, outputs / inputs)). `mu_dtype` is the type of both first moments.
    `is_matrix` says by a parameter's name whether Muon updates it.

    Source: github.com/KellerJordan/Muon.
    """

    def labels(params: Any) -> Any:
        return map_named(lambda name, _: "muon" if is_matrix(name) else "adam", params)

    def orthogonalize(name: str, update: jax.Array) -> jax.Array:
        matrices = _as_matrices(name, update)
        inputs, outputs = matrices.shape[1:]
        if consistent_rms is None:
            scale = max(1, outputs / inputs) ** 0.5
        else:
            scale = consistent_rms * max(inputs, outputs) ** 0.5
        return _from_matrices(newton_schulz(matrices, ns_steps, eps) * scale, update.shape)

    rate = learning_rate if adam_learning_rate is None else adam_learning_rate
    of_matrices = optax.chain(
        optax.trace(beta, nesterov=True, accumulator_dtype=mu_dtype),
        optax.stateless(lambda updates, _: map_named(orthogonalize, updates)),
        optax.scale_by_learning_rate(learning_rate),
    )
    adam = optax.adam(rate, b1=adam_b1, b2=adam_b2, eps=eps, mu_dtype=mu_dtype)
    return optax.partition({"muon": of_matrices, "adam": adam}, labels)


def newton_schulz(x: Float[Array, "B M N"], steps: int = 5, eps: float = 1e-8) -> Array:
    """Returns nearly orthogonal matrices: all singular values are about 1.

    Source: github.com/KellerJordan/Muon, with its coefficients.
    """
    if x.shape[1] > x.shape[2]:
        return newton_schulz(x.mT, steps, eps).mT
    x = x / (jnp.linalg.norm(x, axis=(1, 2), keepdims=True) + eps)
    for _ in range(steps):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def _as_matrices(name: str, x: jax.Array) -> Float[Array, "B M N"]:
    """Returns the kernel of a layer as matrices [inputs, outputs]; of qkv as three."""
    if re.search(r"/(qkv|query|key|value)/kernel$", name) and x.ndim > 2:
        # [D, 3, H, K] or [D, H, K]
        return jnp.moveaxis(x.reshape(x.shape[0], -1, x.shape[-2] * x.shape[-1]), 1, 0)
    # [in, out], [H, K, D], or [height, width, in, out] of patches and convolutions
    return x.reshape(1, -1, x.shape[-1])


def _from_matrices(matrices: Float[Array, "B M N"], shape: tuple[int, ...]) -> jax.Array:
    """Undoes `_as_matrices`."""
    return jnp.moveaxis(matrices, 0, 1).reshape(shape)
