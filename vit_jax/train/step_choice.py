"""Chooses how a training step is executed: loop over the layers, remat policy and microbatches.

None of the three changes what a run learns, only its speed and memory. A value that the config sets
wins; this module decides those that are "auto".

On a TPU or GPU it is the first setting of PREFERRED that fits the memory. More microbatches are
used only if none fits. `step_memory.csv` has the memory that a layer keeps, as the compilers
planned it; `experiments/speed/step_memory.py` makes it.

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
from typing import Any, Literal, NamedTuple

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

# Platform -> settings from the fastest on. A TPU's compiler takes minutes to unroll layers, and
# scanned steps with remat "dots" move the fewest bytes of those that recompute no matmul. On a GPU
# unrolled steps move fewer bytes.
PREFERRED = {
    "tpu": (LayerLoop(True, "dots"), LayerLoop(True, "full"), LayerLoop(False, "none"),
            LayerLoop(False, "full"), LayerLoop(True, "none"), LayerLoop(False, "dots")),
    "gpu": (LayerLoop(False, "none"), LayerLoop(False, "dots"), LayerLoop(False, "full"),
            LayerLoop(True, "dots"), LayerLoop(True, "full"), LayerLoop(True, "none")),
}  # fmt: skip
# More layers are not unrolled unless the config says so: they compile for more than a minute.
_MOST_UNROLLED = {"tpu": 3, "gpu": 28}
# Bytes that a layer may keep of a microbatch on a CPU.
_CACHE_BYTES = 12 * 2**20
# A CPU unrolls if this share of the time of all steps, at this many FLOP/s, is longer than it takes
# to compile the other layers.
_UNROLLED_GAIN = 0.1
_CPU_FLOPS = 5e10
_CPU_COMPILE_S_PER_LAYER = 0.5
# Bytes for each logit that XLA's attention writes on a TPU: in the layer that is computed, and in
# every layer with remat "none". Compiled for v5e, S/16 and B/16 with 197 tokens take 19 bytes more
# with it than with the kernel where remat is "dots" (14 with 577 tokens) and 9 where it is "full".
# With "none" each layer takes 9 more.
_LOGIT_BYTES, _KEPT_LOGIT_BYTES = 20, 9
# Share of the memory to fill; the rest is for what the table does not know.
_FILL = 0.9


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
    gathered_bytes: float = 0.0  # parameters that a layer has whole, see `gathered`


class Row(NamedTuple):
    """A line of the table: what the compiler of a platform keeps of a layer in one setting."""

    platform: str  # "tpu" or "gpu"
    width: int
    loop: LayerLoop
    kept_bytes: float  # for bfloat16, per token and feature


TABLE = Path(__file__).with_name("step_memory.csv")


@functools.cache
def read_table() -> tuple[Row, ...]:
    """Returns the rows of the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(
            Row(
                row["platform"],
                int(row["width"]),
                LayerLoop(row["scan"] == "True", row["remat"]),  # pyright: ignore[reportArgumentType]
                float(row["kept_bytes"]),
            )
            for row in csv.DictReader(file)
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
        return _choose_defaults(wanted, "nothing to choose without a stack of layers")
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
        gathered_bytes=_gathered_bytes(state[0].params, mesh, options.dtype),
    )
    return choose(*_device(mesh.devices.flat[0]), work, wanted)


def _gathered_bytes(params: Any, mesh: Mesh, dtype: str) -> float:
    """Returns the bytes of all parameters if `activation_sharding.gathered` makes them whole."""
    if mesh.shape["fsdp"] == 1 or mesh.shape["tensor"] > 1:
        return 0
    return jax.numpy.dtype(dtype).itemsize * sum(leaf.size for leaf in jax.tree.leaves(params))


def _in_training(stack: Stack, activations: float) -> Stack:
    """Returns the sizes of a stack that keeps a multiple of the activations of one image."""
    names = ("tokens", "layer_values", "logits")
    return dataclasses.replace(stack, **{n: round(getattr(stack, n) * activations) for n in names})


