"""Refuses runs that cannot fit the memory, before anything is allocated or compiled.

The estimates are lower bounds, so no run is refused that would fit.
"""

import math
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax.config.run import Config
from vit_jax.data.crops.pad import Pad
from vit_jax.memory import check_fits, shown_bytes
from vit_jax.models.registry import family_of
from vit_jax.named_tree import named_leaves
from vit_jax.parallel.sharding import bytes_on_device
from vit_jax.tasks.task import model_image_size
from vit_jax.train.chips import find_chip
from vit_jax.train.state import TrainState

_FLOAT_BYTES = 4
# Memory that Python with NumPy takes before it reads anything.
_WORKER_BYTES = 40_000_000
# XLA aborts the process if the size of an array does not fit 64 bits.
_XLA_BYTES = 2**60
_XLA = "one array of XLA"


def check_sizes(config: Config, num_classes: int, *, planned: bool = False) -> None:
    """Checks batches and activations by formulas; raises MemoryLimitError.

    If the run is only `planned` for another machine, this one's memory is no limit.
    """
    data, limits = config.data, {"limit": _XLA_BYTES, "place": _XLA}
    host = limits if planned else {}
    side, hosts = data.image_size, 1 if planned else jax.process_count()
    shown = f"images of {side:,} x {side:,} pixels"
    for key, size in (
        ("data.global_batch_size", data.global_batch_size),
        ("evaluation.batch_size", config.evaluation.batch_size or 0),
    ):
        fix = f"set a smaller {key} or data.image_size"
        check_fits(size * side**2 * 3 // hosts, f"a batch of {size:,} {shown}", fix, **host)
    if isinstance(crop := data.augment.crop, Pad):
        pad, fix = crop.pixels, "set a smaller data.augment.crop.pixels"
        what = f"an image of {side:,} x {side:,} pixels with {pad:,} around it"
        check_fits((side + 2 * pad) ** 2 * 3, what, fix, **host)
    workers = data.num_workers or 0
    check_fits(
        workers * _WORKER_BYTES,
        f"{workers:,} reader processes",
        "set a smaller data.num_workers",
        **host,
    )
    check_fits(
        num_classes * _FLOAT_BYTES,
        f"the logits of {num_classes:,} classes for one image",
        "set a smaller data.num_classes",
        **host,
    )
    stack = family_of(config.model.name).stack
    if stack is None:
        return
    sizes = stack(config.model, model_image_size(config))
    fix = "set a smaller data.image_size or model.width, or larger patches"
    tokens = f"{sizes.tokens:,} tokens of width {sizes.width:,}"
    check_fits(sizes.tokens * sizes.width * _FLOAT_BYTES, f"{tokens} of one image", fix, **host)
    check_fits(sizes.layer_values * data.global_batch_size, f"a layer with {tokens}", fix, **limits)
    check_fits(
        sizes.depth * sizes.width * _FLOAT_BYTES,
        f"{sizes.depth:,} layers of width {sizes.width:,}",
        "set a smaller model.depth",
        **host,
    )


def check_state(abstract: TrainState, mesh: Mesh, *, planned: bool = False) -> None:
    """Checks parameters, gradients, optimizer state and average; raises MemoryLimitError."""
    # The gradients have the sizes of the parameters.
    needed = bytes_on_device(abstract) + bytes_on_device(abstract.params)
    name, size = max(
        ((name, _bytes(leaf)) for name, leaf in named_leaves(abstract.params).items()),
        key=lambda item: item[1],
    )
    what = f"parameters, gradients and optimizer state ({name} alone has {shown_bytes(size)})"
    fix = "use a smaller model, image or number of classes"
    if planned:
        check_fits(needed, what, fix, limit=_XLA_BYTES, place=_XLA)
        return
    device, local = mesh.devices.flat[0], len(mesh.local_devices)
    if device.platform == "cpu":
        check_fits(needed * local, what, fix)
        return
    chip = find_chip(device.device_kind)
    if chip is not None and chip.memory_bytes is not None:
        fix += ", or shard it over more devices with mesh.preset=fsdp"
        place = f"a {device.device_kind}"
        check_fits(needed, f"{what} on each device", fix, limit=chip.memory_bytes, place=place)


def check_step(step: jax.stages.Compiled, mesh: Mesh) -> None:
    """Checks the memory that a compiled step allocates on a CPU; raises MemoryLimitError.

    Other devices refuse to allocate too much; on a CPU the system would end the process.
    """
    analysis = step.memory_analysis() if mesh.devices.flat[0].platform == "cpu" else None
    if analysis is None:
        return
    needed = analysis.argument_size_in_bytes + analysis.temp_size_in_bytes
    check_fits(
        needed * len(mesh.local_devices),
        "a training step, of which"
        f" {shown_bytes(analysis.temp_size_in_bytes)} are for activations and gradients",
        "set a smaller data.global_batch_size or data.image_size, more accumulation_steps,"
        " or model.remat=full",
    )


def _bytes(leaf: Any) -> int:
    return math.prod(leaf.shape) * jax.numpy.dtype(leaf.dtype).itemsize
