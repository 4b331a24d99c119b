"""Sharding of activations: which dimensions of a value are split over which axes of the mesh.

Models mark their activations with `constrain`. Without a mesh it does nothing, so that the same
model runs on one device, in a test or in an exported program. `with_mesh` gives the mesh to a
function that is traced.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import jax
from jax.sharding import Mesh, PartitionSpec

# A batch is divided over both axes: fsdp gathers parameters, but not examples.
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
        dimensions: what the leading dimensions count: "batch" for examples, which are split over
            data and fsdp; "tensor" for heads, hidden features or classes, which are split over
            tensor; None for a dimension that is not split. Dimensions that are not given are not
            split, and neither is one whose size is not divisible by the number of devices.
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
