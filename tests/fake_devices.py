"""Devices of hardware that is not there, for meshes: platform, slice, process and coordinates."""

import dataclasses
import types
from typing import Any

import jax

from vit_jax.config.mesh import MeshConfig
from vit_jax.parallel.mesh import make_mesh


def mesh_of(devices: int, **sizes: Any) -> jax.sharding.Mesh:
    """A mesh over one real device, listed several times: good for shapes, specs and messages."""
    return make_mesh(MeshConfig(**sizes), jax.devices()[:1] * devices)


@dataclasses.dataclass(frozen=True)
class FakeDevice:
    """What JAX's mesh functions read of a device. This host is process `here`."""

    id: int
    platform: str
    device_kind: str
    process_index: int
    slice_index: int
    coords: tuple[int, int, int] = (0, 0, 0)
    core_on_chip: int = 0
    here: int = 0

    @property
    def client(self) -> Any:
        return types.SimpleNamespace(process_index=lambda: self.here)


def gpu_nodes(nodes: int, devices: int, here: int = 0) -> list[FakeDevice]:
    """One process a node; the GPUs of a node have its number as slice_index."""
    return [
        FakeDevice(i, "gpu", "NVIDIA H100", i // devices, i // devices, here=here)
        for i in range(nodes * devices)
    ]


def v5e_slices(slices: int, side: int, here: int = 0) -> list[FakeDevice]:
    """Slices of side x side chips. A host has 2x2 of them, which come one after the other."""
    blocks = [(x, y) for y in range(0, side, 2) for x in range(0, side, 2)]
    return [
        FakeDevice(
            index * 10_000 + (y + dy) * side + x + dx,
            "tpu",
            "TPU v5 lite",
            index * len(blocks) + block,
            index,
            (x + dx, y + dy, 0),
            here=here,
        )
        for index in range(slices)
        for block, (x, y) in enumerate(blocks)
        for dy in (0, 1)
        for dx in (0, 1)
    ]
