"""Devices to plan for: abstract TPU slices and GPU nodes, simulated CPUs, this machine's GPUs.

A topology of GPUs is KIND:GPUS or KIND:GPUSxNODES: h100:8x4 is four nodes with eight GPUs each.
"""

import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, UserError, nearest
from vit_jax.plan.gpu_target import GPU_TARGETS, target_config
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


MOST_GPUS_OF_A_NODE = 8
_EXAMPLES = {"tpu": "v5e:16x16, 2*v6e:8x8, v4:4x4x4, v5p:4x4x4", "gpu": "h200:8, h100:8x4, l4"}


class MissingLibraryError(UserError):
    """A library that planning needs is not installed."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """The devices of `--topology`.

    Attributes:
        name: the option's value, e.g. "v5e:16x16".
        platform: "tpu", "cpu" or "gpu".
        generation: generation of a TPU, e.g. "v5e"; kind of GPU, e.g. "h100"; else the platform,
            which stands for devices of this machine.
        shape: shape of a TPU slice; else the number of devices (of a node), or empty for all of
            this machine.
        slices: number of TPU slices of this shape, or of GPU nodes, connected by the data center
            network.
    """

    name: str
    platform: str
    generation: str
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def is_here(self) -> bool:
        """Whether it consists of devices of this machine."""
        return self.generation == self.platform


def parse_topology(name: str) -> Topology:
    """Parses the name of a topology.

    >>> parse_topology("v5e:4x4").shape
    (4, 4)
    >>> parse_topology("2*v5e:4x4").slices
    2
    """
    count, star, one = name.rpartition("*")
    match = re.fullmatch(r"([\w-]+)(?::(\d+(?:x\d+)*))?", one)
    kinds = (*TPUS, *GPUS, "cpu", "gpu")
    kind = match[1] if match else one.partition(":")[0]
    if match is None or kind not in kinds:
        raise ConfigError(
            f"--topology={name}",
            f"TPU slices ({_EXAMPLES['tpu']}), GPUs of one or several nodes ({_EXAMPLES['gpu']};"
            f" {', '.join(GPUS)}), or devices of this machine (cpu:8, gpu, gpu:4)",
            f"did you mean {nearest(kind.lower(), kinds)!r}?",
        )
    shape = tuple(int(side) for side in match[2].split("x")) if match[2] else ()
    if star and (not count.isdecimal() or int(count) == 0 or kind not in TPUS):
        raise ConfigError(
            f"--topology={name}",
            "a number of TPU slices in front of *, such as 2*v5e:16x16",
            f"use --topology={_without_star(count, one, kind)}",
        )
    if kind in TPUS:
        _check_slice(one, TPUS[kind], shape)
        return Topology(name, "tpu", kind, shape, int(count) if star else 1)
    if kind in GPUS:
        gpus, nodes = _check_nodes(name, kind, shape)
        return Topology(name, "gpu", kind, (gpus,), nodes)
    if len(shape) > 1 or 0 in shape:
        raise ConfigError(
            f"--topology={name}", f"{kind} or {kind}:COUNT", "give the number of devices"
        )
    return Topology(name, kind, kind, shape)


def _without_star(count: str, one: str, kind: str) -> str:
    if kind in GPUS and count.isdecimal() and int(count) and re.fullmatch(r"[\w-]+:\d+", one):
        return f"{one}x{count}"
    here = kind in ("cpu", "gpu")
    return one + (", and --config.mesh.slices=N to cut it into slices" if here else "")


def _check_nodes(name: str, kind: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns (GPUs of a node, nodes)."""
    gpus, nodes = (*shape, *(1, 1)[len(shape) :])[:2]
    if len(shape) > 2 or 0 in shape:
        raise ConfigError(
            f"--topology={name}",
            f"{kind}:GPUS or {kind}:GPUSxNODES",
            f"use e.g. {kind}:8x4 for 4 nodes with 8 GPUs each",
        )
    most = MOST_GPUS_OF_A_NODE
    if gpus > most:
        fitting = f"{most}x{math.ceil(gpus * nodes / most)}"
        raise ConfigError(
            f"--topology={name} with {gpus} GPUs in a node",
            f"at most {most} GPUs in each node; the number of nodes comes second",
            f"use e.g. {kind}:{fitting}",
        )
    return gpus, nodes


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
            f"plan for several slices, e.g. 2*{generation}:{example}, or for another TPU",
        )


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
