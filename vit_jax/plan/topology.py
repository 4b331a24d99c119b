"""Devices to plan for: abstract TPU slices and GPU nodes, simulated CPUs, this machine's GPUs."""

import dataclasses
import importlib.util
import os
from typing import Any

from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, UserError
from vit_jax.plan.gpu_target import GPU_TARGETS, target_config
from vit_jax.plan.topology_names import Topology
from vit_jax.train.chips import (
    GPUS,
    MEMORY_VARIABLES,
    TPUS,
    Chip,
    cpu_chip,
    gpu_chip,
    usable_gpu_memory,
)

# Nothing can be timed without a GPU, so XLA must not choose kernels by trying them. Without that
# choice its Triton matmuls may not compile ("Couldn't find output tile sizes"); cuBLAS always does.
_GPU_FLAGS = ("--xla_gpu_autotune_level=0", "--xla_gpu_enable_triton_gemm=false")


class MissingLibraryError(UserError):
    """A library that planning needs is not installed."""


def prepare(topology: Topology) -> None:
    """Sets up JAX for a topology. Call it before the first use of a device.

    Only plans for this machine's GPUs use accelerators. The compilers need none. These settings
    stop the TPU compiler from looking for TPUs and from writing log files, and allow several
    instances at the same time. The GPU compiler gets flags in XLA_FLAGS; the user's own come last
    and win.
    """
    import jax

    if topology.platform == "gpu" and topology.is_here:
        return
    if topology.platform == "gpu":
        os.environ["XLA_FLAGS"] = " ".join([*_GPU_FLAGS, os.environ.get("XLA_FLAGS", "")]).strip()
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
    """Returns real devices, or abstract ones for which programs can only be compiled."""
    if topology.platform == "tpu":
        return _tpu_devices(topology)
    if topology.platform == "gpu" and not topology.is_here:
        return _gpu_devices(topology)
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
            "plan for the devices of this machine, or for v5e:4x4, h100:8 or cpu:8, which work"
            " anywhere",
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
                "run: pip install 'jax[tpu]'",
            ) from None
    from jax.experimental import topologies

    options: dict[str, Any] = {}
    if topology.generation == "v4":
        options["chip_config_name"] = "megacore"  # Both cores of a chip are one device.
    if any(side % 2 for side in topology.shape[:2]):
        options["chips_per_host_bounds"] = (*(1 if s % 2 else 2 for s in topology.shape[:2]), 1)
    try:
        found = topologies.get_topology_desc(
            topology.name.rpartition("*")[2], "tpu", num_slices=topology.slices, **options
        )
    except Exception as error:  # libtpu raises various types. The cause is the shape.
        raise ConfigError(
            f"--topology={topology.name}: {str(error).splitlines()[0]}",
            "an existing slice shape",
            "use e.g. v5e:4x4, v6e:8x16, v5p:4x4x8",
        ) from None
    return list(found.devices)


def _gpu_devices(topology: Topology) -> list[Any]:
    if not has_cuda_plugin():
        raise MissingLibraryError(
            f"--topology={topology.name} needs JAX's CUDA plugin, which contains the GPU compiler",
            "an installed CUDA plugin (no GPU or driver is needed)",
            "run: pip install 'jax[cuda13]'",
        )
    from jax.experimental import topologies

    chip = GPUS[topology.generation]
    assert chip.memory_bytes is not None
    assert chip.memory_bandwidth is not None
    text = target_config(
        GPU_TARGETS[topology.generation],
        f"NVIDIA {chip.kind}",
        chip.memory_bytes,
        chip.memory_bandwidth,
    )
    # Slices x hosts x devices.
    found = topologies.get_topology_desc(
        topology.generation,
        "cuda",
        target_config=text,
        topology=f"{topology.slices}x1x{topology.shape[0]}",
    )
    return list(found.devices)


def has_cuda_plugin() -> bool:
    """Returns whether JAX's CUDA plugin, which contains XLA's GPU compiler, is installed."""
    try:
        return any(importlib.util.find_spec(f"jax_plugins.xla_cuda{n}") for n in (13, 12))
    except ModuleNotFoundError:  # No plugin of any kind, so that `jax_plugins` does not exist.
        return False


def with_nodes(config: Config, topology: Topology) -> Config:
    """Returns a config that divides GPUs that are not there into the nodes of the topology.

    JAX does not number the nodes of such GPUs, so `mesh.slices` must say how many there are.
    """
    if topology.platform != "gpu" or topology.is_here:
        return config
    if config.mesh.slices not in (-1, topology.slices):
        raise ConfigError(
            f"is {config.mesh.slices}, but --topology={topology.name} has {topology.slices} nodes",
            f"-1 or {topology.slices}",
            "set mesh.slices=-1 to use the nodes of the topology",
            key="mesh.slices",
        )
    return config.replace(mesh=config.mesh.replace(slices=topology.slices))


def chip_of(topology: Topology, devices: list[Any]) -> Chip:
    """Returns the published specification of one of the devices."""
    if topology.platform == "tpu":
        return TPUS[topology.generation]
    if topology.platform == "cpu":
        return cpu_chip(len(devices))
    if not topology.is_here:
        chip = GPUS[topology.generation]
        assert chip.memory_bytes is not None
        usable = usable_gpu_memory(chip.memory_bytes)
        part = f"{usable / chip.memory_bytes:.0%} of the {chip.memory_bytes / 1e9:.0f} GB"
        source = f"{chip.source}. Memory: {part}, which JAX takes ({MEMORY_VARIABLES[0]})"
        return dataclasses.replace(chip, memory_bytes=usable, source=source)
    stats = devices[0].memory_stats() or {}
    return gpu_chip(devices[0].device_kind, stats.get("bytes_limit"))
