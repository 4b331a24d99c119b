"""The evaluation loop: every example counts once, on any number of devices and hosts."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.data.sources import Source
from vit_jax.parallel.mesh import batch_sharding, to_devices

# (params, batch, *frozen) -> name -> array for the whole batch, or a dictionary of such arrays,
# replicated on all devices.
EvalStep = Callable[..., dict[str, Any]]
# The same with its parameters: batch on the devices -> outputs.
BatchStep = Callable[[Any], dict[str, Any]]
# Number of dispatched batches at which the host reads the outputs of the oldest.
_BATCHES_IN_FLIGHT = 2
T = TypeVar("T")


class StoppedError(Exception):
    """An evaluation was asked to stop."""


class Totals(ABC):
    """Adds up the outputs of an evaluation step over the batches of one split."""

    @abstractmethod
    def add(self, outputs: Mapping[str, Any]) -> None:
        """Adds one batch."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Returns metric name -> value."""

    def write(self, folder: Path, name: str) -> None:  # noqa: B027
        """Writes tables of the split `name` into a report folder, if there are any."""

    def write_mistakes(self, folder: Path, name: str, source: Source) -> None:  # noqa: B027
        """Writes which examples of the split are wrong, if that is known."""


def jit_eval_step(eval_step: EvalStep, mesh: Mesh, *shardings: Any) -> EvalStep:
    """Returns the jitted step, with its outputs replicated on all devices.

    The shardings are those of the parameters, then of the frozen arrays if there are any.
    """
    replicated = NamedSharding(mesh, PartitionSpec())
    params, *frozen = shardings
    return jax.jit(
        eval_step, in_shardings=(params, batch_sharding(mesh), *frozen), out_shardings=replicated
    )


def evaluate(
    step: BatchStep, batches: Iterable[dict[str, np.ndarray]], mesh: Mesh, totals: Totals
) -> dict[str, float]:
    """Evaluates all batches of this host and returns the metrics. `totals` must be empty."""
    for outputs in on_host(step(to_devices(batch, mesh)) for batch in batches):
        totals.add(outputs)
    return totals.metrics()


def on_host(outputs: Iterable[Any]) -> Iterator[Any]:
    """Yields the dispatched outputs of steps as NumPy arrays. Two stay ahead of the host."""
    pending = deque[Any]()
    for output in outputs:
        pending.append(output)
        if len(pending) > _BATCHES_IN_FLIGHT:
            yield jax.device_get(pending.popleft())
    yield from map(jax.device_get, pending)


def until(stop: Callable[[], bool], batches: Iterable[T]) -> Iterator[T]:
    """Yields the batches; raises StoppedError if `stop`, called before each, says so."""
    for batch in batches:
        if stop():
            raise StoppedError
        yield batch
