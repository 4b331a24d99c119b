"""Measures the speed of a full training step on synthetic images."""

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax

from vit_jax.config.run import Config
from vit_jax.errors import UserError
from vit_jax.parallel.mesh import make_mesh, to_devices
from vit_jax.train.program import build_program
from vit_jax.train.telemetry import peak_flops

NUM_CLASSES = 1000


@dataclasses.dataclass
class Measurement:
    """The timings of one implementation of a model's training step.

    Attributes:
        name: e.g. "vit_jax" or "timm, torch.compile, SDPA".
        model: e.g. "ViT-B/16".
        batch_size: images per step.
        flops_per_image: model FLOPs of training on one image.
        compile_s: compilation time in seconds; in PyTorch, the time of the first two steps.
        peak_memory_mb: size of arguments and temporaries according to XLA, or measured peak in
            PyTorch.
        step_s: seconds per step, one value per round.
    """

    name: str
    model: str
    batch_size: int
    flops_per_image: int
    compile_s: float
    peak_memory_mb: float | None
    step_s: list[float] = dataclasses.field(default_factory=list)

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
        }


class JaxStep:
    """The compiled training step of this package.

    Args:
        config: config of the run. Its data are not opened.

    Attributes:
        choice: how the step is executed.
    """

    def __init__(self, config: Config):
        mesh = make_mesh(config.mesh)
        batch_size = config.data.global_batch_size
        program = build_program(config, mesh, num_classes=NUM_CLASSES, num_examples=batch_size)
        self.choice = program.choice
        begin = time.perf_counter()
        self._step = program.compile()
        seconds = time.perf_counter() - begin
        self._batch = to_devices(program.example_batch(), mesh)
        self._frozen = program.load_frozen()
        self._state = program.init()
        memory: Any = self._step.memory_analysis()
        peak_mb = (memory.argument_size_in_bytes + memory.temp_size_in_bytes) / 2**20
        self.measurement = Measurement(
            "vit_jax", config.model.name, batch_size, program.flops_per_image, seconds, peak_mb
        )
        self.time(1)

    def time(self, steps: int) -> float:
        """Runs steps, waits for the device, and returns the seconds per step."""
        begin = time.perf_counter()
        metrics = {}
        for _ in range(steps):
            self._state, metrics = self._step(self._state, self._batch, *self._frozen)
        jax.block_until_ready((self._state, metrics))
        return (time.perf_counter() - begin) / steps

    def close(self) -> None:
        """Frees the memory of the state."""
        self._state, self._batch, self._frozen = None, None, ()


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
