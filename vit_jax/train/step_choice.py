"""Fits a run to its devices: refuses what cannot fit, and chooses how a step is executed.

Before anything is allocated or compiled, `check_sizes` and `check_state` refuse runs that cannot
fit the memory. They compute lower bounds, so no run is refused that would fit. `choose_step` then
chooses the loop over the layers, the remat policy and the number of microbatches, where the config
says "auto". None of the three changes what a run learns, only its speed and memory. Once the step
is compiled, `check_step` refuses it if it does not fit a CPU's memory.

On a TPU or GPU the choice is the first setting of PREFERRED that fits the memory. More microbatches
are used only if none fits. `step_memory.csv` has the memory that a layer keeps, as the compilers
planned it; `experiments/speed/step_memory.py` makes it.

On a CPU the layers are unrolled, unless the run is too short to repay the compilation. Microbatches
are so small that what a layer keeps of one fits the cache. Source: ours; the rules and what was
measured are in experiments/speed/README.md.
"""

import collections
import csv
import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax.config.run import Config
from vit_jax.data.crops.pad import Pad
from vit_jax.memory import check_fits, shown_bytes
from vit_jax.models.activation_sharding import gathers_layers
from vit_jax.models.options import AUTO
from vit_jax.models.registry import family_of
from vit_jax.models.stacking import LayerLoop, Stack
from vit_jax.named_tree import named_leaves
from vit_jax.parallel.mesh import num_batch_shards
from vit_jax.parallel.sharding import bytes_on_device
from vit_jax.tasks.task import Task, model_image_size
from vit_jax.train.chips import GIB, find_chip, usable_gpu_memory
from vit_jax.train.state import TrainState

_FLOAT_BYTES = 4
# Memory that Python with NumPy takes before it reads anything.
_WORKER_BYTES = 40_000_000
# XLA aborts the process if the size of an array does not fit 64 bits.
_XLA_ARRAY: dict[str, Any] = {"limit": 2**60, "place": "one array of XLA"}

# Platform -> settings from the fastest on. A TPU's compiler takes minutes to unroll layers, and
# scanned steps with remat "dots" move the fewest bytes of those that recompute no matmul. On a GPU
# unrolled steps move fewer bytes.
PREFERRED = {
    "tpu": (LayerLoop(True, "dots"), LayerLoop(True, "full"), LayerLoop(False, "none"),
            LayerLoop(False, "full"), LayerLoop(True, "none"), LayerLoop(False, "dots")),
    "gpu": (LayerLoop(False, "none"), LayerLoop(False, "dots"), LayerLoop(False, "full"),
            LayerLoop(True, "dots"), LayerLoop(True, "full"), LayerLoop(True, "none")),
    "cpu": (LayerLoop(False, "none"), LayerLoop(False, "dots"), LayerLoop(False, "full"),
            LayerLoop(True, "none"), LayerLoop(True, "dots"), LayerLoop(True, "full")),
}  # fmt: skip
# More layers are not unrolled unless the config says so: they compile for more than a minute.
_MOST_UNROLLED = {"tpu": 3, "gpu": 28}
TABLE = Path(__file__).with_name("step_memory.csv")
# Share of the memory to fill; the rest is for what the table does not know.
_FILL = 0.9
# Bytes for each logit that XLA's attention writes on a TPU: in the layer that is computed, and in
# every layer with remat "none". Compiled for v5e, S/16 and B/16 with 197 tokens take 19 bytes more
# with it than with the kernel where remat is "dots" (14 with 577 tokens) and 9 where it is "full".
# With "none" each layer takes 9 more.
_LOGIT_BYTES, _KEPT_LOGIT_BYTES = 20, 9
# Bytes that a layer may keep of a microbatch on a CPU.
_CACHE_BYTES = 12 * 2**20
# A CPU unrolls if this share of the time of all steps, at this many FLOP/s, is longer than it takes
# to compile the other layers.
_UNROLLED_GAIN = 0.1
_CPU_FLOPS = 5e10
_CPU_COMPILE_S_PER_LAYER = 0.5


