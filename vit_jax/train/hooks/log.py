"""Reads the metrics of finished steps, checks that they are finite, and writes those due."""

import collections
import contextlib
import math
import time
from collections.abc import Iterator

import jax
import numpy as np

from vit_jax.data.loader import Feed
from vit_jax.train.context import RunContext, StepOutput
from vit_jax.train.divergence import divergence_error
from vit_jax.train.telemetry import DeviceClock, Telemetry

# Steps that may be under way on the devices before the host waits for the oldest.
_STEPS_IN_FLIGHT = 2
# A step is good if these are finite. The update norm covers the new parameters.
_FINITE = ("train/loss", "train/gradient_norm", "train/update_norm")


class LogHook:
    """Logs training steps and measures their speed.

    Args:
        context: the run.
        clock: measures when the devices are idle.
    """

    def __init__(self, context: RunContext, clock: DeviceClock):
        self._context, self._clock = context, clock
        batch_size = context.config.data.global_batch_size
        self._telemetry = Telemetry(batch_size, context.program.flops_per_image)
        self._pending: collections.deque[tuple[int, dict[str, jax.Array]]] = collections.deque()
        self._skipped = 0
        self.compile_time_s = 0.0

    def restart_clock(self) -> None:
        """Starts to measure speed now."""
        self._telemetry.read()

    def next_batch(self, feed: Feed) -> dict[str, np.ndarray]:
        """Returns the next batch; measures host time spent waiting while the devices were idle."""
        begin = time.perf_counter()
        batch = next(feed)
        idle_since = self._clock.idle_since()
        if idle_since is not None:
            self._telemetry.waited(time.perf_counter() - max(begin, idle_since))
        return batch

    def after_step(self, context: RunContext, output: StepOutput) -> None:
        """Notes a step and reads the metrics of earlier ones."""
        self._clock.stepped(output.metrics["train/loss"])
        self._skipped += int(output.host_batch["skipped"].sum())
        context.examples.write(output.step, output.host_batch["index"])
        self._pending.append((output.step, output.metrics))
        self._read(keep=_STEPS_IN_FLIGHT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Reads all steps first. Time inside the block does not count as training time."""
        self._read(keep=0)
        begin = time.perf_counter()
        yield
        self._telemetry.pause(time.perf_counter() - begin)

    def _read(self, keep: int) -> None:
        """Waits until at most `keep` steps are unread; checks each that it reads."""
        while len(self._pending) > keep:
            step, arrays = self._pending.popleft()
            values = {name: value.item() for name, value in jax.device_get(arrays).items()}
            self._check_finite(step, values)
            self._telemetry.stepped()
            self._context.progress.stepped(step)
            last = step == self._context.program.total_steps
            if last or step % self._context.config.logging.interval_steps == 0:
                self._write(step, values)

    def _write(self, step: int, values: dict[str, float]) -> None:
        values |= self._telemetry.read()
        values["train/compile_time_s"] = self.compile_time_s
        if self._context.config.data.on_bad_example == "skip":
            values["train/skipped_examples"] = self._skipped
        if self._context.start.skipped_batches:
            values["train/batches_left_out"] = self._context.start.skipped_batches
        self._context.metrics.write(step, values)
        self._context.progress.logged(step, values)

    def _check_finite(self, step: int, values: dict[str, float]) -> None:
        for name in _FINITE:
            if not math.isfinite(values[name]):
                context = self._context
                context.checkpoints.wait()
                raise divergence_error(
                    f"{name} is {values[name]} at step {step}", step, context.checkpoints.steps(),
                    context.start.skipped_batches + context.config.divergence.skip_steps,
                )  # fmt: skip