def choose(platform: str, memory_bytes: float | None, work: StepWork, wanted: Wanted) -> StepChoice:
    """Chooses how a step is executed on a device; None: its memory is not known."""
    if wanted.scan != AUTO and wanted.remat != AUTO and wanted.microbatches != AUTO:
        return StepChoice(
            LayerLoop(wanted.scan, wanted.remat), wanted.microbatches, "as configured"
        )
    if platform == "cpu":
        return _choose_on_cpu(work, wanted)
    if platform not in PREFERRED:
        return _choose_defaults(wanted, f"no figures for a {platform}")
    return _choose_by_memory(platform, memory_bytes, work, wanted)


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


def _choose_by_memory(
    platform: str, memory_bytes: float | None, work: StepWork, wanted: Wanted
) -> StepChoice:
    unrolls = wanted.scan is False or work.stack.depth <= _MOST_UNROLLED[platform]
    loops = [
        loop
        for loop in PREFERRED[platform]
        if wanted.scan in (AUTO, loop.scan)
        and wanted.remat in (AUTO, loop.remat)
        and (unrolls or loop.scan)
    ]
    limit = math.inf if memory_bytes is None else memory_bytes * _FILL
    if wanted.microbatches != AUTO:
        counts = [wanted.microbatches]
    elif work.splits_exactly:
        counts = [n for n in range(1, work.images + 1) if work.images % n == 0]
    else:
        counts = [1]
    needs = {(n, loop): _memory(platform, loop, work, n) for n in counts for loop in loops}
    fits = [at for at, need in needs.items() if need <= limit]
    # If nothing fits, the setting that needs the least.
    parts, loop = at = fits[0] if fits else min(needs, key=lambda at: needs[at])
    memory = f"about {needs[at] / GIB:.1f}"
    if memory_bytes is not None:
        memory += f" of {(memory_bytes if fits else limit) / GIB:.1f}"
    reason = "the fastest that fits" if fits else "may not fit"
    return StepChoice(loop, parts, f"{reason}: {memory} GiB")


def _memory(platform: str, loop: LayerLoop, work: StepWork, parts: int) -> float:
    """Returns the bytes of a step: state, gradients, and what is kept of a microbatch."""
    stack = work.stack
    rows = [row for row in read_table() if (row.platform, row.loop) == (platform, loop)]
    nearest = min(rows, key=lambda row: abs(math.log(row.width / stack.width)))
    # Tokens x features x layers of the images, in units of bfloat16 values.
    values = work.images / parts * stack.tokens * stack.width * stack.depth * work.itemsize / 2
    # With microbatches, the sum of the gradients is kept beside those of a microbatch.
    gradients = work.param_bytes * (2 if parts > 1 else 1)
    logits = 0.0
    if platform == "tpu":
        of_all = _KEPT_LOGIT_BYTES * stack.depth if loop.remat == "none" else 0
        logits = work.images / parts * stack.logits * (_LOGIT_BYTES + of_all)
    gathered = work.gathered_bytes if loop.remat == "none" else 0.0  # Kept for the backward pass.
    return work.state_bytes + gradients + gathered + nearest.kept_bytes * values + logits


def _unrolling_pays(work: StepWork) -> bool:
    """Whether a CPU saves more time in all steps than it spends to compile the other layers."""
    saved_s = _UNROLLED_GAIN * work.flops * work.total_steps / _CPU_FLOPS
    return saved_s > _CPU_COMPILE_S_PER_LAYER * (work.stack.depth - 1)


def _device(device: Any) -> tuple[str, float | None]:
    """Returns the platform, and the memory in bytes that a program may use."""
    platform: str = "gpu" if device.platform in ("cuda", "rocm") else device.platform
    chip = None if platform == "cpu" else find_chip(device.device_kind)
    if chip is None or chip.memory_bytes is None:
        return platform, None
    # All processes of a run must choose alike, so this is not read from the device, where it
    # differs by some megabytes.
    memory = chip.memory_bytes
    return platform, usable_gpu_memory(memory) if platform == "gpu" else memory
