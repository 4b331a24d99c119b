"""Shares of this machine's devices, one for each job that runs at the same time."""

import dataclasses
import os
from collections.abc import Mapping

from vit_jax.errors import SweepError
from vit_jax.parallel.launch import visible_gpus

# TPU chips of a process -> how libtpu wants them arranged.
_TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
# Of a GPU's memory, JAX takes three quarters by itself; jobs that share one take this together.
_SHARED_MEMORY = 0.9


@dataclasses.dataclass(frozen=True)
class Share:
    """What one job sees of this machine.

    Attributes:
        environment: variables to set, or with None to unset.
        cores: CPU cores to stay on; empty: all.
        words: for people.
    """

    environment: dict[str, str | None]
    cores: tuple[int, ...] = ()
    words: str = ""


def shares(at_once: int) -> list[Share]:
    """Returns the shares of as many jobs as run at once on this machine.

    GPUs, else TPU chips, else CPU cores are dealt out evenly; where there are fewer GPUs than jobs,
    jobs share them and their memory.

    Raises:
        SweepError: TPU chips that cannot be dealt out.
    """
    environ = os.environ
    # submitit hides all GPUs from local jobs; they are to see what this process sees.
    plain: dict[str, str | None] = {"CUDA_VISIBLE_DEVICES": environ.get("CUDA_VISIBLE_DEVICES")}
    wanted = environ.get("JAX_PLATFORMS", "")
    gpus = 0 if wanted in ("cpu", "tpu") else visible_gpus(environ)
    chips = 0 if gpus or wanted in ("cpu", "cuda", "gpu") else _tpu_chips()
    if at_once == 1:
        return [Share(plain)]
    if gpus:
        names = (environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))).split(",")
        return gpu_shares(names, at_once)
    if chips:
        return [Share({**plain, **e}, words=w) for e, w in _tpu_shares(chips, at_once)]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [
        Share(plain, part, f"cores {_range(part)}" if part else "") for part in deal(cores, at_once)
    ]


def gpu_shares(names: list[str], at_once: int) -> list[Share]:
    """Returns shares of GPUs.

    >>> [s.environment["CUDA_VISIBLE_DEVICES"] for s in gpu_shares(["0", "1", "2", "3"], 2)]
    ['0,1', '2,3']
    >>> gpu_shares(["7"], 2)[1].environment
    {'CUDA_VISIBLE_DEVICES': '7', 'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.45'}
    """
    parts = deal(names, at_once)
    made = []
    for part in parts:
        environment: dict[str, str | None] = {"CUDA_VISIBLE_DEVICES": ",".join(part)}
        most = max(sum(name in other for other in parts) for name in part)
        if most > 1:
            environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{_SHARED_MEMORY / most:.2f}"
        made.append(Share(environment, words=f"GPU {','.join(part)}"))
    return made


def _tpu_shares(chips: int, at_once: int) -> list[tuple[Mapping[str, str | None], str]]:
    each = chips // at_once
    if each not in _TPU_BOUNDS:
        raise SweepError(
            f"{chips} TPU chips for {at_once} jobs at once", "1, 2, 4 or 8 chips for each",
            "change --at_once",
        )  # fmt: skip
    made = []
    for slot in range(at_once):
        names = ",".join(str(chip) for chip in range(slot * each, (slot + 1) * each))
        made.append((
            {"TPU_VISIBLE_CHIPS": names, "TPU_CHIPS_PER_PROCESS_BOUNDS": _TPU_BOUNDS[each],
             "TPU_PROCESS_BOUNDS": "1,1,1"},
            f"TPU chips {names}",
        ))  # fmt: skip
    return made


def _tpu_chips() -> int:
    """Returns how many TPU chips this host has, without touching them."""
    from jax._src.hardware_utils import num_available_tpu_chips_and_device_id

    return num_available_tpu_chips_and_device_id()[0]


def deal(things: list, parts: int) -> list[tuple]:
    """Returns things in so many parts, as even as can be; with fewer of them, several parts share.

    >>> deal([0, 1, 2, 3, 4], 2), deal([0, 1], 3), deal([], 2)
    ([(0, 1), (2, 3, 4)], [(0,), (1,), (0,)], [(), ()])
    """
    count = len(things)
    if 0 < count < parts:
        return [(things[part % count],) for part in range(parts)]
    return [
        tuple(things[part * count // parts : (part + 1) * count // parts]) for part in range(parts)
    ]


def _range(cores: tuple[int, ...]) -> str:
    first, last = min(cores), max(cores)
    whole = last > first and cores == tuple(range(first, last + 1))
    return f"{first}-{last}" if whole else ",".join(map(str, cores))
