"""Measures the speed of a full training step on synthetic images."""

import dataclasses
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from vit_jax.bench.attention_kernels import CANDIDATES, IMPLEMENTATIONS, kernel_problem
from vit_jax.config.run import Config
from vit_jax.data.arrays import cut_to
from vit_jax.errors import UserError
from vit_jax.models.attention import AttentionChoice, with_attention
from vit_jax.parallel.mesh import make_mesh, to_devices
from vit_jax.run.compile_cache import watch_compile_cache
from vit_jax.train.program import Program, build_program
from vit_jax.train.state import TrainState
from vit_jax.train.telemetry import peak_flops
from vit_jax.train.trace import Trace

NUM_CLASSES = 1000


@dataclasses.dataclass
class Measurement:
    """The timings of one implementation of a model's training step.

    Attributes:
        name: e.g. "vit_jax" or "timm, torch.compile, SDPA".
        model: e.g. "ViT-B/16".
        batch_size: images per step.
        flops_per_image: model FLOPs of training on one image.
        compile_s: seconds to compile, or to load from the compilation cache; in PyTorch, the time
            of the first two steps.
        peak_memory_mb: size of arguments and temporaries according to XLA, or measured peak in
            PyTorch.
        step_s: seconds per step, one value per round.
        attention: attention kernel; None: PyTorch, or a model without self-attention.
    """

    name: str
    model: str
    batch_size: int
    flops_per_image: int
    compile_s: float
    peak_memory_mb: float | None
    step_s: list[float] = dataclasses.field(default_factory=list)
    attention: str | None = None

    @property
    def images_per_second(self) -> float:
        """Images per second at the median step time."""
        return self.batch_size / statistics.median(self.step_s)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs as a fraction of the devices' bfloat16 peak; None: the peak is unknown."""
        peak = peak_flops(jax.devices()[0].device_kind)
        if peak is None:
            return None
        return self.images_per_second * self.flops_per_image / peak / jax.device_count()

    def row(self) -> dict[str, Any]:
        """Returns the figures for a table or JSON."""
        return {
            "name": self.name,
            "model": self.model,
            "batch_size": self.batch_size,
            "images_per_second": self.images_per_second,
            "step_ms": statistics.median(self.step_s) * 1e3,
            "step_ms_min": min(self.step_s) * 1e3,
            "step_ms_max": max(self.step_s) * 1e3,
            "mfu": self.mfu,
            "tflops_per_second": self.images_per_second * self.flops_per_image / 1e12,
            "compile_s": self.compile_s,
            "peak_memory_mb": self.peak_memory_mb,
            "attention": self.attention,
        }


class _Arrays:
    """State and batch on the devices. Several steps can share them, to need memory only once."""

    def __init__(self, program: Program):
        self._program = program
        self.batch = to_devices(program.example_batch(), program.mesh)
        self.frozen = program.load_frozen()
        self.state: TrainState | None = program.init()

    def take_state(self) -> TrainState:
        """Returns the state, which the step donates. After a failed step, it is made anew."""
        state, self.state = self.state, None
        return self._program.init() if state is None else state

    def clear(self) -> None:
        """Frees the memory."""
        self.state, self.batch, self.frozen = None, {}, ()


class JaxStep:
    """The compiled training step of this package.

    Args:
        config: config of the run. Its data are not opened.
        kernel: one of `CANDIDATES`, which computes self-attention; None: as configured.
        shares: a step of the same model and batch size, whose arrays this one uses too.
        label: name in the table; None: the library, and the kernel if it shares arrays.

    Attributes:
        choice: how the step is executed.
        attention: kernel of self-attention; None: the model has none.
        compiled: the compiled step.
        cache_use: whether it comes from the compilation cache.
    """

    def __init__(
        self,
        config: Config,
        *,
        kernel: str | None = None,
        shares: "JaxStep | None" = None,
        label: str | None = None,
    ):
        mesh = make_mesh(config.mesh)
        batch_size = config.data.global_batch_size
        program = build_program(config, mesh, num_classes=NUM_CLASSES, num_examples=batch_size)
        self.choice = program.choice
        self.attention = _attention_choice(program)
        name = None if self.attention is None else self.attention.implementation
        if kernel is not None:
            name = kernel
            step_fn = with_attention(program.step_fn, CANDIDATES[kernel])
            program = dataclasses.replace(program, step_fn=step_fn)
        begin = time.perf_counter()
        with watch_compile_cache() as self.cache_use:
            self.compiled = program.compile()
        seconds = time.perf_counter() - begin
        self._is_variant = shares is not None and label is not None
        self._preprocessing = program.task.train_preprocessing
        self._arrays = _Arrays(program) if shares is None else shares._arrays
        memory: Any = self.compiled.memory_analysis()
        peak_mb = None  # A step from the compilation cache may not know its memory.
        if memory is not None:
            peak_mb = (memory.argument_size_in_bytes + memory.temp_size_in_bytes) / 2**20
        self.measurement = Measurement(
            label or ("vit_jax" if shares is None else f"vit_jax, {name}"),
            config.model.name,
            batch_size,
            program.flops_per_image,
            seconds,
            peak_mb,
            attention=name,
        )
        self.time(1)

    def time(self, steps: int) -> float:
        """Runs steps, waits for the device, and returns the seconds per step."""
        state, batch = self._arrays.take_state(), self._arrays.batch
        if self._is_variant:
            batch = cut_to(batch, self._preprocessing)
        begin = time.perf_counter()
        metrics = {}
        for _ in range(steps):
            state, metrics = self.compiled(state, batch, *self._arrays.frozen)
        jax.block_until_ready((state, metrics))
        seconds = (time.perf_counter() - begin) / steps
        self._arrays.state = state
        return seconds

    def profile(self, folder: Path, steps: int = 2) -> None:
        """Writes a profiler trace of some steps to a folder."""
        trace = Trace(re.sub(r"[^\w.+]", "-", self.measurement.model))
        for step in range(steps):
            trace.begin_step(step)
            self.time(1)
        trace.finish(folder)

    def close(self) -> None:
        """Frees the memory of the state."""
        self._arrays.clear()


