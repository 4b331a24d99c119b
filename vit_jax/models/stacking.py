"""Stacks of identical layers, applied by `lax.scan`.

Every parameter of a stack has a leading axis of size depth. Only one layer is compiled, so compile
time does not grow with depth. Unrolling the loop changes neither names nor shapes of parameters.
Stacks are named `blocks`; optimizers recognise them by that name.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from vit_jax.models.activation_sharding import devices_along, gathered
from vit_jax.models.options import Remat


@dataclasses.dataclass(frozen=True)
class LayerLoop:
    """How a stack is executed. It changes speed and memory, but not the result.

    Without `scan`, the loop over the layers is unrolled. For its backward pass a layer keeps, with
    `remat` "none": everything; "dots": the results of matmuls and convolutions with parameters;
    "full": only its input.
    """

    scan: bool
    remat: Remat


@dataclasses.dataclass(frozen=True)
class Stack:
    """The sizes of a model's stack, from which `train/step_choice.py` chooses a `LayerLoop`."""

    depth: int
    width: int  # D, features of a token.
    tokens: int  # N.
    layer_values: int  # Values of one image that a layer keeps for its backward pass.
    # Logits of one image that a layer's attention writes to memory; 0: none, or it is not known.
    logits: int = 0


def layer_loop(scan: bool | Literal["auto"], remat: Remat | Literal["auto"]) -> LayerLoop:
    """Returns the loop of a stack with these options.

    "auto" scans, which compiles fastest. On a TPU a scanned stack then keeps "dots": ViT-L/16 with
    32 images a chip takes 8.5 GiB instead of 15.6 and moves a fifth fewer bytes, because XLA cannot
    fuse cheap operations of the forward loop into the backward loop. A training step chooses its
    loop in `train/step_choice.py`.
    """
    if remat == "auto":
        remat = "dots" if jax.default_backend() == "tpu" and scan is not False else "none"
    return LayerLoop(True if scan == "auto" else scan, remat)


_KEPT = "kept"


def save_for_backward(x: jax.Array) -> jax.Array:
    """Marks what a layer keeps for its backward pass with remat "dots".

    These are the results of matmuls after their bias, and the sums of residuals. With them, the
    backward pass repeats only cheap operations, and reads each of them once.
    """
    return checkpoint_name(x, _KEPT)


def _is_kept(primitive: Any, *args: Any, **params: Any) -> bool:
    named = jax.checkpoint_policies.save_only_these_names(_KEPT)
    return primitive is jax.lax.conv_general_dilated_p or named(primitive, *args, **params)


_REMAT_POLICIES = {"dots": _is_kept, "full": jax.checkpoint_policies.nothing_saveable}


def build_stack(make: Callable[[nnx.Rngs], nnx.Module], depth: int, rngs: nnx.Rngs) -> nnx.Module:
    """Returns one module with the stacked parameters of `depth` layers, each built by `make`."""

    @nnx.split_rngs(splits=depth)
    @nnx.vmap(in_axes=0, out_axes=0)
    def make_all(rngs: nnx.Rngs) -> nnx.Module:
        return make(rngs)

    return make_all(rngs)


def scan_stack(
    blocks: nnx.Module,
    body: Callable[[Any, jax.Array, Any], tuple[jax.Array, Any]],
    x: jax.Array,
    depth: int,
    *,
    span: tuple[int, int] | None = None,
    per_layer: Any = None,
    loop: LayerLoop = LayerLoop(True, "none"),
) -> tuple[jax.Array, Any]:
    """Applies the layers of a stack one after the other, each of which keeps the shape of x.

    Args:
        blocks: from `build_stack`.
        body: (layer, x, its slice of `per_layer`) -> (new x, values to collect).
        x: input of the first layer.
        depth: number of layers.
        span: (first, end): apply only the layers first to end - 1, counted from 0.
        per_layer: tree of more arrays with a leading axis over the layers.
        loop: how to execute it.

    Returns:
        The last x, and the collected values with a leading axis over the layers.
    """
    graphdef, state = nnx.split(blocks)

    def step(x: jax.Array, layer: Any) -> tuple[jax.Array, Any]:
        params, extra = layer
        return body(nnx.merge(graphdef, gathered(params)), x, extra)

    if loop.remat != "none":
        policy = _REMAT_POLICIES[loop.remat]
        step = jax.checkpoint(step, policy=policy, prevent_cse=not loop.scan)
    layers = (_prepare_kernels(blocks, nnx.to_pure_dict(state)), per_layer)
    if span not in (None, (0, depth)):
        depth = span[1] - span[0]
        layers = jax.tree.map(lambda leaf: leaf[slice(*span)], layers)
    return jax.lax.scan(step, x, layers, length=depth, unroll=1 if loop.scan else depth)


def keys_and_drop_rates(
    key: jax.Array | None, depth: int, stochastic_depth: float, *, constant: bool = False
) -> tuple[jax.Array | None, jax.Array | None]:
    """Returns a random key and a rate of stochastic depth for every layer, for `scan_stack`.

    The rate grows linearly from 0 to `stochastic_depth` at the last layer, or is `constant`.
    Without a key both are None, and with a rate of 0 the rates are None.
    """
    if key is None:
        return None, None
    first = stochastic_depth if constant else 0
    rates = np.linspace(first, stochastic_depth, depth, dtype=np.float32)
    return jax.random.split(key, depth), jnp.asarray(rates) if stochastic_depth else None


def _prepare_kernels(blocks: nnx.Module, params: dict[str, Any]) -> dict[str, Any]:
    """Casts the parameters of dense layers to the dtype in which they compute, and flattens them.

    A dense layer casts its float32 kernel anyway. If it is cast before the loop, the loop also
    collects the gradients of all layers in that dtype: with bfloat16 they have the same values and
    take half the memory. For the same reason kernels with several output axes become matrices here.
    """
    params = jax.tree.map(lambda leaf: leaf, params)  # A copy, because the dicts are changed.
    tree: Any = params
    for path, module in nnx.iter_modules(blocks):
        if isinstance(module, nnx.Linear | nnx.LinearGeneral) and module.dtype is not None:
            own: Any = functools.reduce(lambda part, key: part[key], path, tree)
            own.update({name: leaf.astype(module.dtype) for name, leaf in own.items()})
            if isinstance(module, nnx.LinearGeneral) and devices_along("tensor") == 1:
                depth, inputs = len(own["kernel"]), math.prod(module.in_features)
                own["kernel"] = own["kernel"].reshape(depth, inputs, -1)
                if "bias" in own:
                    own["bias"] = own["bias"].reshape(depth, -1)
    return params


def checkpointed(layer: nnx.Module, x: jax.Array, remat: Remat) -> jax.Array:
    """Returns layer(x) with the remat policy of a stack."""
    if remat == "none":
        return layer(x)  # pyright: ignore[reportCallIssue]
    graphdef, state = nnx.split(layer)

    def call(params: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, params)(x)

    return jax.checkpoint(call, policy=_REMAT_POLICIES[remat])(nnx.to_pure_dict(state), x)
