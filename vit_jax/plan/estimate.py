"""The plan of one run: compiles its real training step and takes the measure of it."""

import dataclasses
import re
import time
from typing import Any

import jax

from vit_jax.config.run import Config
from vit_jax.models.complexity import count_macs
from vit_jax.parallel.mesh import make_mesh
from vit_jax.plan.buffers import Buffer, find_buffers
from vit_jax.plan.chips import Chip
from vit_jax.plan.collectives import CollectiveSum, find_collectives, sum_up
from vit_jax.plan.hlo import parse
from vit_jax.plan.roofline import Bound, Work, bound
from vit_jax.plan.sizes import Sizes
from vit_jax.plan.traffic import count_bytes
from vit_jax.train.program import Program, build_program


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device.

    Attributes:
        state: arguments by part: "parameters", "optimizer", "average", "frozen", "batch".
        temporaries: that the step has beside them at the fullest moment, or, where the compiler
            does not tell that moment, in all; where it did not compile, what it asked for.
        program: instructions, and results that take no argument's place.
        buffers: temporaries alive at that moment; empty where it did not compile.
    """

    state: dict[str, int]
    temporaries: int
    program: int
    buffers: tuple[Buffer, ...]

    @property
    def total(self) -> int:
        """What a device must have."""
        return sum(self.state.values()) + self.temporaries + self.program


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run would need and take.

    Attributes:
        config: the run.
        chip: stated figures of a device.
        devices: how many.
        mesh: axis -> size.
        sizes: classes and examples.
        total_steps: of the run.
        parameters: of the model.
        memory: of a device.
        work: of a step, on a device.
        collectives: of a step; empty where it did not compile.
        unknown_loops: loops whose turns are unknown and count once.
        bound: shortest times.
        compile_s: wall time of tracing and compiling the step.
        compiled: False where the compiler ran out of the chip's memory.
    """

    config: Config
    chip: Chip
    devices: int
    mesh: dict[str, int]
    sizes: Sizes
    total_steps: int
    parameters: int
    memory: Memory
    work: Work
    collectives: tuple[CollectiveSum, ...]
    unknown_loops: int
    bound: Bound
    compile_s: float
    compiled: bool

    @property
    def fits(self) -> bool | None:
        """Whether a device has the memory; None: its memory is unknown."""
        if self.chip.memory_bytes is None:
            return self.compiled or False
        return self.compiled and self.memory.total <= self.chip.memory_bytes

    @property
    def images_per_second(self) -> float | None:
        """At most, over all devices."""
        step = self.bound.overlapped_s
        return self.config.data.global_batch_size / step if step else None


def make_plan(config: Config, devices: list[Any], chip: Chip, sizes: Sizes) -> Plan:
    """Compiles the training step of a run for devices, and measures it.

    Args:
        config: the run; its data are not opened.
        devices: real or abstract.
        chip: what is stated of one of them.
        sizes: classes and examples.

    Raises:
        ConfigError, ModelError: sizes that do not go together.
    """
    mesh = make_mesh(config.mesh, devices)
    program = build_program(
        config, mesh, num_classes=sizes.num_classes, num_examples=sizes.num_examples
    )
    state = _state_bytes(program)
    flops = _flops(program, len(devices))
    begin = time.perf_counter()
    compiled, wanted = None, None
    try:
        compiled = program.compile()
    except jax.errors.JaxRuntimeError as error:
        wanted = _asked_for(str(error))
        if wanted is None:
            raise
    seconds = time.perf_counter() - begin
    memory, traffic, received = Memory(state, wanted or 0, 0, ()), None, None
    collectives: list[CollectiveSum] = []
    loops = 0
    if compiled is not None:
        text = compiled.as_text() or ""
        parsed = parse(text)
        collectives = sum_up(find_collectives(parsed, len(devices)))
        memory = _memory(state, compiled, tuple(find_buffers(parsed, text)), devices[0].platform)
        traffic = float(count_bytes(parsed))
        received = sum(c.received for c in collectives)
        loops = len(parsed.unknown_loops)
    work = Work(*flops, traffic, received)
    return Plan(
        config, chip, len(devices), dict(mesh.shape), sizes, program.total_steps,
        program.num_parameters(), memory, work, tuple(collectives), loops, bound(work, chip),
        seconds, compiled is not None,
    )  # fmt: skip


def _asked_for(message: str) -> int | None:
    """Returns the bytes of temporaries that the compiler could not place; None: another error."""
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    match = re.search(r"temporaries \(([\d.]+)([KMGT])\)", message) or re.search(
        r"[Uu]sed ([\d.]+)([KMGT])", message
    )
    return int(float(match[1]) * 1024 ** ("KMGT".index(match[2]) + 1)) if match else 0


def _memory(
    state: dict[str, int], compiled: Any, buffers: tuple[Buffer, ...], platform: str
) -> Memory:
    stats: Any = compiled.memory_analysis()
    # The layout on the device can take more than the numbers do.
    padding = max(stats.argument_size_in_bytes - sum(state.values()), 0)
    if padding:
        state = {**state, "padding": padding}
    program = stats.generated_code_size_in_bytes
    program += max(stats.output_size_in_bytes - stats.alias_size_in_bytes, 0)
    temporaries = stats.temp_size_in_bytes
    # On TPUs that sum counts arrays that take each other's place, and those in the chip's vector
    # memory: for ViT-L/16 5.1 GiB, where XLA's own report has 4.29. Its fullest moment agrees with
    # that report, but for gaps of 0.02. Elsewhere than on TPUs it leaves temporaries out.
    peak = getattr(stats, "peak_memory_in_bytes", None) if platform == "tpu" else None
    if peak:
        temporaries = max(peak - sum(state.values()), 0)
    return Memory(state, temporaries, program, buffers)


def _state_bytes(program: Program) -> dict[str, int]:
    """Returns the bytes on one device of each part of the state, and of the batch."""

    def on_device(tree: Any) -> int:
        return sum(
            int(jax.numpy.dtype(leaf.dtype).itemsize) * _size(leaf.sharding.shard_shape(leaf.shape))
            for leaf in jax.tree.leaves(tree)
        )

    state = program.abstract
    parts = {
        "parameters": on_device(state.params),
        "optimizer": on_device((state.opt_state, state.step)),
        "average": on_device(state.ema),
        "frozen": on_device(program.abstract_frozen),
        "batch": on_device(program.batch_shapes()),
    }
    return {name: size for name, size in parts.items() if size}


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for side in shape:
        total *= side
    return total


def _flops(program: Program, devices: int) -> tuple[float, float]:
    """Returns model FLOPs and executed FLOPs of a step, on each device."""
    model = program.flops_per_image * program.config.data.global_batch_size
    try:
        traced = jax.make_jaxpr(program.step_fn)(
            program.abstract, program.batch_shapes(), *program.abstract_frozen
        )
        executed = 2 * count_macs(traced.jaxpr)
    except ValueError:  # a loop without a known number of turns
        executed = 0
    # A kernel such as cuDNN's attention hides its products from the trace.
    return model / devices, (executed or model) / devices
