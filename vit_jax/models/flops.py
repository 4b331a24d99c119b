"""Counts operations in traced programs.

Operations are counted in the program that JAX traces, so no model needs a formula. XLA's own cost
analysis is not used, because it counts the body of a scan only once.
"""

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from flax import nnx
from jax.extend import core

from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import build_model
from vit_jax.named_tree import map_named


def count_macs(jaxpr: core.Jaxpr) -> int:
    """Returns the multiply-accumulates of a program's matmuls and convolutions.

    Other operations, such as additions and normalisations, are not counted. The body of a scan is
    counted once per iteration, that of a Pallas kernel once per step of its grid, that of a
    shard_map once per shard, and a conditional as its most expensive branch. A while loop with
    matmuls is an error, because its number of iterations is unknown.
    """
    total = 0
    for eqn in jaxpr.eqns:
        inner = [count_macs(sub) for sub in sub_jaxprs(eqn)]
        kind = eqn.primitive.name
        if kind == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            left = _shape(eqn.invars[0])
            total += math.prod(_shape(eqn.outvars[0])) * math.prod(left[i] for i in contracted)
        elif kind == "conv_general_dilated":
            kernel = _shape(eqn.invars[1])
            outputs = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
            total += math.prod(_shape(eqn.outvars[0])) * math.prod(kernel) // outputs
        elif kind == "while" and any(inner):
            raise ValueError(
                "cannot count the matmuls in a while loop: its number of iterations is unknown"
            )
        elif kind == "cond":
            total += max(inner)
        elif kind == "pallas_call":
            total += sum(inner) * math.prod(eqn.params["grid_mapping"].grid)
        elif kind == "shard_map":
            sizes = eqn.params["mesh"].shape
            total += sum(inner) * math.prod(sizes[axis] for axis in eqn.params["newly_manual_axes"])
        else:
            total += sum(inner) * eqn.params.get("length", 1)
    return total


def sub_jaxprs(eqn: Any) -> Iterator[core.Jaxpr]:
    """Yields the programs inside an operation, e.g. the body of a scan."""
    for value in eqn.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            jaxpr = getattr(item, "jaxpr", item)  # Until JAX 0.11 one with constants is wrapped.
            if isinstance(jaxpr, core.Jaxpr):
                yield jaxpr


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


def traced_macs(function: Callable[..., Any], *args: Any) -> int:
    """Returns the multiply-accumulates of a function of arrays or shapes, which is not run."""
    return count_macs(jax.make_jaxpr(function)(*args).jaxpr)


def forward_macs(options: ModelConfig, *, num_classes: int, image_size: tuple[int, int]) -> int:
    """Returns the multiply-accumulates of one image's forward pass.

    >>> from vit_jax.models.registry import model_options
    >>> config = model_options("ViT-B/16")
    >>> round(forward_macs(config, num_classes=1000, image_size=(224, 224)) / 1e9, 2)
    17.56
    """
    hashable: Any = options
    return _forward_macs(hashable, num_classes, image_size)


@functools.lru_cache
def _forward_macs(options: ModelConfig, num_classes: int, image_size: tuple[int, int]) -> int:
    model = _abstract_model(options, num_classes, image_size)
    graphdef, state = nnx.split(model)
    return traced_macs(
        lambda params, *inputs: nnx.merge(graphdef, params)(*inputs),
        nnx.to_pure_dict(state),
        *model.example_inputs(1),
    )


def _abstract_model(options: ModelConfig, num_classes: int, image_size: tuple[int, int]) -> Any:
    # One scanned block is quick to trace, and attention must be traceable on any platform.
    options = options.on_any_platform().replace(scan=True, remat="none")
    if hasattr(options, "patch_kernel_size"):
        # Stored parameters are resized once for a whole batch.
        options = options.replace(patch_kernel_size=None, position_grid=None)
    return nnx.eval_shape(
        lambda: build_model(
            options,
            num_classes=num_classes,
            image_size=image_size,
            key=jax.random.key(0),
            platform="cpu",
        )
    )


def frozen_training_flops(
    options: ModelConfig,
    *,
    num_classes: int,
    image_size: tuple[int, int],
    frozen: Sequence[str],
) -> int:
    """Returns the operations of training on one image if some parameters are frozen.

    `frozen` are regular expressions for names of parameters. Unlike in `training_flops`, gradients
    that nothing needs are not counted: those of frozen parameters, and those that would flow to the
    layers before the first trained one.
    """
    model = _abstract_model(options, num_classes, image_size)
    graphdef, state = nnx.split(model)

    def stop(name: str, leaf: Any) -> Any:
        is_frozen = any(re.fullmatch(pattern, name) for pattern in frozen)
        return jax.lax.stop_gradient(leaf) if is_frozen else leaf

    def total(params: Any, *inputs: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, map_named(stop, params))(*inputs).sum()

    params = nnx.to_pure_dict(state)
    return 2 * traced_macs(jax.value_and_grad(total), params, *model.example_inputs(1))


def training_flops(macs: int) -> int:
    """Returns the floating-point operations of training on one image: 6 per multiply-accumulate.

    One multiply-accumulate is two operations. The backward pass takes twice as many as the forward
    pass: gradients of inputs and of parameters. Recomputation by remat is not counted, as in model
    FLOPs utilisation (arXiv:2204.02311, appendix B).
    """
    return 6 * macs
