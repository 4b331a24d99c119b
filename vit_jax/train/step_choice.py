"""Chooses how a training step is executed: loop over the layers, remat policy and microbatches.

None of the three changes what a run learns, only its speed and memory. A value that the config sets
wins; this module decides those that are "auto".

On a TPU or GPU the choice is the setting with the least bound on the step time that fits the
memory: the longer of the time of its FLOPs and of its memory traffic at the chip's published rates.
`step_table.csv` has the traffic and memory of each setting, as the compilers planned them;
`experiments/speed/step_table.py` makes it. More microbatches are used only if nothing else fits.

On a CPU the layers are unrolled, unless the run is too short to repay the compilation, and a
microbatch has as many images as make a layer fit the cache. Source: ours; the rules and what was
measured are in experiments/speed/README.md.
"""

import csv
import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import jax
from jax.sharding import Mesh

from vit_jax.config.run import Config
from vit_jax.models.options import AUTO
from vit_jax.models.registry import family_of
from vit_jax.models.stacking import LayerLoop, Remat, Stack
from vit_jax.parallel.mesh import num_batch_shards
from vit_jax.parallel.sharding import bytes_on_device
from vit_jax.tasks.task import Task, model_image_size
from vit_jax.train.chips import GIB, find_chip, usable_gpu_memory

# Bytes that a layer may keep of a microbatch on a CPU.
_CACHE_BYTES = 12 * 2**20
# A CPU unrolls if this share of the time of all steps, at this many FLOP/s, is longer than it takes
# to compile the other layers.
_UNROLLED_GAIN = 0.1
_CPU_FLOPS = 5e10
_CPU_COMPILE_S_PER_LAYER = 0.5
# Share of the memory to fill; the rest is for what the table does not know.
_FILL = 0.9
# Longest compilation of an unrolled step, in seconds on two cores.
_COMPILE_S = {"tpu": 120.0, "gpu": 60.0}
# Settings whose bounds differ by less are equally fast: what compiles faster is chosen, then what
# moves fewer bytes.
_SAME_SPEED = 1.02


@dataclasses.dataclass(frozen=True)
class StepChoice:
    """How a training step is executed, and why.

    >>> print(StepChoice(LayerLoop(False, "none"), 1, "as configured"))
    unrolled, remat none, 1 microbatch (as configured)
    """

    loop: LayerLoop
    microbatches: int
    reason: str

    def __str__(self) -> str:
        parts = f"{self.microbatches} microbatch{'es' if self.microbatches > 1 else ''}"
        loop = "scanned" if self.loop.scan else "unrolled"
        return f"{loop}, remat {self.loop.remat}, {parts} ({self.reason})"


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What the config asks for; "auto": choose."""

    scan: bool | Literal["auto"] = "auto"
    remat: Remat | Literal["auto"] = "auto"
    microbatches: int | Literal["auto"] = "auto"


@dataclasses.dataclass(frozen=True)
class Device:
    """What is known of a device; None: not known."""

    platform: str  # "cpu", "gpu" or "tpu"
    memory_bytes: float | None = None  # memory that a step may use
    peak_flops: float | None = None  # bfloat16 FLOP/s
    memory_bandwidth: float | None = None  # bytes/s


@dataclasses.dataclass(frozen=True)
class StepWork:
    """The work of a step on one device."""

    stack: Stack
    images: int
    itemsize: int  # bytes of an activation
    flops: float  # model FLOPs
    state_bytes: float  # parameters, optimizer state, average and frozen arrays
    param_bytes: float  # parameters, and thus their gradients
    splits_exactly: bool  # microbatches change the gradient only by rounding, at no cost
    total_steps: int


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table: a setting, and what a compiler said of it for one model.

    Bytes are for bfloat16, and per token, feature and layer.
    """

    platform: str  # "tpu" or "gpu"
    model: str
    width: int
    scan: bool
    remat: Remat
    kept_bytes: float  # memory of temporaries
    moved_bytes: float  # memory traffic
    recomputed: float  # FLOPs beyond the model's, as a fraction of them
    compile_s: float  # without layers
    compile_s_per_layer: float


TABLE = Path(__file__).with_name("step_table.csv")


@functools.cache
def read_table() -> tuple[Row, ...]:
    """Returns the rows of the table."""
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = [f.name for f in dataclasses.fields(Row) if f.type is float]
    return tuple(
        Row(
            row["platform"],
            row["model"],
            int(row["width"]),
            row["scan"] == "True",
            cast(Remat, row["remat"]),
            **{name: float(row[name]) for name in numbers},
        )
        for row in rows
    )


