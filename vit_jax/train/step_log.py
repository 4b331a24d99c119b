"""Reads the metrics of finished steps, checks that they are finite, and logs them."""

import collections
import contextlib
import logging
import math
import time
from collections.abc import Collection, Iterator
from typing import Any

import jax

from vit_jax.errors import DivergenceError
from vit_jax.parallel.processes import gather
from vit_jax.run.compile_cache import watch_compile_cache
from vit_jax.train.session import Session
from vit_jax.train.step_choice import check_step
from vit_jax.train.telemetry import DeviceClock, Telemetry

log = logging.getLogger(__name__)

# Number of dispatched steps at which the host waits for the oldest to finish.
_STEPS_IN_FLIGHT = 2
# A run has diverged if one of these is not finite. The update norm covers the new parameters.
_FINITE = ("train/loss", "train/gradient_norm", "train/update_norm")
# Logged as they are at a step; all others, the loss and the task's metrics, as means since the last
# line of the log.
_OF_ONE_STEP = (
    "train/learning_rate", "train/gradient_norm", "train/parameter_norm", "train/update_norm",
)  # fmt: skip


class StepLog:
    """Logs training steps and measures their speed."""

    def __init__(self, session: Session):
        self._session, self._clock = session, DeviceClock()
        session.on_exit(self._clock.close)
        batch_size = session.config.data.global_batch_size
        self._telemetry = Telemetry(batch_size, session.program.flops_per_image)
        self._pending: collections.deque[tuple[int, dict[str, jax.Array]]] = collections.deque()
        self._skipped: Collection[int] = session.start.skipped
        self._compile_time_s = 0.0
        self._sums: collections.Counter[str] = collections.Counter(session.start.sums)

    def compile_steps(self) -> None:
        """Compiles a step for each size, and prints the sizes of the run and how long this took."""
        for name, (share, program) in self._session.program.trained.items():
            begin = time.perf_counter()
            stage = self._session.progress.stage("compiling the training step", line=True)
            with stage, watch_compile_cache() as cache:
                step_fn = program.compiled
            check_step(step_fn, program.mesh)
            seconds = time.perf_counter() - begin
            self._compile_time_s += seconds
            often = f", {share:.0%} of the steps ({name})" if name else ""
            self._session.progress.print_line(
                f"{program.config.model.label}: {program.num_parameters():,} parameters, "
                f"{program.task.flops_per_image / 1e9:.2f} GFLOPs per training image{often}, "
                f"{jax.device_count()} {jax.devices()[0].device_kind}, "
                f"compiled in {seconds:.1f} s{cache}"
            )
            self._session.progress.print_line(f"step: {program.choice}")
        if self._session.config.data.augment.operations("mix"):
            self._session.progress.print_line(
                "training images are mixed (data.augment.mix), so the training loss stays above"
                " that of evaluation"
            )

    def figures(self) -> dict[str, int]:
        """Returns the number of bad examples for result.json, if there are any."""
        skipped = self._skipped_by_all()
        return {"skipped_examples": len(skipped)} if skipped else {}

    def to_json(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps of the log.

        These are the sums of metrics since the last line, with "steps", the number of steps, and
        the bad examples so far.
        """
        return {"sums": dict(self._sums), "skipped": self._skipped_by_all()}

    def _skipped_by_all(self) -> list[int]:
        """Returns the bad examples of all hosts, which must all call this."""
        if self._session.config.data.on_bad_example == "error":
            return []
        found = gather("skipped examples", sorted(self._skipped))
        return sorted({index for indices in found for index in indices})

    def restart_clock(self) -> None:
        """Starts a new measurement of speed."""
        self._telemetry.read()
        self._session.progress.begin_steps()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Measures how long the devices are idle while the host waits for the next batch."""
        begin = time.perf_counter()
        yield
        end, idle_since = time.perf_counter(), self._clock.idle_since()
        if idle_since is not None:
            self._telemetry.add_data_wait(end - max(begin, idle_since))
        if idle_since is not None or not self._clock.is_started:
            self._session.account.move(end - max(begin, idle_since or begin), "data")

    def add(self, step: int, metrics: dict[str, jax.Array], skipped: Collection[int]) -> None:
        """Queues the metrics of a step that was dispatched, and reads those of earlier steps.

        Args:
            step: number of updates made.
            metrics: f32 scalars, which may not be computed yet.
            skipped: this host's bad examples so far.
        """
        self._clock.watch_step(metrics["train/loss"])
        self._skipped = skipped
        self._pending.append((step, metrics))
        # The first step is shown at once: the next ones may take long.
        is_first = step == self._session.start.step + 1
        self._read(keep=0 if is_first else _STEPS_IN_FLIGHT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Reads all queued metrics first. Time inside the block is not counted as training time."""
        self._read(keep=0)
        begin = time.perf_counter()
        yield
        self._telemetry.exclude(time.perf_counter() - begin)

    def _read(self, keep: int) -> None:
        """Reads and checks queued metrics until at most `keep` steps are left."""
        while len(self._pending) > keep:
            step, arrays = self._pending.popleft()
            values = {name: value.item() for name, value in jax.device_get(arrays).items()}
            self._check_finite(step, values)
            self._telemetry.count_step()
            self._session.account.step = step
            self._sums.update(
                {k: v for k, v in values.items() if k not in _OF_ONE_STEP} | {"steps": 1}
            )
            self._session.progress.advance(step, values["train/loss"], self._telemetry.speed)
            interval = self._session.config.logging.interval_steps
            if step % interval == 0 or self._session.is_last(step):
                steps = self._sums.pop("steps")
                self._write(step, values | {name: s / steps for name, s in self._sums.items()})
                self._sums.clear()

    def _write(self, step: int, values: dict[str, float]) -> None:
        values |= self._telemetry.read()
        values |= {f"seconds/{part}": s for part, s in self._session.account.seconds().items()}
        values["train/compile_time_s"] = self._compile_time_s
        if self._session.config.data.on_bad_example == "skip":
            values["train/skipped_examples"] = len(self._skipped)
        self._session.metrics.write(step, values)
        self._session.progress.show_step(step, values)

    def _check_finite(self, step: int, values: dict[str, float]) -> None:
        session = self._session
        for name in _FINITE:
            if math.isfinite(values[name]):
                continue
            session.checkpoints.wait()
            kept = session.checkpoints.steps()
            raise DivergenceError(
                f"{name} is {values[name]} at step {step}",
                "a finite number",
                "lower the learning rate, clip gradients or use float32; the last good checkpoint"
                f" is {f'step {kept[-1]}' if kept else 'none'}",
            )
