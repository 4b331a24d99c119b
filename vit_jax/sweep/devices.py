"""Divides the devices of this machine among the jobs that run at the same time."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

from vit_jax.errors import SweepError
from vit_jax.jax_internals import tpu_chips
from vit_jax.parallel.launch import visible_gpus

T = TypeVar("T")

# TPU chips per process -> the topology that libtpu expects.
_TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
# Fraction of a GPU's memory for all jobs that share it. (JAX alone takes 0.75.)
_SHARED_MEMORY = 0.9


@dataclasses.dataclass(frozen=True)
class Share:
    """The devices of one job."""

    # Variables to set, or to unset where the value is None.
    environment: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    cores: tuple[int, ...] = ()  # of the CPU; empty: all
    description: str = ""  # for the user; empty: the whole machine


def divide_devices(jobs: int) -> list[Share]:
    """Returns the shares of `jobs` jobs that run at the same time on this machine.

    GPUs are divided evenly if there are any, else TPU chips, else CPU cores. With fewer GPUs than
    jobs, several jobs share one GPU and its memory.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    platform = os.environ.get("JAX_PLATFORMS", "")
    gpus = 0 if platform in ("cpu", "tpu") else visible_gpus(os.environ)
    chips = 0 if gpus or platform in ("cpu", "cuda", "gpu") else tpu_chips()
    if jobs == 1:
        shares = [Share()]
    elif gpus:
        shares = gpu_shares((visible or ",".join(map(str, range(gpus)))).split(","), jobs)
    elif chips:
        shares = _tpu_shares(chips, jobs)
    else:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        shares = [
            Share({}, part, f"cores {','.join(map(str, part))}" if part else "")
            for part in divide(cores, jobs)
        ]
    # submitit hides all GPUs from local jobs: restore the variable that it sets.
    unhidden = {"CUDA_VISIBLE_DEVICES": visible}
    return [dataclasses.replace(s, environment={**unhidden, **s.environment}) for s in shares]


def gpu_shares(names: Sequence[str], jobs: int) -> list[Share]:
    """Returns shares of GPUs.

    >>> [s.environment["CUDA_VISIBLE_DEVICES"] for s in gpu_shares(["0", "1", "2", "3"], 2)]
    ['0,1', '2,3']
    >>> gpu_shares(["7"], 2)[1].environment
    {'CUDA_VISIBLE_DEVICES': '7', 'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.45'}
    """
    parts, shares = divide(names, jobs), []
    for part in parts:
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(part)}
        users = max(sum(name in other for other in parts) for name in part)
        if users > 1:
            environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{_SHARED_MEMORY / users:.2f}"
        shares.append(Share(environment, (), f"GPU {','.join(part)}"))
    return shares


def _tpu_shares(chips: int, jobs: int) -> list[Share]:
    each = chips // jobs
    if each not in _TPU_BOUNDS:
        raise SweepError(
            f"{chips} TPU chips for {jobs} jobs at once",
            "1, 2, 4 or 8 chips per job",
            "change --at_once",
        )
    bounds = {"TPU_CHIPS_PER_PROCESS_BOUNDS": _TPU_BOUNDS[each], "TPU_PROCESS_BOUNDS": "1,1,1"}
    names = [",".join(map(str, part)) for part in divide(range(each * jobs), jobs)]
    return [Share({"TPU_VISIBLE_CHIPS": n, **bounds}, (), f"TPU chips {n}") for n in names]


def divide(items: Sequence[T], parts: int) -> list[tuple[T, ...]]:
    """Divides items evenly; if there are fewer items than parts, several parts share one.

    >>> divide([0, 1, 2, 3, 4], 2), divide([0, 1], 3), divide([], 2)
    ([(0, 1), (2, 3, 4)], [(0,), (1,), (0,)], [(), ()])
    """
    count = len(items)
    if 0 < count < parts:
        return [(items[part % count],) for part in range(parts)]
    return [
        tuple(items[part * count // parts : (part + 1) * count // parts]) for part in range(parts)
    ]