def check_sizes(config: Config, *, planned: bool = False) -> None:
    """Checks batches, images and layers by formulas; raises MemoryLimitError.

    If the run is only `planned` for another machine, this one's memory is no limit.
    """
    check = functools.partial(check_fits, **_XLA_ARRAY) if planned else check_fits
    data, side = config.data, config.data.image_size
    hosts = 1 if planned else jax.process_count()
    for key, size in (
        ("data.global_batch_size", data.global_batch_size),
        ("evaluation.batch_size", config.evaluation.batch_size or 0),
    ):
        what = f"a batch of {size:,} images of {side:,} x {side:,} pixels"
        check(size * side**2 * 3 // hosts, what, f"set a smaller {key} or data.image_size")
    if isinstance(crop := data.augment.crop, Pad):
        pad = crop.pixels
        what = f"an image of {side:,} x {side:,} pixels with {pad:,} around it"
        check((side + 2 * pad) ** 2 * 3, what, "set a smaller data.augment.crop.pixels")
    workers = data.num_workers or 0
    what = f"{workers:,} reader processes"
    check(workers * _WORKER_BYTES, what, "set a smaller data.num_workers")
    stack_of = family_of(config.model.name).stack
    if stack_of is None:
        return
    stack = stack_of(config.model, model_image_size(config))
    fix = "set a smaller data.image_size or model.width, or larger patches"
    tokens = f"{stack.tokens:,} tokens of width {stack.width:,}"
    check(stack.tokens * stack.width * _FLOAT_BYTES, f"{tokens} of one image", fix)
    values = stack.layer_values * data.global_batch_size
    check_fits(values, f"a layer with {tokens}", fix, **_XLA_ARRAY)


def check_state(abstract: TrainState, mesh: Mesh, *, planned: bool = False) -> None:
    """Checks parameters, gradients, optimizer state and average; raises MemoryLimitError."""
    # The gradients have the sizes of the parameters.
    needed = bytes_on_device(abstract) + bytes_on_device(abstract.params)
    sizes = {n: p.size * p.dtype.itemsize for n, p in named_leaves(abstract.params).items()}
    name = max(sizes, key=lambda name: sizes[name])
    shown = shown_bytes(sizes[name])
    what = f"parameters, gradients and optimizer state ({name} alone has {shown})"
    fix = "use a smaller model, image or number of classes"
    device = mesh.devices.flat[0]
    chip = find_chip(device.device_kind)
    if planned:
        check_fits(needed, what, fix, **_XLA_ARRAY)
    elif device.platform == "cpu":
        check_fits(needed * len(mesh.local_devices), what, fix)
    elif chip is not None and chip.memory_bytes is not None:
        fix += ", or shard it over more devices with mesh.preset=fsdp"
        place = f"a {device.device_kind}"
        check_fits(needed, f"{what} on each device", fix, limit=chip.memory_bytes, place=place)


@dataclasses.dataclass(frozen=True)
class StepChoice:
    """How a training step is executed, and why.

    >>> print(StepChoice(LayerLoop(False, "none"), 1, "as configured"))
    unrolled, remat none, 1 microbatch (as configured)
    """

    loop: LayerLoop
    microbatches: int
    reason: str
    has_stack: bool = True  # Whether the model has layers to loop over.

    def __str__(self) -> str:
        loop = f"{'scanned' if self.loop.scan else 'unrolled'}, remat {self.loop.remat}, "
        ending = "es" if self.microbatches > 1 else ""
        return (
            f"{loop if self.has_stack else ''}{self.microbatches} microbatch{ending}"
            f" ({self.reason})"
        )


@dataclasses.dataclass(frozen=True)
class StepSizes:
    """The sizes of a step on one device, from which `choose` decides."""

    stack: Stack
    images: int
    itemsize: int  # bytes of an activation
    flops: float  # model FLOPs of all steps
    state_bytes: float  # parameters, optimizer state, average and frozen arrays
    param_bytes: float  # parameters, and thus their gradients
    splits_exactly: bool  # microbatches change the gradient only by rounding, at no cost
    gathered_bytes: float = 0.0  # parameters that `activation_sharding.gathered` makes whole


def choose_step(
    config: Config, task: Task, mesh: Mesh, state: Sequence[Any], total_steps: int
) -> StepChoice:
    """Chooses how the steps of a run are executed.

    `state` has the abstract state, and then the frozen arrays, with shardings.
    """
    model, batch_size = config.model, config.data.global_batch_size
    stack_of = family_of(model.name).stack
    if stack_of is None:
        loop = LayerLoop(model.scan is not False, "none" if model.remat == AUTO else model.remat)
        microbatches = 1 if config.accumulation_steps == AUTO else config.accumulation_steps
        return StepChoice(loop, microbatches, "the model has no stack of equal layers", False)
    stack = stack_of(model, model_image_size(config))
    in_training = {
        name: round(getattr(stack, name) * task.activations)
        for name in ("tokens", "layer_values", "logits")
    }
    params = state[0].params
    itemsize = jax.numpy.dtype(model.dtype).itemsize
    num_params = sum(leaf.size for leaf in jax.tree.leaves(params))
    sizes = StepSizes(
        stack=dataclasses.replace(stack, **in_training),
        images=batch_size // num_batch_shards(mesh),
        itemsize=itemsize,
        flops=task.flops_per_image * batch_size * total_steps / mesh.size,
        state_bytes=bytes_on_device(state),
        param_bytes=bytes_on_device(params),
        splits_exactly=task.splits_exactly,
        gathered_bytes=num_params * itemsize if gathers_layers(mesh) else 0,
    )
    device = mesh.devices.flat[0]
    platform = device.platform if device.platform in ("cpu", "tpu") else "gpu"  # Or "cuda".
    # All processes of a run must choose alike, so the memory is not read from the device, where it
    # differs by some megabytes.
    chip = find_chip(device.device_kind)
    memory = None if chip is None else chip.memory_bytes
    if memory is not None and platform == "gpu":
        memory = usable_gpu_memory(memory)
    return choose(config, platform, memory, sizes)


def choose(
    config: Config, platform: str, memory_bytes: float | None, sizes: StepSizes
) -> StepChoice:
    """Chooses how a step is executed on a device; None: its memory is not known."""
    scan, remat, microbatches = config.model.scan, config.model.remat, config.accumulation_steps
    may_unroll = scan is False or _unrolling_pays(platform, sizes)
    loops = [
        loop
        for loop in PREFERRED[platform]
        if scan in (AUTO, loop.scan) and remat in (AUTO, loop.remat) and (loop.scan or may_unroll)
    ]
    # Numbers of microbatches.
    if microbatches != AUTO:
        counts = [microbatches]
    elif sizes.splits_exactly:
        counts = [n for n in range(1, sizes.images + 1) if sizes.images % n == 0]
    else:
        counts = [1]
    if AUTO not in (scan, remat, microbatches):
        return StepChoice(loops[0], counts[0], "as configured")

    if platform == "cpu":
        kept = sizes.images * sizes.stack.layer_values * sizes.itemsize
        most = max(counts[0], math.ceil(kept / _CACHE_BYTES))
        count = max(n for n in counts if n <= most)
        reason = f"a layer keeps {kept / count / 2**20:.1f} MiB of a microbatch"
        if scan == AUTO and loops[0].scan:
            reason = f"too short to unroll; {reason}"
        return StepChoice(loops[0], count, reason)

    needed = {(n, loop): _step_bytes(platform, sizes, n, loop) for n in counts for loop in loops}
    limit = math.inf if memory_bytes is None else memory_bytes * _FILL
    fitting = [setting for setting in needed if needed[setting] <= limit]
    least = min(needed, key=lambda setting: needed[setting])
    count, loop = setting = fitting[0] if fitting else least
    memory = f"about {needed[setting] / GIB:.1f}"
    if memory_bytes is not None:
        memory += f" of {(memory_bytes if fitting else limit) / GIB:.1f}"
    free = scan == remat == microbatches == AUTO
    fastest = "the fastest that fits" if free else "the fastest that fits, with what is configured"
    reason = fastest if fitting else "may not fit"
    return StepChoice(loop, count, f"{reason}: {memory} GiB")


def _unrolling_pays(platform: str, sizes: StepSizes) -> bool:
    """Whether unrolled layers are worth the time that they take to compile."""
    if platform != "cpu":
        return sizes.stack.depth <= _MOST_UNROLLED[platform]
    saved_s = _UNROLLED_GAIN * sizes.flops / _CPU_FLOPS
    return saved_s > _CPU_COMPILE_S_PER_LAYER * (sizes.stack.depth - 1)


def _step_bytes(platform: str, sizes: StepSizes, microbatches: int, loop: LayerLoop) -> float:
    """Returns the bytes of a step: state, gradients, and what is kept of a microbatch."""
    stack, images = sizes.stack, sizes.images / microbatches
    # With microbatches, the sum of the gradients is kept beside those of a microbatch.
    gradients = sizes.param_bytes * (2 if microbatches > 1 else 1)
    kept_at = read_table()[platform, loop]
    nearest_width = min(kept_at, key=lambda width: abs(math.log(width / stack.width)))
    features = images * stack.tokens * stack.width * stack.depth
    kept = kept_at[nearest_width] * features * sizes.itemsize / 2  # The table is for bfloat16.
    logit_bytes = _LOGIT_BYTES
    if loop.remat == "none":
        kept += sizes.gathered_bytes
        logit_bytes += _KEPT_LOGIT_BYTES * stack.depth
    if platform == "tpu":
        kept += images * stack.logits * logit_bytes
    return sizes.state_bytes + gradients + kept


@functools.cache
def read_table() -> dict[tuple[str, LayerLoop], dict[int, float]]:
    """Returns (platform, loop) -> {width: bytes that a layer keeps}.

    The bytes are those of one token and feature in bfloat16.
    """
    table = collections.defaultdict(dict)
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            remat: Any = row["remat"]
            loop = LayerLoop(row["scan"] == "True", remat)
            table[row["platform"], loop][int(row["width"])] = float(row["kept_bytes"])
    return dict(table)


def check_step(step: jax.stages.Compiled, mesh: Mesh) -> None:
    """Checks the memory that a compiled step allocates on a CPU; raises MemoryLimitError.

    Other devices refuse to allocate too much; on a CPU the system would end the process.
    """
    analysis = step.memory_analysis() if mesh.devices.flat[0].platform == "cpu" else None
    if analysis is None:
        return
    temporary = analysis.temp_size_in_bytes
    check_fits(
        (analysis.argument_size_in_bytes + temporary) * len(mesh.local_devices),
        f"a training step, of which {shown_bytes(temporary)} are for activations and gradients",
        "set a smaller data.global_batch_size or data.image_size, more accumulation_steps,"
        " or model.remat=full",
    )
