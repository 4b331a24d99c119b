"""Sharding of activations: which dimension is split over which axes of the mesh.

Models mark their activations with `constrain`. Without a mesh it does nothing, so that the same
model runs on one device, in a test or in an exported program. `with_mesh` sets the mesh
while a function is traced.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import jax
from jax.sharding import Mesh, PartitionSpec

# Batches are sharded over both axes: fsdp gathers parameters, but not examples.
BATCH_AXES = ("data", "fsdp")
Dimension = Literal["batch", "tensor"] | None
_AXES: dict[Any, tuple[str, ...]] = {"batch": BATCH_AXES, "tensor": ("tensor",), None: ()}
F = TypeVar("F", bound=Callable[..., Any])


def constrain(x: jax.Array, *dimensions: Dimension) -> jax.Array:
    """Returns x with a sharding constraint, which also holds for its gradient.

    Parameters are sharded by feature. Without constraints, XLA's partitioner may therefore shard
    activations by feature too and copy every example to every device.

    Args:
        x: any value.
        dimensions: how each leading dimension is sharded. "batch" (examples): over data and fsdp;
            "tensor" (heads, hidden features or classes): over tensor; None: not sharded. Other
            dimensions are not sharded, and neither is a dimension whose size is not divisible by
            the number of devices.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    axes = [
        _AXES[d] if size % math.prod(mesh.shape[a] for a in _AXES[d]) == 0 else ()
        for d, size in zip(dimensions, x.shape, strict=False)
    ]
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*[a or None for a in axes]))


def with_mesh(function: F, mesh: Mesh) -> F:
    """Returns a function that is traced under a mesh, so that `constrain` takes effect in it.

    Unlike `jax.set_mesh`, the returned function can be jitted now and traced later.
    """

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(*args, **kwargs)

    return traced  # pyright: ignore[reportReturnType]
