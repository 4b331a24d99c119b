"""Plans a run: compiles its training step and reads its costs from the compiled program."""

import dataclasses
import math
import re
import time
from typing import Any

import jax

from vit_jax.config.run import Config
from vit_jax.data.dataset_sizes import DATASET_SIZES, known_size
from vit_jax.data.sources import class_count, open_training_data
from vit_jax.errors import DataError, UserError
from vit_jax.models.flops import count_macs
from vit_jax.parallel.mesh import make_mesh
from vit_jax.parallel.sharding import bytes_on_device
from vit_jax.parallel.slices import slice_of_devices
from vit_jax.plan.cudnn import attention_flops
from vit_jax.plan.hlo import parse
from vit_jax.plan.traffic import Collectives, count_bytes, find_collectives
from vit_jax.train.chips import Chip, Roofline, Work
from vit_jax.train.program import Program, build_program
from vit_jax.train.step_choice import StepChoice


class CompilerError(UserError):
    """A compiler does not support a step, or has a defect."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The properties of a dataset that a step and a run depend on."""

    num_classes: int
    num_examples: int  # per epoch
    source: str  # of these numbers, for messages


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of one device, in bytes.

    Attributes:
        state: size of the arguments: "parameters", "optimizer", "average", "frozen", "batch",
            "padding".
        temporaries: peak memory of the step without the arguments; their total size if the compiler
            does not report the peak. If the step did not compile: the size that the compiler
            requested.
        program: size of the instructions, of constants, and of results that do not overwrite an
            argument.
    """

    state: dict[str, int]
    temporaries: int
    program: int

    @property
    def total(self) -> int:
        return sum(self.state.values()) + self.temporaries + self.program


@dataclasses.dataclass(frozen=True)
class Plan:
    """The memory and speed estimates of a run."""

    config: Config
    chip: Chip
    mesh: dict[str, int]  # axis -> number of devices
    sizes: Sizes
    total_steps: int
    parameters: int  # number of parameters
    memory: Memory  # of a device
    work: Work  # of a step on a device
    collectives: tuple[Collectives, ...]  # of a step; empty if it did not compile
    unknown_loops: int  # loops with an unknown number of iterations; they count once
    compile_s: float  # to trace and compile the step
    compiled: bool  # False if the compiler ran out of the chip's memory
    choice: StepChoice
    slices: int = 1  # slices or nodes

    @property
    def devices(self) -> int:
        return math.prod(self.mesh.values())

    @property
    def roofline(self) -> Roofline:
        return Roofline(self.work, self.chip)

    @property
    def fits(self) -> bool:
        """Whether a device has enough memory. If its memory is unknown: whether it compiled."""
        fits = self.chip.memory_bytes is None or self.memory.total <= self.chip.memory_bytes
        return self.compiled and fits

    @property
    def images_per_second(self) -> float | None:
        """Upper bound on the images per second of all devices together."""
        step = self.roofline.overlapped_s
        return self.config.data.global_batch_size / step if step else None


def find_sizes(config: Config, num_classes: int | None, num_examples: int | None) -> Sizes:
    """Returns the number of classes and examples: as given, as published, or read from the data.

    The data are opened only if a number is neither given nor published.
    """
    sources = ["as given"] if num_classes or num_examples else []
    if config.data.captions.tokenizer is not None:
        num_classes = 0  # The images have captions.
    if num_classes is None or num_examples is None:
        classes, examples = known_size(config.data)
        if examples is not None or (num_examples and classes):
            sources.append(f"{config.data.name} as published")
        num_classes = classes if num_classes is None else num_classes
        num_examples = examples if num_examples is None else num_examples
    if num_classes is None or num_examples is None:
        try:
            source = open_training_data(config.data).source
        except DataError as error:
            wanted = {"--num_classes=N": num_classes, "--num_examples=N": num_examples}
            raise DataError(
                f"the size of dataset '{config.data.name}' is unknown, and {error.got}",
                f"a well-known dataset ({', '.join(DATASET_SIZES)}), or the data",
                f"add {' and '.join(flag for flag, value in wanted.items() if value is None)}",
            ) from None
        if num_classes is None:
            num_classes = class_count(source, config.data.num_classes)
        num_examples = len(source) if num_examples is None else num_examples
        sources.append("read from the data")
    return Sizes(num_classes, num_examples, ", ".join(sources))


def make_plan(config: Config, devices: list[Any], chip: Chip, sizes: Sizes) -> Plan:
    """Compiles the training step of a run for some devices and measures the compiled program.

    The devices are real or abstract, and `chip` is one of them. The data of the run are not opened.
    """
    mesh = make_mesh(config.mesh, devices)
    slices = slice_of_devices(list(mesh.devices.flat), config.mesh.slices)
    program = build_program(
        config, mesh, num_classes=sizes.num_classes, num_examples=sizes.num_examples, planned=True
    )
    state = _state_bytes(program)
    model_flops, traced_flops = _flops(program, len(devices))
    begin = time.perf_counter()
    compiled, memory = None, None
    try:
        compiled = program.compiled
    except jax.errors.JaxRuntimeError as error:
        wanted = _requested_memory(str(error))
        if wanted is None:
            raise CompilerError(
                f"the compiler for {chip.name} fails on this step: {str(error).splitlines()[0]}",
                "a step that it supports",
                "try --config.model.dtype=bfloat16, a larger model, or another --topology or"
                " --config.mesh.fsdp",
            ) from error
        memory = Memory(state, wanted, 0)
    seconds = time.perf_counter() - begin
    collectives: list[Collectives] = []
    traffic, received, between, unknown_loops, kernel_flops = None, None, None, 0, 0
    if compiled is not None:
        parsed = parse(compiled.as_text() or "")
        collectives = find_collectives(parsed, len(devices), slices)
        memory = _memory(state, compiled, devices[0].platform)
        traffic = float(count_bytes(parsed))
        kernel_flops = attention_flops(parsed)
        received = sum(c.received for c in collectives)
        between = sum(c.between for c in collectives) if len(set(slices)) > 1 else None
        unknown_loops = len(parsed.unknown_loops)
    assert memory is not None
    executed_flops = model_flops if traced_flops is None else traced_flops + kernel_flops
    return Plan(
        config,
        chip,
        dict(mesh.shape),
        sizes,
        program.total_steps,
        program.num_parameters(),
        memory,
        Work(model_flops, executed_flops, traffic, received, between),
        tuple(collectives),
        unknown_loops,
        seconds,
        compiled is not None,
        program.choice,
        len(set(slices)),
    )


def _requested_memory(message: str) -> int | None:
    """Returns the size of temporaries that the compiler could not allocate; None: another error."""
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    match = re.search(r"temporaries \(([\d.]+)([KMGT])\)", message) or re.search(
        r"[Uu]sed ([\d.]+)([KMGT])", message
    )
    return int(float(match[1]) * 1024 ** ("KMGT".index(match[2]) + 1)) if match else 0


def _memory(state: dict[str, int], compiled: Any, platform: str) -> Memory:
    stats: Any = compiled.memory_analysis()
    # Arrays are padded to whole tiles on the device.
    padding = max(stats.argument_size_in_bytes - sum(state.values()), 0)
    if padding:
        state = {**state, "padding": padding}
    program = stats.generated_code_size_in_bytes
    program += max(stats.output_size_in_bytes - stats.alias_size_in_bytes, 0)
    temporaries = stats.temp_size_in_bytes
    # On TPUs this sum is too large, because it includes arrays that share memory and arrays in the
    # chip's vector memory: 5.1 GiB for ViT-L/16, but 4.29 in XLA's own report. The peak agrees with
    # the report to 0.02 GiB.
    peak = getattr(stats, "peak_memory_in_bytes", None) or 0
    if peak and platform == "tpu":
        temporaries = max(peak - sum(state.values()), 0)
    # On GPUs temporaries are one allocation, in which arrays share memory. Only the peak includes
    # constants, such as a position table that XLA has repeated for every image. On CPUs the peak
    # does not include temporaries.
    if platform == "gpu":
        program += max(peak - sum(state.values()) - temporaries - program, 0)
    return Memory(state, temporaries, program)


def _state_bytes(program: Program) -> dict[str, int]:
    """Returns the size of each part of the state, and of the batch, on one device."""
    state = program.abstract
    parts = {
        "parameters": bytes_on_device(state.params),
        "optimizer": bytes_on_device((state.opt_state, state.step)),
        "average": bytes_on_device((state.ema, state.extra)),
        "frozen": bytes_on_device(program.abstract_frozen),
        "batch": bytes_on_device(program.batch_shapes()),
    }
    return {name: size for name, size in parts.items() if size}


def _flops(program: Program, devices: int) -> tuple[float, float | None]:
    """Returns the model FLOPs and the traced FLOPs of a step on each device.

    The trace does not contain the matrix products of cuDNN's attention, see `attention_flops`. If
    it contains a loop with an unknown number of iterations, its FLOPs are None.
    """
    model = program.flops_per_image * program.config.data.global_batch_size
    traced = jax.make_jaxpr(program.step_fn)(
        program.abstract, program.batch_shapes(), *program.abstract_frozen
    )
    try:
        return model / devices, 2 * count_macs(traced.jaxpr) / devices
    except ValueError:  # A loop with an unknown number of iterations.
        return model / devices, None