def _attention_choice(program: Program) -> AttentionChoice | None:
    model = nnx.merge(program.graphdef, program.abstract.params)
    return getattr(model, "attention", None)


class FailedStep:
    """A step that cannot run on this device, with the reason, for a row of the table."""

    def __init__(self, name: str, attention: str, problem: str):
        self.name, self.attention, self.problem = name, attention, problem

    def row(self, model: str, batch_size: int) -> dict[str, Any]:
        """Returns the keys of `Measurement.row`, without figures, and the key "problem"."""
        empty = Measurement(self.name, model, batch_size, 0, 0.0, None, [1.0], self.attention)
        kept = ("name", "model", "batch_size", "attention")
        row = {key: value if key in kept else None for key, value in empty.row().items()}
        return {**row, "problem": self.problem}


def attention_steps(config: Config, first: JaxStep) -> tuple[list[JaxStep], list[FailedStep]]:
    """Builds the step of a run with each attention kernel but that of `first`.

    All of them use the arrays of `first`, and its loop, remat policy and microbatches.

    Args:
        config: config of the run, with a ViT.
        first: its step.

    Returns:
        The steps that run on this device, and those that do not.
    """
    assert first.attention is not None, "the command checks that the model is a ViT"
    working, failed = [], []
    for name in (*IMPLEMENTATIONS, *CANDIDATES):
        if name == first.attention.implementation:
            continue
        problem = kernel_problem(name, jax.default_backend())
        if problem is None:
            implementation = "xla" if name in CANDIDATES else name
            model = config.model.replace(
                attention_implementation=implementation,
                scan=first.choice.loop.scan,
                remat=first.choice.loop.remat,
            )
            own = config.replace(model=model, accumulation_steps=first.choice.microbatches)
            kernel = name if name in CANDIDATES else None
            try:
                working.append(JaxStep(own, kernel=kernel, shares=first))
                continue
            except Exception as error:  # Compilers raise various types; the others can be timed.
                problem = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        failed.append(FailedStep(f"vit_jax, {name}", name, problem))
    return working, failed


class TorchStep:
    """The same step in PyTorch, in a separate process that is idle while other steps are timed.

    Args:
        library: "transformers" or "timm".
        config: its model, batch size, image size and dtype are used.
        flops_per_image: model FLOPs of training on one image.
        compiled: use torch.compile.

    Raises:
        TorchMissingError: torch or the library is not installed, or cannot build this model.
    """

    def __init__(self, library: str, config: Config, flops_per_image: int, *, compiled: bool):
        request = {
            "library": library,
            "model": config.model.name,
            "batch_size": config.data.global_batch_size,
            "image_size": config.data.image_size,
            "dtype": config.model.dtype,
            "num_classes": NUM_CLASSES,
            "compiled": compiled,
        }
        # A file, because an unread pipe would fill up and block the process.
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vit_jax.bench.torch_step", json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        ready = self._read_answer()
        name = f"{library}{', torch.compile' if compiled else ''}, SDPA"
        self.measurement = Measurement(
            name,
            config.model.name,
            request["batch_size"],
            flops_per_image,
            ready["compile_s"],
            None,
        )

    def time(self, steps: int) -> float:
        """Runs steps and returns the seconds per step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        answer = self._read_answer()
        self.measurement.peak_memory_mb = answer["peak_memory_mb"]
        return answer["step_s"]

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def _read_answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                if "error" in answer:
                    self.close()
                    raise TorchMissingError(answer["error"])
                return answer
        self._process.wait()
        self._stderr.seek(0)
        last = self._stderr.read().strip().splitlines()[-1:] or ["no message"]
        self.close()
        raise TorchMissingError(last[0])


class TorchMissingError(Exception):
    """The PyTorch step cannot run on this machine."""


def measure_interleaved(
    steps: list[Any], *, rounds: int, steps_per_round: int
) -> list[Measurement]:
    """Interleaves the timing of several steps, so that changes of machine speed affect all."""
    for _ in range(rounds):
        for step in steps:
            step.measurement.step_s.append(step.time(steps_per_round))
    for step in steps:
        step.close()
    return [step.measurement for step in steps]


def fastest_batch_size(make: Any, *, start: int, limit: int) -> int:
    """Doubles the batch size until memory is full. Returns the size with the most images/s.

    Args:
        make: batch size -> JaxStep.
        start: first size to try.
        limit: last size to try.

    Raises:
        UserError: the first size does not fit.
    """
    best, speed, size = 0, 0.0, start
    while size <= limit:
        try:
            step = make(size)
            rate = size / min(step.time(3) for _ in range(2))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            break
        if rate > speed:
            best, speed = size, rate
        del step
        size *= 2
    if not best:
        raise UserError(f"batch size {start} does not fit", "a smaller one", "lower --batch_size")
    return best
