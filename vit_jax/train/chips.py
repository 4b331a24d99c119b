"""Published specifications of accelerators, and the roofline step times that follow from them."""

import csv
import dataclasses
import os
import re
from pathlib import Path

import psutil

GIB = 2**30
# JAX gives a program this part of a GPU's memory, unless one of these variables says otherwise.
_MEMORY_FRACTION = 0.75
MEMORY_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")


@dataclasses.dataclass(frozen=True)
class Chip:
    """The published specification of one JAX device; None: not published."""

    name: str
    kind: str  # substring of `Device.device_kind`
    memory_bytes: float | None  # HBM
    peak_flops: float | None  # dense bfloat16 FLOP/s
    memory_bandwidth: float | None  # bytes/s
    link_bandwidth: float | None  # bytes/s received over all links to other chips together
    source: str  # of the figures
    pod_chips: int | None = None  # in the largest slice; None: not a TPU
    dimensions: int | None = None  # of the pod's torus
    # Bytes/s that a device receives from other slices or nodes: the network of its host, divided by
    # the devices of the host.
    dcn_bandwidth: float | None = None


# Memory of TPUs is the size that their compiler uses, a little less than in the data sheets. The
# interconnect of v4 is six links of 50 GB/s (arXiv:2304.01433, Table 4). The data center network
# between slices is per chip: of v5p as the data sheet says, of v5e and v6e the 6.4 and 25.6 Tbit/s
# of a pod divided by its 256 chips. Links of GPUs are NVLink, or PCIe x16 for cards without NVLink
# switches: 32 GB/s (generation 4) or 64 GB/s (generation 5). NVIDIA's figures add both directions,
# so these are half of them. The network between nodes is one ConnectX-6 (200 Gbit/s) or ConnectX-7
# (400) adapter for each GPU, as in NVIDIA's DGX (docs.nvidia.com/dgx); clouds may have less. TPU v2
# and v3 devices are cores, half a chip. Rows without a name have a peak only.
TABLE = Path(__file__).with_name("chips.csv")


def _read_chips() -> list[tuple[str, tuple[str, ...], Chip]]:
    """Returns the rows of the table: name for `--topology`, parts of a device's kind, figures."""

    def number(text: str, factor: float) -> float | None:
        return float(text) * factor if text else None

    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        (
            row["name"],
            kinds := tuple(row["kinds"].split("|")),
            Chip(
                row["shown"],
                kinds[0],
                number(row["memory_gib"], GIB) or number(row["memory_gb"], 1e9),
                number(row["bf16_tflops"], 1e12),
                number(row["memory_gb_per_s"], 1e9),
                number(row["link_gb_per_s"], 1e9),
                row["source"],
                int(row["pod_chips"]) if row["pod_chips"] else None,
                int(row["dimensions"]) if row["dimensions"] else None,
                number(row["dcn_gbit_per_s"], 1e9 / 8),
            ),
        )
        for row in rows
    ]


_CHIPS = _read_chips()
TPUS = {name: chip for name, _, chip in _CHIPS if name and chip.pod_chips}
GPUS = {name: chip for name, _, chip in _CHIPS if name and not chip.pod_chips}


def find_chip(device_kind: str) -> Chip | None:
    """Finds an accelerator by its device kind: the first row that fits; None: not in the table.

    >>> find_chip("TPU v5 lite").name, find_chip("NVIDIA H200").name, find_chip("cpu")
    ('TPU v5e', 'H200 SXM', None)
    """
    fitting = (chip for _, kinds, chip in _CHIPS if any(kind in device_kind for kind in kinds))
    return next(fitting, None)


def peak_flops(device_kind: str) -> float | None:
    """Returns the dense bfloat16 peak of a device in FLOP/s; None if it is unknown.

    >>> peak_flops("NVIDIA H200")
    989000000000000.0
    """
    chip = find_chip(device_kind)
    return None if chip is None else chip.peak_flops


def gpu_chip(device_kind: str, memory_bytes: float | None) -> Chip:
    """Finds a GPU by its device kind, e.g. "NVIDIA H200".

    `memory_bytes` is the memory that JAX may use on it; None: the figure of the data sheet.

    >>> gpu_chip("NVIDIA H200", None).memory_bandwidth
    4800000000000.0
    """
    known = find_chip(device_kind)
    known = known or Chip(device_kind, device_kind, None, None, None, None, "not stated")
    return dataclasses.replace(known, memory_bytes=memory_bytes or known.memory_bytes)


def usable_gpu_memory(memory_bytes: float) -> float:
    """Returns the part of a GPU's memory that JAX takes for a program, in bytes.

    Source: docs.jax.dev, "GPU memory allocation".
    """
    for variable in MEMORY_VARIABLES:
        try:
            return float(os.environ[variable]) * memory_bytes
        except (KeyError, ValueError):
            continue
    return _MEMORY_FRACTION * memory_bytes


def cpu_chip(devices: int = 1) -> Chip:
    """Returns one of several JAX devices that share this machine's CPU.

    The peak is cores x highest clock rate x float32 operations per cycle of the widest vector unit.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    hertz, cycle = _clock_hz(), _flops_per_cycle()
    peak = None if hertz is None else (cores or 1) * hertz * cycle / devices
    return Chip(
        f"CPU, {cores} cores",
        "cpu",
        psutil.virtual_memory().total / devices,
        peak,
        None,
        None,
        f"{cores} cores x {(hertz or 0) / 1e9:.1f} GHz x {cycle} float32 operations",
    )


def _clock_hz() -> float | None:
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, RuntimeError):
        return None
    if frequency is None:
        return None
    return (frequency.max or frequency.current) * 1e6 or None


def _flops_per_cycle() -> int:
    """Two fused multiply-adds per cycle, on 16 (AVX-512), 8 (AVX2) or 4 (NEON, others) lanes."""
    path = Path("/proc/cpuinfo")
    flags = set(re.findall(r"\w+", path.read_text(encoding="utf-8"))) if path.exists() else set()
    lanes = 16 if "avx512f" in flags else 8 if "avx2" in flags else 4
    return 2 * 2 * lanes


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of one training step on each device; None: unknown."""

    model_flops: float  # as in MFU: 6 per multiply-accumulate of the forward pass
    executed_flops: float  # of the traced program, including recomputation
    memory_bytes: float | None  # read from and written to device memory
    received_bytes: float | None  # from other devices
    dcn_bytes: float | None = None  # those from other slices or nodes, if there are any

    @property
    def network_bytes(self) -> float | None:
        """Bytes received from devices of the same slice or node."""
        if self.received_bytes is None:
            return None
        return self.received_bytes - (self.dcn_bytes or 0.0)


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The shortest times of a step in seconds; None: a figure of the chip or program is unknown.

    >>> toy = Chip("toy", "toy", 1e9, 100.0, 10.0, 1.0, "none")
    >>> found = Roofline(Work(300.0, 400.0, 20.0, 1.0), toy)
    >>> found.overlapped_s, found.in_turn_s, found.limited_by, found.mfu(found.overlapped_s)
    (4.0, 7.0, 'compute', 0.75)
    """

    work: Work
    chip: Chip

    @property
    def compute_s(self) -> float | None:
        """Time of the executed FLOPs at the peak."""
        return _divide(self.work.executed_flops, self.chip.peak_flops)

    @property
    def memory_s(self) -> float | None:
        """Time of the memory traffic at full bandwidth."""
        return _divide(self.work.memory_bytes, self.chip.memory_bandwidth)

    @property
    def network_s(self) -> float | None:
        """Time of the bytes received inside a slice, at the full bandwidth of all links."""
        return _divide(self.work.network_bytes, self.chip.link_bandwidth)

    @property
    def dcn_s(self) -> float | None:
        """Time of the bytes received from other slices or nodes; None: there are no others."""
        return _divide(self.work.dcn_bytes, self.chip.dcn_bandwidth)

    @property
    def parts(self) -> dict[str, float]:
        times = {
            "compute": self.compute_s,
            "memory": self.memory_s,
            "network": self.network_s,
            "dcn": self.dcn_s,
        }
        return {name: time for name, time in times.items() if time is not None}

    @property
    def overlapped_s(self) -> float | None:
        """Step time if compute, memory and networks overlap perfectly: the lower bound."""
        return max(self.parts.values()) if self.compute_s is not None else None

    @property
    def in_turn_s(self) -> float | None:
        """Step time if nothing overlaps."""
        return sum(self.parts.values()) if self.compute_s is not None else None

    @property
    def limited_by(self) -> str | None:
        """The slowest of compute, memory, network and dcn."""
        return max(self.parts, key=lambda name: self.parts[name]) if self.parts else None

    def mfu(self, step_s: float | None) -> float | None:
        """Returns model FLOP/s as a fraction of the peak, at most 1.

        By convention model FLOPs include the gradient with respect to the images, which no step
        computes.
        """
        if not step_s or self.chip.peak_flops is None:
            return None
        return min(1.0, self.work.model_flops / (step_s * self.chip.peak_flops))

    def seconds_at_mfu(self, mfu: float) -> float | None:
        peak = self.chip.peak_flops
        return None if peak is None else self.work.model_flops / (mfu * peak)


def _divide(amount: float | None, rate: float | None) -> float | None:
    if amount == 0:
        return 0.0
    return amount / rate if amount is not None and rate else None