def choose_step(
    config: Config, task: Task, mesh: Mesh, state: Sequence[Any], total_steps: int
) -> StepChoice:
    """Chooses how the steps of a run are executed.

    `state` has the abstract state, and then the frozen arrays, with shardings.
    """
    options = config.model
    wanted = Wanted(options.scan, options.remat, config.accumulation_steps)
    stack = family_of(options.name).stack
    if stack is None:
        return _choose_defaults(wanted, "the only choice for a model without a stack of layers")
    images = config.data.global_batch_size // num_batch_shards(mesh)
    work = StepWork(
        stack=_in_training(stack(options, model_image_size(config)), task.activations),
        images=images,
        itemsize=jax.numpy.dtype(options.dtype).itemsize,
        flops=task.flops_per_image * config.data.global_batch_size / mesh.size,
        state_bytes=bytes_on_device(state),
        param_bytes=bytes_on_device(state[0].params),
        splits_exactly=task.splits_exactly,
        total_steps=total_steps,
    )
    return choose(_device(mesh.devices.flat[0]), work, wanted)


def _in_training(stack: Stack, activations: float) -> Stack:
    """Returns the sizes of a stack that keeps a multiple of the activations of one image."""
    tokens, values = (round(n * activations) for n in (stack.tokens, stack.layer_values))
    return dataclasses.replace(stack, tokens=tokens, layer_values=values)


def choose(
    device: Device, work: StepWork, wanted: Wanted, table: Sequence[Row] | None = None
) -> StepChoice:
    """Chooses how a step is executed, from the rows of `table`; None: the committed table."""
    if wanted.scan != AUTO and wanted.remat != AUTO and wanted.microbatches != AUTO:
        return StepChoice(
            LayerLoop(wanted.scan, wanted.remat), wanted.microbatches, "as configured"
        )
    if device.platform == "cpu":
        return _choose_on_cpu(work, wanted)
    table = read_table() if table is None else table
    return _choose_by_table(device, work, wanted, table)


def _choose_defaults(wanted: Wanted, reason: str) -> StepChoice:
    scan = True if wanted.scan == AUTO else wanted.scan
    remat = "none" if wanted.remat == AUTO else wanted.remat
    parts = 1 if wanted.microbatches == AUTO else wanted.microbatches
    return StepChoice(LayerLoop(scan, remat), parts, reason)


def _choose_on_cpu(work: StepWork, wanted: Wanted) -> StepChoice:
    scan, parts, reasons = wanted.scan, wanted.microbatches, []
    if scan == AUTO:
        scan = not _unrolling_pays(work)
        reasons.append("too short to unroll" if scan else "unrolled is faster on a CPU")
    if parts == AUTO:
        size = work.stack.layer_values * work.itemsize
        if not work.splits_exactly:
            parts = 1
            reasons.append("microbatches would change the result or cost time")
        else:
            parts = largest_divisor(work.images, math.ceil(work.images * size / _CACHE_BYTES))
            kept = work.images // parts * size / 2**20
            reasons.append(f"a layer keeps {kept:.1f} MiB of a microbatch")
    remat = "none" if wanted.remat == AUTO else wanted.remat
    return StepChoice(LayerLoop(scan, remat), parts, "; ".join(reasons) or "as configured")


def largest_divisor(number: int, limit: int) -> int:
    """Returns the largest divisor of a number that is not above a limit.

    >>> largest_divisor(30, 8), largest_divisor(32, 8), largest_divisor(127, 8)
    (6, 8, 1)
    """
    return max(d for d in range(1, max(1, min(number, limit)) + 1) if number % d == 0)


def _choose_by_table(
    device: Device, work: StepWork, wanted: Wanted, table: Sequence[Row]
) -> StepChoice:
    rows = _rows_for(device.platform, work.stack, wanted, table)
    if not rows:
        return _choose_defaults(wanted, f"no figures for a {device.platform}")
    known = device.memory_bytes
    limit = math.inf if known is None else known * _FILL
    if wanted.microbatches != AUTO:
        counts = [wanted.microbatches]
    elif work.splits_exactly:
        counts = [n for n in range(1, work.images + 1) if work.images % n == 0]
    else:
        counts = [1]
    for parts in counts:
        fitting = [row for row in rows if _memory(row, work, parts) <= limit]
        if fitting:
            return _fastest(fitting, device, work, parts)
    row = min(rows, key=lambda row: _memory(row, work, counts[-1]))
    need = _memory(row, work, counts[-1]) / GIB
    reason = f"may not fit: about {need:.1f} of {limit / GIB:.1f} GiB"
    return StepChoice(LayerLoop(row.scan, row.remat), counts[-1], reason)


