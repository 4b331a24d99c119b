"""The device mesh, and sharding of batches over it. A single device is a mesh of size 1."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.config.mesh import MeshConfig
from vit_jax.errors import ConfigError
from vit_jax.models.activation_sharding import BATCH_AXES

AXES = ("data", "fsdp", "tensor")
BATCH_SPEC = PartitionSpec(BATCH_AXES)


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns a mesh with the axes data, fsdp and tensor.

    Args:
        config: sizes of the axes; an axis of size -1 gets the remaining devices.
        devices: devices of the mesh; None: all devices of all hosts.

    Raises:
        ConfigError: the product of the sizes is not the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [config.data, config.fsdp, config.tensor]
    known = math.prod(s for s in sizes if s != -1)
    if -1 in sizes and len(devices) % known == 0:
        sizes[sizes.index(-1)] = len(devices) // known
    if -1 in sizes or math.prod(sizes) != len(devices):
        shown = ", ".join(f"{a}={s}" for a, s in zip(AXES, sizes, strict=True))
        raise ConfigError(
            f"mesh {shown} on {len(devices)} devices",
            f"sizes whose product is {len(devices)}",
            "change mesh.data, mesh.fsdp or mesh.tensor; -1 gets the remaining devices",
        )
    return jax.make_mesh(
        tuple(sizes), AXES, devices=devices, axis_types=(jax.sharding.AxisType.Auto,) * len(AXES)
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of arrays with a leading batch axis."""
    return NamedSharding(mesh, BATCH_SPEC)


def num_batch_shards(mesh: Mesh) -> int:
    """Returns the number of shards of a batch."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def check_batch_size(mesh: Mesh, batch_size: int, key: str, microbatches: int = 1) -> None:
    """Checks that a batch divides evenly into microbatches and over the devices.

    Args:
        mesh: the mesh.
        batch_size: global number of examples.
        key: config key of the batch size, for the error.
        microbatches: number of microbatches.

    Raises:
        ConfigError: it does not divide evenly.
    """
    shards = num_batch_shards(mesh)
    unit = shards * microbatches
    if batch_size % unit:
        below, above = batch_size // unit * unit, -(-batch_size // unit) * unit
        raise ConfigError(
            f"{key} is {batch_size} on {shards} devices"
            + (f" in {microbatches} microbatches" if microbatches > 1 else ""),
            f"a multiple of {unit}",
            f"use {below} or {above}" if below else f"use {above}",
        )


def host_rows(mesh: Mesh, batch_size: int) -> range:
    """Returns the rows of a global batch that this host's devices hold.

    Raises:
        ConfigError: the rows are not contiguous, but a host loads one block of rows.
    """
    index_map = batch_sharding(mesh).addressable_devices_indices_map((batch_size,))
    spans = {s[0].indices(batch_size)[:2] for s in index_map.values() if s is not None}
    start, stop = min(a for a, _ in spans), max(b for _, b in spans)
    if sum(b - a for a, b in spans) != stop - start:
        raise ConfigError(
            f"host {jax.process_index()} holds scattered rows of a batch",
            "one block of rows for each host",
            "make mesh.data x mesh.fsdp a multiple of the number of hosts",
        )
    return range(start, stop)


def to_devices(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Transfers this host's rows to its devices and returns the global batch."""
    sharding = batch_sharding(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }
