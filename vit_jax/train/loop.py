"""The training loop: feed, step, watch, evaluate, save, stop on request."""

import collections
import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vit_jax.config.durations import duration_in_steps, is_due
from vit_jax.config.run import Config
from vit_jax.data.arrays import labelled_image
from vit_jax.data.balance import build_balance
from vit_jax.data.cache import cached
from vit_jax.data.loader import Feed, batch_spec, on_device, train_batches
from vit_jax.data.order import BalancedOrder
from vit_jax.data.sources import (
    Source,
    TrainingData,
    class_count,
    open_training_data,
    with_subset_hash,
)
from vit_jax.data.transforms import make_train_transform
from vit_jax.errors import DivergenceError
from vit_jax.parallel.hosts import (
    StopAgreement,
    barrier,
    check_same,
    first_does,
    is_first_host,
)
from vit_jax.parallel.mesh import host_rows, make_mesh, to_devices
from vit_jax.run.checkpoints import CheckpointFolder
from vit_jax.run.folder import RunFolder
from vit_jax.run.metrics import ExampleLog, MetricsWriter
from vit_jax.train.attention_watch import make_attention_watch
from vit_jax.train.divergence import diverged, examine_step, explained, write_report
from vit_jax.train.measuring import Measuring, open_evaluators
from vit_jax.train.program import Program, build_program
from vit_jax.train.progress import ProgressView
from vit_jax.train.signals import Stopped, StopSignals
from vit_jax.train.start import Start, data_position, other_checkpoints, restore_or_init
from vit_jax.train.state import TrainState
from vit_jax.train.telemetry import DeviceClock, Telemetry

log = logging.getLogger(__name__)

# Steps that may be under way on the device before the host waits for the oldest.
_IN_FLIGHT = 2
# Steps between saves where the config does not say.
_SAVE_EVERY = 1000
# What must be finite for a step to be good: the second norm also tells of the new parameters.
_FINITE = ("train/loss", "train/gradient_norm", "train/update_norm")


def train(config: Config, workdir: Path, stop: StopSignals) -> dict[str, Any]:
    """Trains, or goes on training, in a run folder.

    Args:
        config: the run.
        workdir: run folder; a run begun there with the same config is resumed.
        stop: says when to stop.

    Returns:
        The content of result.json.

    Raises:
        UserError: anything wrong with config, data, model, folder or checkpoint; in particular
            DivergenceError where loss, gradient or update is no longer finite, after as many
            rewinds as the config allows.
        Stopped: a signal came; the state is saved.
    """
    rewinds, left_out = 0, None
    while True:
        last = rewinds == config.divergence.rewinds
        try:
            return _train(config, workdir, stop, left_out, explain=last)
        except DivergenceError as error:
            if last:
                raise
            rewinds, left_out = rewinds + 1, error.leave_out
            log.warning(
                "%s: back to the last checkpoint, %d batches left out (rewind %d of %d)",
                error.got, left_out, rewinds, config.divergence.rewinds,
            )  # fmt: skip


def _train(
    config: Config, workdir: Path, stop: StopSignals, left_out: int | None, *, explain: bool
) -> dict[str, Any]:
    """Trains once.

    Args:
        config: the run.
        workdir: run folder.
        stop: says when to stop.
        left_out: batches to leave out; None: as many as the checkpoint says.
        explain: find the tensor that is at fault if the run diverges.
    """
    mesh = make_mesh(config.mesh)
    training = open_training_data(config.data)
    source, config = training.source, with_subset_hash(config, training)
    num_classes = class_count(source, config.data.num_classes)
    balance = build_balance(config, source, num_classes)
    program = build_program(
        config, mesh,
        num_classes=num_classes, num_examples=len(source), class_weights=balance.weights,
    )  # fmt: skip
    report = workdir.expanduser() / "report"
    evaluators = open_evaluators(
        config, mesh, num_classes=num_classes, num_examples=len(source), report=report
    )
    with RunFolder(workdir, config) as folder:
        finished = first_does("look for a result", lambda: folder.result)
        if finished is not None:
            log.info("run in %s is finished already; nothing to do", folder.path)
            return finished
        with CheckpointFolder(folder.path / "checkpoints", config.checkpoint) as checkpoints:
            check_same("checkpoints", checkpoints.steps(), other_checkpoints)
            start = restore_or_init(program, checkpoints, source)
            if left_out is not None:
                start = dataclasses.replace(start, left_out=left_out)
            _write_facts(folder, training, start)
            with (
                MetricsWriter(
                    folder.path,
                    config.logging,
                    start_step=start.step,
                    run_config=config.to_mapping(),
                    enabled=folder.is_writer,
                ) as writer,
                ExampleLog(
                    folder.path,
                    jax.process_index(),
                    host_rows(mesh, config.data.global_batch_size),
                    start_step=start.step,
                    kind=config.logging.example_ids,
                ) as examples,
                ProgressView(program.total_steps, start.step, enabled=folder.is_writer) as view,
                DeviceClock() as clock,
            ):
                agreed = StopAgreement(lambda: stop.requested)
                measuring = Measuring(
                    evaluators, program, checkpoints, writer, view, agreed.reached, start
                )
                run = _Run(
                    program, source, balance.order, measuring, checkpoints, writer, examples, view,
                    clock, agreed,
                )  # fmt: skip
                result = run.run(start, report if explain else None)
        folder.write_json("result.json", result)
    return result


def _write_facts(folder: RunFolder, training: TrainingData, start: Start) -> None:
    """Writes what is known before the first step: config, classes, subset, other weights."""
    folder.write_config()
    folder.write_json("classes.json", {"names": training.source.class_names})
    if start.report is not None:
        folder.write_json("init.json", start.report.to_mapping())
        if folder.is_writer:
            start.report.print()
    if training.manifest is not None:
        folder.write_json("subset.json", training.manifest)


class _Run:
    """The moving parts of one call of `train`."""

    def __init__(
        self,
        program: Program,
        source: Source,
        order: BalancedOrder | None,
        measuring: Measuring,
        checkpoints: CheckpointFolder,
        writer: MetricsWriter,
        examples: ExampleLog,
        view: ProgressView,
        clock: DeviceClock,
        stop: StopAgreement,
    ):
        self.program, self.config = program, program.config
        self.source, self.order = source, order
        self.measuring, self.checkpoints = measuring, checkpoints
        self.writer, self.examples = writer, examples
        self.view, self.clock, self.stop = view, clock, stop
        self.telemetry = Telemetry(self.config.data.global_batch_size, program.flops_per_image)
        self.pending: collections.deque[tuple[int, dict[str, jax.Array]]] = collections.deque()
        self.saved = -1
        self.left_out = self.skipped = 0
        watching = self.config.logging.attention_interval_steps is not None
        self.watch_fn = make_attention_watch(program) if watching else None
        self.compile_time_s = 0.0
        self.begin = time.perf_counter()
        sizes = {"batch_size": self.config.data.global_batch_size, "num_examples": len(source)}
        interval = duration_in_steps(self.config.checkpoint, "interval", **sizes)
        self.save_every = interval or _SAVE_EVERY

    def run(self, start: Start, report: Path | None) -> dict[str, Any]:
        """Runs the steps from `start` to the end and returns the final figures.

        Args:
            start: where to start.
            report: folder for a report of a divergence; None: none is made.
        """
        self.begin = time.perf_counter() - start.elapsed_s
        self.left_out = start.left_out
        step, state = start.step, start.state
        if step:
            self.saved = step
            with self._aside():
                self.measuring.pick_up(step, state.eval_params)
            # A further step would leave behind what was not measured of this one.
            if self.stop.reached() and not self.measuring.is_last(step):
                raise Stopped(step)
        if not self.measuring.is_last(step):
            step_fn = self._compile()
            try:
                step, state = self._run_steps(step_fn, state, step)
            except DivergenceError as error:
                raise self._explained(error, step_fn, report) from None
        figures = self.measuring.of_result(step, state)
        self.checkpoints.wait()
        if figures is None:
            raise Stopped(step)
        seen = step * self.config.data.global_batch_size
        return {
            "step": step,
            "parameters": self.program.num_parameters(),
            "train_examples": len(self.source),
            "examples_seen": seen,
            "train_exaflops": seen * self.program.flops_per_image / 1e18,
            "wall_time_s": time.perf_counter() - self.begin,
            **figures,
        }

    def _run_steps(self, step_fn: Any, state: TrainState, start: int) -> tuple[int, TrainState]:
        """Runs the steps after `start` to the last; returns its number and the state."""
        step = start
        with self._feed(start) as feed:
            self.telemetry.read()
            while not self.measuring.is_last(step):
                step += 1
                batch = to_devices(self._next(feed, step), self.program.mesh)
                state, metrics = step_fn(state, batch)
                if self.watch_fn and is_due(step, self.config.logging.attention_interval_steps):
                    begin = time.perf_counter()
                    self.writer.write(step, self.watch_fn(state.params, batch))
                    self.telemetry.pause(time.perf_counter() - begin)
                self.clock.stepped(metrics["train/loss"])
                self.pending.append((step, metrics))
                self._drain(_IN_FLIGHT)
                self._after(step, state)
        return step, state

    def _after(self, step: int, state: TrainState) -> None:
        """Measures and saves when due; stops when asked, or when a save has failed."""
        self.checkpoints.check()
        measuring, stopping = self.measuring, self.stop.reached()
        if measuring.due(step) and not stopping:
            with self._aside():
                measuring.at_interval(step, state.eval_params)
            stopping = self.stop.reached()
        last, is_best = measuring.is_last(step), measuring.early.best_step == step
        if last or stopping or is_best or is_due(step, self.save_every):
            self._save(step, state, evaluate=not stopping)
        if stopping and not (last and measuring.is_measured(step)):
            self.checkpoints.wait()
            raise Stopped(step)

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """What is done inside is no training: steps are read before it, its time counts apart."""
        self._drain(0)
        begin = time.perf_counter()
        yield
        self.telemetry.pause(time.perf_counter() - begin)

    def _compile(self) -> Any:
        """Compiles the step and says how long it took."""
        begin = time.perf_counter()
        compiled = self.program.compile()
        self.compile_time_s = time.perf_counter() - begin
        # Gloo gives up on processes that come to the first collective 30 s apart.
        barrier("compile the training step")
        self.view.say(
            f"{self.config.model.name}: {self.program.num_parameters():,} parameters, "
            f"{self.program.flops_per_image / 1e9:.2f} GFLOP an image to train, "
            f"{jax.device_count()} {jax.devices()[0].device_kind}, "
            f"compiled in {self.compile_time_s:.1f} s"
        )
        return compiled

    def _feed(self, start: int) -> Feed:
        data = self.config.data
        rows = host_rows(self.program.mesh, data.global_batch_size)
        spec = batch_spec(data, data.global_batch_size, rows)
        transform = make_train_transform(data.image_size, data.augment)
        preprocessing = labelled_image(transform, data.image_size, self.program.num_classes)
        return train_batches(
            cached(self.source, data.cache_mb), preprocessing, spec,
            seed=self.config.seed, start_step=start + self.left_out,
            end_step=self.program.total_steps + self.left_out, order=self.order,
        )  # fmt: skip

    def _next(self, feed: Feed, step: int) -> dict[str, np.ndarray]:
        """Returns the next batch; what of the time the device had nothing to do is waiting."""
        begin = time.perf_counter()
        batch = next(feed)
        idle_since = self.clock.idle_since()
        if idle_since is not None:
            self.telemetry.waited(time.perf_counter() - max(begin, idle_since))
        self.skipped += int(batch["skipped"].sum())
        self.examples.write(step, batch["index"])
        return on_device(batch)

    def _drain(self, keep: int) -> None:
        """Waits until at most `keep` steps are unread, checks each read one, logs those due."""
        while len(self.pending) > keep:
            step, arrays = self.pending.popleft()
            values = {name: value.item() for name, value in jax.device_get(arrays).items()}
            self._check_finite(step, values)
            self.telemetry.stepped()
            self.view.stepped(step)
            if step % self.config.logging.interval_steps == 0 or step == self.program.total_steps:
                values |= self.telemetry.read()
                values["train/compile_time_s"] = self.compile_time_s
                if self.config.data.on_bad_example == "skip":
                    values["train/skipped_examples"] = self.skipped
                if self.left_out:
                    values["train/batches_left_out"] = self.left_out
                self.writer.write(step, values)
                self.view.logged(step, values)

    def _check_finite(self, step: int, values: dict[str, float]) -> None:
        for name in _FINITE:
            if not math.isfinite(values[name]):
                self.checkpoints.wait()
                raise diverged(
                    f"{name} is {values[name]} at step {step}", step, self.checkpoints.steps(),
                    self.left_out + self.config.divergence.skip_steps,
                )  # fmt: skip

    def _explained(
        self, error: DivergenceError, step_fn: Any, report: Path | None
    ) -> DivergenceError:
        """Runs the steps up to the one that failed again, and says which tensor was at fault."""
        if report is None or not self.config.divergence.report:
            return error
        start = restore_or_init(self.program, self.checkpoints, self.source)
        self.view.say(f"{error.got}: running from step {start.step} again to see why")
        state = start.state
        with self._feed(start.step) as feed:
            for _ in range(start.step + 1, error.step):
                state, _ = step_fn(state, to_devices(on_device(next(feed)), self.program.mesh))
            batch = to_devices(on_device(next(feed)), self.program.mesh)
        facts = examine_step(self.program, state, batch)
        path = report / f"divergence-{error.step}.txt"
        if is_first_host():
            write_report(path, error.step, facts)
        return explained(error, facts, path)

    def _save(self, step: int, state: TrainState, *, evaluate: bool) -> None:
        """Starts saving a state whose every step so far was finite.

        Args:
            step: number of updates made.
            state: the training state.
            evaluate: measure `best_metric` first, where one is configured.
        """
        if self.saved == step:
            return
        measuring = self.measuring
        with self._aside():
            if evaluate and self.config.checkpoint.best_metric is not None:
                measuring.evaluate(step, state.eval_params)
            begin = time.perf_counter()
            extra = {"elapsed_s": begin - self.begin, "left_out": self.left_out}
            self.checkpoints.pinned = measuring.early.best_step
            self.checkpoints.save(
                step, state,
                data=data_position(self.config, self.source, step)
                | extra | measuring.early.to_json(),
                config=self.config.to_mapping(),
                metrics=measuring.evaluated[1] if measuring.evaluated[0] == step else None,
            )  # fmt: skip
            self.saved = step
            self.writer.write(step, {"checkpoint/blocked_s": time.perf_counter() - begin})