def _rows_for(platform: str, stack: Stack, wanted: Wanted, table: Sequence[Row]) -> list[Row]:
    """Returns the rows that the config allows, of the model whose width is nearest."""
    rows = [
        row
        for row in table
        if row.platform == platform
        and wanted.scan in (AUTO, row.scan)
        and wanted.remat in (AUTO, row.remat)
    ]
    widths = {row.width for row in rows}
    nearest = min(widths, key=lambda width: abs(math.log(width / stack.width)), default=0)
    rows = [row for row in rows if row.width == nearest]
    quick = [row for row in rows if _compile_s(row, stack) <= _COMPILE_S[platform]]
    return quick or rows


def _compile_s(row: Row, stack: Stack) -> float:
    return row.compile_s + row.compile_s_per_layer * stack.depth


def _activations(work: StepWork) -> float:
    """Tokens x features x layers of all images on the device, in units of bfloat16 values."""
    stack = work.stack
    return work.images * stack.tokens * stack.width * stack.depth * work.itemsize / 2


def _memory(row: Row, work: StepWork, parts: int) -> float:
    """Returns the bytes of a step: state, gradients, and what is kept of a microbatch."""
    # With microbatches, the sum of the gradients is kept beside those of a microbatch.
    gradients = work.param_bytes * (2 if parts > 1 else 1)
    return work.state_bytes + gradients + row.kept_bytes * _activations(work) / parts


def _bound_s(row: Row, device: Device, work: StepWork, parts: int) -> tuple[float, str]:
    """Returns the least step time in seconds and what limits it.

    If a rate of the device is not known, the time of the memory traffic at 1 byte/s.
    """
    # The state is read and written once. Each microbatch reads the parameters and adds to the sum.
    moved = row.moved_bytes * _activations(work) + 2 * work.state_bytes
    moved += 3 * work.param_bytes * (parts - 1)
    if device.peak_flops is None or device.memory_bandwidth is None:
        return moved, "memory"
    compute_s = work.flops * (1 + row.recomputed) / device.peak_flops
    memory_s = moved / device.memory_bandwidth
    return (compute_s, "compute") if compute_s > memory_s else (memory_s, "memory")


def _fastest(rows: Sequence[Row], device: Device, work: StepWork, parts: int) -> StepChoice:
    bounds = [_bound_s(row, device, work, parts)[0] for row in rows]
    equal = [
        row for row, bound in zip(rows, bounds, strict=True) if bound <= min(bounds) * _SAME_SPEED
    ]
    row = min(equal, key=lambda row: (_compile_s(row, work.stack), row.recomputed, row.moved_bytes))
    seconds, limit = _bound_s(row, device, work, parts)
    reason = "least memory traffic that fits"
    if device.peak_flops is not None:
        reason = f"least step bound that fits: {seconds * 1e3:.1f} ms of {limit}"
    if device.memory_bytes is not None:
        need, has = _memory(row, work, parts) / GIB, device.memory_bytes / GIB
        reason += f", about {need:.1f} of {has:.1f} GiB"
    return StepChoice(LayerLoop(row.scan, row.remat), parts, reason)


def _unrolling_pays(work: StepWork) -> bool:
    """Whether a CPU saves more time in all steps than it spends to compile the other layers."""
    saved_s = _UNROLLED_GAIN * work.flops * work.total_steps / _CPU_FLOPS
    return saved_s > _CPU_COMPILE_S_PER_LAYER * (work.stack.depth - 1)


def _device(device: Any) -> Device:
    platform: str = "gpu" if device.platform in ("cuda", "rocm") else device.platform
    chip = None if platform == "cpu" else find_chip(device.device_kind)
    if chip is None:
        return Device(platform)
    memory = chip.memory_bytes
    if platform == "gpu" and memory is not None:
        # All processes of a run must choose alike, so this is not read from the device, where it
        # differs by some megabytes.
        memory = usable_gpu_memory(memory)
    return Device(platform, memory, chip.peak_flops, chip.memory_bandwidth)
