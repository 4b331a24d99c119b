"""All uses of JAX's private modules.

JAX has no public API for these. If a new JAX moves one of them,
`tests/test_jax_internals.py` fails and names it.
"""

import os
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class CoordinationClient(Protocol):
    """The methods of JAX's coordination client that this project uses.

    They raise `jax.errors.JaxRuntimeError`, whose text starts with the gRPC status code.
    """

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None: ...
    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]: ...
    def key_value_delete(self, key: str) -> None: ...
    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str: ...
    def wait_at_barrier(self, barrier_id: str, timeout_in_ms: int) -> None: ...


def coordination_client() -> CoordinationClient:
    """Returns the client that `jax.distributed.initialize` has connected.

    `jax.distributed` has no function for its key-value store and its named barriers; Orbax takes
    the client from the same place.
    """
    from jax._src.distributed import global_state

    client = global_state.client
    assert client is not None
    return client


def cluster_info(names: Sequence[str]) -> tuple[str, int, int] | None:
    """Returns coordinator, process count and process number from the first cluster that JAX finds.

    The names are those of JAX's cluster classes, e.g. "GkeTpuCluster".
    """
    from jax._src import clusters

    for name in names:
        cluster: Any = getattr(clusters, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns when the package kubernetes is missing.
            present = cluster.is_env_present()
        if present:
            address = cluster.get_coordinator_address(300, os.environ.get("JAX_COORDINATOR_PORT"))
            return address, cluster.get_process_count(), cluster.get_process_id()
    return None


def tpu_chips() -> int:
    """Returns the number of TPU chips on this host's PCI bus, without opening them."""
    from jax._src import hardware_utils

    try:
        return hardware_utils.num_available_tpu_chips_and_device_id()[0]
    except OSError:  # No PCI bus here.
        return 0


def seed_offset(offset: int) -> AbstractContextManager[None]:
    """Returns a context in which JAX adds this number to every seed.

    The variable JAX_RANDOM_SEED_OFFSET sets this number. JAX has no public context for it.
    """
    from jax._src.config import random_seed_offset

    return random_seed_offset(offset)
