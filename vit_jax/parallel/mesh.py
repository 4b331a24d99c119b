"""The device mesh, and sharding of batches over it. A single device is a mesh of size 1."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.mesh_utils import create_device_mesh, create_hybrid_device_mesh
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.config.mesh import MeshConfig
from vit_jax.errors import ConfigError
from vit_jax.models.activation_sharding import BATCH_AXES
from vit_jax.parallel.slices import slice_of_devices, stated_slices

AXES = ("data", "fsdp", "tensor")
BATCH_SPEC = PartitionSpec(BATCH_AXES)


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns a mesh with the axes data, fsdp and tensor, over all devices of all hosts by default.

    Devices of several slices or nodes are arranged so that little crosses between them: `data` goes
    over the slices first; what it leaves goes to `fsdp`; `tensor` stays inside a slice. An axis of
    size -1 gets the remaining devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = _axis_sizes(config, len(devices))
    slices = len(set(slice_of_devices(devices, config.slices)))
    between = _sizes_between_slices(sizes, slices)
    # Without splitting, an axis must be a whole side of a TPU slice, and most meshes are an error.
    if slices == 1:
        placed = create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    elif stated_slices(devices) is None:
        placed = np.array(devices).reshape(sizes)
    else:
        inside = tuple(size // n for size, n in zip(sizes, between, strict=True))
        placed = create_hybrid_device_mesh(inside, between, devices, allow_split_physical_axes=True)
    return Mesh(placed, AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(AXES))


def _axis_sizes(config: MeshConfig, devices: int) -> tuple[int, ...]:
    sizes = [config.data, config.fsdp, config.tensor]
    known = math.prod(s for s in sizes if s != -1)
    if -1 in sizes and devices % known == 0:
        sizes[sizes.index(-1)] = devices // known
    if -1 in sizes or math.prod(sizes) != devices:
        raise ConfigError(
            f"mesh {_shown(sizes)} on {devices} devices",
            f"sizes whose product is {devices}",
            "change mesh.data, mesh.fsdp or mesh.tensor; -1 gets the remaining devices",
        )
    return tuple(sizes)


def _sizes_between_slices(sizes: Sequence[int], slices: int) -> tuple[int, int, int]:
    """Returns the number of parts into which slices divide each axis; their product is `slices`.

    `data` is either divided among all slices, or whole slices share one part of it and `fsdp` is
    divided among those. In the mesh, the devices of a slice then follow one another.
    """
    data, fsdp, tensor = sizes
    if data % slices == 0:
        return slices, 1, 1
    if slices % data == 0 and fsdp % (slices // data) == 0:
        return data, slices // data, 1
    devices = math.prod(sizes) // slices
    got = f"mesh {_shown(sizes)} on {slices} slices or nodes of {devices} devices"
    if devices % tensor:
        raise ConfigError(
            got,
            f"mesh.tensor to divide the {devices} devices of a slice, because it stays inside one",
            f"set mesh.tensor={math.gcd(devices, tensor)} and mesh.data=-1",
        )
    raise ConfigError(
        got, f"mesh.data to be a multiple of {slices}", f"set mesh.data={slices} and mesh.fsdp=-1"
    )


def _shown(sizes: Sequence[int]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))


def platform_of(mesh: Mesh) -> str:
    """Returns the platform of the devices: "cpu", "gpu" or "tpu"."""
    return mesh.devices.flat[0].platform


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of arrays with a leading batch axis."""
    return NamedSharding(mesh, BATCH_SPEC)


def num_batch_shards(mesh: Mesh) -> int:
    """Returns the number of shards of a batch."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def check_batch_size(mesh: Mesh, batch_size: int, key: str, microbatches: int = 1) -> None:
    """Checks that a batch divides evenly into microbatches and over the devices.

    The batch size is global. The config key is for the error.
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


def host_rows(mesh: Mesh, batch_size: int) -> Sequence[int]:
    """Returns the rows of a global batch that this host's devices hold, in increasing order.

    On a TPU slice they are usually several blocks: the mesh follows the links between the chips, so
    the chips of a host are not next to each other.
    """
    index_map = batch_sharding(mesh).addressable_devices_indices_map((batch_size,))
    spans = sorted({s[0].indices(batch_size)[:2] for s in index_map.values() if s is not None})
    rows = tuple(row for start, stop in spans for row in range(start, stop))
    block = range(rows[0], rows[-1] + 1)
    return block if len(block) == len(rows) else rows


def to_devices(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Transfers this host's rows, see `host_rows`, to its devices and returns the global batch."""
    sharding = batch_sharding(mesh)
    shards = num_batch_shards(mesh)
    own = len({str(s) for s in sharding.addressable_devices_indices_map((shards,)).values()})
    return {
        name: jax.make_array_from_process_local_data(
            sharding, rows, (len(rows) // own * shards, *rows.shape[1:])
        )
        for name, rows in batch.items()
    }
