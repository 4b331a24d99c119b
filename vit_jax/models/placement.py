"""Where the values inside a step live, and in which type gradients are summed over devices.

A model says of a value which of its dimensions count examples and which are features that tensor
parallelism cuts (`constrain`). Only under `placed`, which the training and evaluation steps are,
does that have an effect: without a mesh a model runs as it is written.
"""

import contextlib
import contextvars
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# A batch is divided over both axes: with fsdp, parameters are gathered but examples are not.
BATCH_AXES = ("data", "fsdp")
Dimension = Literal["batch", "tensor"] | None
_AXES: dict[Any, tuple[str, ...]] = {"batch": BATCH_AXES, "tensor": ("tensor",), None: ()}
F = TypeVar("F", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Placement:
    """What holds while a step is traced.

    Attributes:
        mesh: devices; None: values are left where they are.
        gradient_dtype: type in which the gradient of a parameter is summed, over the examples of a
            device and over devices; None: the type that its layer computes in.
    """

    mesh: Mesh | None = None
    gradient_dtype: str | None = None


_NOWHERE = Placement()
_CURRENT = contextvars.ContextVar("placement", default=_NOWHERE)


def current_placement() -> Placement:
    """Returns what holds here; nothing does outside of a placed function."""
    return _CURRENT.get()


def placed(function: F, placement: Placement) -> F:
    """Returns a function that is traced under a placement."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with _placement(placement):
            return function(*args, **kwargs)

    return wrapper  # pyright: ignore[reportReturnType]


@contextlib.contextmanager
def _placement(placement: Placement) -> Iterator[None]:
    token = _CURRENT.set(placement)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def constrain(x: jax.Array, *dimensions: Dimension) -> jax.Array:
    """Says how a value, and so its gradient, is cut over the mesh; as it is without one.

    Without a word of it the partitioner may copy every example to every device and cut features
    instead, since parameters are cut by feature.

    Args:
        x: any value.
        dimensions: of the first dimensions, what they count: "batch" for examples, cut over data
            and fsdp; "tensor" for heads, hidden features or classes; None for what is not cut. The
            rest is not cut. Neither is a dimension that the devices along its axes do not divide.
    """
    mesh = current_placement().mesh
    if mesh is None or mesh.size == 1:
        return x
    axes = [
        _AXES[d] if size % math.prod(mesh.shape[a] for a in _AXES[d]) == 0 else ()
        for d, size in zip(dimensions, x.shape, strict=False)
    ]
    spec = PartitionSpec(*[a or None for a in axes])
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
