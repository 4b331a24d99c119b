"""Devices to plan for: abstract TPU slices, simulated CPU devices, or the GPUs of this machine."""

import dataclasses
import math
import os
import re
from typing import Any

from vit_jax.errors import ConfigError, UserError, nearest
from vit_jax.train.chips import TPUS, Chip, cpu_chip, gpu_chip


class MissingLibraryError(UserError):
    """A library that planning needs is not installed."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """The devices of `--topology`.

    Attributes:
        name: the option's value, e.g. "v5e:16x16".
        platform: "tpu", "cpu" or "gpu".
        generation: generation of a TPU, e.g. "v5e"; else the platform.
        shape: shape of a TPU slice; else the number of devices, or empty for all devices.
    """

    name: str
    platform: str
    generation: str
    shape: tuple[int, ...]


def parse_topology(name: str) -> Topology:
    """Parses the name of a topology.

    Raises:
        ConfigError: the kind of device is unknown, or no slice has this shape.

    >>> parse_topology("v5e:4x4").shape
    (4, 4)
    """
    match = re.fullmatch(r"(\w+)(?::(\d+(?:x\d+)*))?", name)
    kinds = (*TPUS, "cpu", "gpu")
    kind = match[1] if match else name.partition(":")[0]
    if match is None or kind not in kinds:
        raise ConfigError(
            f"--topology={name}",
            "v5e:16x16, v6e:8x8, v4:4x4x4, v5p:4x4x4 (TPU and slice), cpu:8, gpu or gpu:4",
            f"did you mean {nearest(kind, kinds)!r}?",
        )
    shape = tuple(int(side) for side in match[2].split("x")) if match[2] else ()
    if kind in TPUS:
        _check_slice(name, TPUS[kind], shape)
        return Topology(name, "tpu", kind, shape)
    if len(shape) > 1 or 0 in shape:
        raise ConfigError(
            f"--topology={name}", f"{kind} or {kind}:COUNT", "give the number of devices"
        )
    return Topology(name, kind, kind, shape)


def _check_slice(name: str, chip: Chip, shape: tuple[int, ...]) -> None:
    example = "16x16" if chip.dimensions == 2 else "4x4x4"
    generation = name.partition(":")[0]
    if len(shape) != chip.dimensions or 0 in shape:
        raise ConfigError(
            f"--topology={name}",
            f"{chip.dimensions} sides, because {chip.name} is a {chip.dimensions}-D torus",
            f"use e.g. {generation}:{example}",
        )
    assert chip.pod_chips is not None
    if math.prod(shape) > chip.pod_chips:
        raise ConfigError(
            f"--topology={name} with {math.prod(shape):,} chips",
            f"at most {chip.pod_chips:,} chips, the size of a {chip.name} pod",
            "plan for a smaller slice or another TPU",
        )


def prepare(topology: Topology) -> None:
    """Sets up JAX for a topology. Call it before the first use of a device.

    Only plans for GPUs use accelerators. The TPU compiler needs none. These settings stop it from
    looking for TPUs and from writing log files, and allow several instances at the same time.
    """
    import jax

    if topology.platform == "gpu":
        return
    jax.config.update("jax_platforms", "cpu")
    if topology.platform == "cpu" and topology.shape:
        jax.config.update("jax_num_cpu_devices", topology.shape[0])
    if topology.platform == "tpu":
        for name, value in {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": "v5litepod-16",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_LOG_DIR": "disabled",
            "TPU_MIN_LOG_LEVEL": "3",
            "TPU_STDERR_LOG_LEVEL": "3",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }.items():
            os.environ.setdefault(name, value)


def find_devices(topology: Topology) -> list[Any]:
    """Returns real devices, or abstract ones for which programs can only be compiled.

    Raises:
        MissingLibraryError: libtpu, the TPU compiler, is not installed.
        ConfigError: the slice does not exist, or this machine has fewer devices.
    """
    if topology.platform == "tpu":
        return _tpu_devices(topology)
    import jax

    try:
        devices = jax.devices(topology.platform)
    except RuntimeError:
        devices = []
    wanted = topology.shape[0] if topology.shape else max(len(devices), 1)
    if len(devices) < wanted:
        raise ConfigError(
            f"--topology={topology.name} on a machine with {len(devices)} such devices",
            f"{wanted} devices",
            "plan for the devices of this machine, or for v5e:4x4 or cpu:8, which work anywhere",
        )
    return devices[:wanted]


def _tpu_devices(topology: Topology) -> list[Any]:
    try:
        import libtpu  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        if "TPU_LIBRARY_PATH" not in os.environ:
            raise MissingLibraryError(
                f"--topology={topology.name} needs libtpu, the TPU compiler",
                "an installed libtpu (no TPU is needed)",
                "run pip install 'vit_jax[tpu]', or 'jax[tpu]' in a clone",
            ) from None
    from jax.experimental import topologies

    options: dict[str, Any] = {}
    if topology.generation == "v4":
        options["chip_config_name"] = "megacore"  # Both cores of a chip are one device.
    if any(side % 2 for side in topology.shape[:2]):
        options["chips_per_host_bounds"] = (*(1 if s % 2 else 2 for s in topology.shape[:2]), 1)
    try:
        found = topologies.get_topology_desc(topology.name, "tpu", **options)
    except Exception as error:  # libtpu raises various types. The cause is the shape.
        raise ConfigError(
            f"--topology={topology.name}: {str(error).splitlines()[0]}",
            "an existing slice shape",
            "use e.g. v5e:4x4, v6e:8x16, v5p:4x4x8",
        ) from None
    return list(found.devices)


def chip_of(topology: Topology, devices: list[Any]) -> Chip:
    """Returns the published specification of one of the devices."""
    if topology.platform == "tpu":
        return TPUS[topology.generation]
    if topology.platform == "cpu":
        return cpu_chip(len(devices))
    stats = devices[0].memory_stats() or {}
    return gpu_chip(devices[0].device_kind, stats.get("bytes_limit"))
