"""Measures the speed of a full training step on synthetic images."""

import dataclasses
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from vit_jax.config.file import apply_override_texts
from vit_jax.config.run import Config
from vit_jax.errors import UserError
from vit_jax.models.two_towers import named_options
from vit_jax.parallel.mesh import make_mesh, to_devices
from vit_jax.run.compile_cache import watch_compile_cache
from vit_jax.train.chips import peak_flops
from vit_jax.train.program import build_program
from vit_jax.train.trace import Trace

NUM_CLASSES = 1000


@dataclasses.dataclass
class Measurement:
    """The timings of one implementation of a model's training step."""

    name: str  # e.g. "vit_jax" or "16 px patches"
    model: str
    batch_size: int
    flops_per_image: int  # model FLOPs of training on one image
    compile_s: float  # to compile, or to load from the compilation cache
    peak_memory_mb: float | None  # arguments and temporaries according to XLA; None: not known
    step_s: list[float] = dataclasses.field(default_factory=list)  # per step, a value per round
    attention: str | None = None  # kernel; None: a model without self-attention

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


def synthetic_config(
    model: str, *, batch_size: int, image_size: int, dtype: str, overrides: Sequence[str] = ()
) -> Config:
    """Returns the config of a step on synthetic images: clipping by global norm, AdamW.

    The model is an image model, or a pair of towers, which also gets synthetic texts. Overrides are
    "KEY=VALUE" of any section.
    """
    mapping: dict[str, Any] = {
        "model": {"name": model, "dtype": dtype},
        "data": {
            "name": "synthetic",
            "global_batch_size": batch_size,
            "image_size": image_size,
        },
        "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.1, "clip_global_norm": 1.0},
        "train_steps": 1000,
    }
    pair = named_options(model)
    if pair is not None:
        loss = "sigmoid" if "bias_init" in pair else "softmax"
        mapping["task"] = {"name": "image_text", "loss": loss}
        mapping["data"]["captions"] = {"tokenizer": "synthetic"}
    apply_override_texts(mapping, overrides)
    return Config.from_mapping(mapping)


@dataclasses.dataclass
class _Arrays:
    """The state on the devices. The sizes of a run share it, to need memory only once."""

    state: Any
    frozen: tuple[Any, ...]


class JaxStep:
    """The compiled training step of this package. The data of the config are not opened.

    `shares` is the step of another size of the same run, whose state this one uses too.
    `cache_use` says whether the step comes from the compilation cache.
    """

    def __init__(
        self, config: Config, *, shares: "JaxStep | None" = None, label: str | None = None
    ):
        mesh = make_mesh(config.mesh)
        batch_size = config.data.global_batch_size
        program = build_program(config, mesh, num_classes=NUM_CLASSES, num_examples=batch_size)
        self.choice = program.choice
        begin = time.perf_counter()
        with watch_compile_cache() as self.cache_use:
            self._compiled = program.compiled
        seconds = time.perf_counter() - begin
        if shares is None:
            self._arrays = _Arrays(program.init(), program.load_frozen())
        else:
            self._arrays = shares._arrays
        self._batch = to_devices(program.example_batch(), program.mesh)
        memory: Any = self._compiled.memory_analysis()
        peak_mb = None  # A step from the compilation cache may not know its memory.
        if memory is not None:
            peak_mb = (memory.argument_size_in_bytes + memory.temp_size_in_bytes) / 2**20
        model = program.task.model(program.abstract.params)
        attention = getattr(getattr(model, "encoder", None), "attention_choice", None)
        self.measurement = Measurement(
            label or "vit_jax",
            config.model.name,
            batch_size,
            program.flops_per_image,
            seconds,
            peak_mb,
            attention=attention and attention.implementation,
        )
        self.time(1)

    def time(self, steps: int) -> float:
        """Runs steps, waits for the device, and returns the seconds per step."""
        arrays, batch = self._arrays, self._batch
        begin = time.perf_counter()
        metrics = {}
        for _ in range(steps):
            arrays.state, metrics = self._compiled(arrays.state, batch, *arrays.frozen)
        jax.block_until_ready((arrays.state, metrics))
        return (time.perf_counter() - begin) / steps

    def profile(self, folder: Path) -> None:
        """Writes a profiler trace of two steps to a folder."""
        trace = Trace(re.sub(r"[^\w.+]", "-", self.measurement.model))
        for step in range(2):
            trace.begin_step(step)
            self.time(1)
        trace.finish(folder)

    def close(self) -> None:
        self._arrays, self._batch = _Arrays(None, ()), {}


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
    """Doubles the batch size, from `start` to `limit`, until memory is full; returns the fastest.

    `make` returns the `JaxStep` of a batch size. The fastest has the most images/s.
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
