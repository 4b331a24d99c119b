"""Slices and nodes: groups of devices with a fast network inside and a slower one between them.

The chips of a TPU slice are connected by ICI, the GPUs of a node (or of a rack) by NVLink. Slices
and nodes are connected by the data center network (DCN), which is about ten times slower. JAX
numbers both: `Device.slice_index`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from vit_jax.errors import ConfigError


def slice_of_devices(devices: Sequence[Any], slices: int = -1) -> list[int]:
    """Returns the number of each device's slice or node, from 0.

    TPUs and GPUs state it themselves: for GPUs it is the node, or the NVLink domain if that is
    larger. CPU devices do not, so they are one slice, unless `slices` cuts them. The number of a
    process says nothing about slices, because several processes may run on one node.

    The devices are in the order of `jax.devices()`, or of a mesh of `make_mesh`. `slices` is
    `mesh.slices`. -1: what the devices say. Another number must be equal to what they say; devices
    that say nothing are cut into so many equal groups, in order.
    """
    stated = stated_slices(devices)
    if stated is None:
        return _cut(len(devices), 1 if slices == -1 else slices)
    names = sorted(set(stated))
    if slices not in (-1, len(names)):
        raise ConfigError(
            f"is {slices}, but the {len(devices)} devices are {_count(len(names))}",
            f"-1 or {len(names)}",
            "set mesh.slices=-1 to use what the devices say",
            key="mesh.slices",
        )
    sizes = Counter(stated)
    if len(set(sizes.values())) > 1:
        shown = ", ".join(str(sizes[name]) for name in names)
        raise ConfigError(
            f"slices or nodes with different numbers of devices ({shown})",
            "the same number in each",
            "start the run on slices or nodes of one size",
        )
    return [names.index(name) for name in stated]


def stated_slices(devices: Sequence[Any]) -> list[int] | None:
    """Returns the `slice_index` of each device; None: they have none.

    GPUs of several processes that are all in slice 0 say nothing either: JAX does not number the
    nodes of GPUs that it only compiles for.
    """
    if not all(device.platform != "cpu" and hasattr(device, "slice_index") for device in devices):
        return None
    found = [device.slice_index for device in devices]
    processes = {device.process_index for device in devices}
    if devices[0].platform == "gpu" and len(processes) > 1 and not any(found):
        return None
    return found


def _cut(devices: int, slices: int) -> list[int]:
    if devices % slices:
        raise ConfigError(
            f"is {slices} on {devices} devices",
            "a divisor of the number of devices",
            "set mesh.slices=-1, or a number that divides the devices",
            key="mesh.slices",
        )
    return [device * slices // devices for device in range(devices)]


def _count(slices: int) -> str:
    return "one slice or node" if slices == 1 else f"{slices} slices or nodes"
