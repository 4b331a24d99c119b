"""The training loop: feed, step, watch, evaluate, save, stop on request."""

import collections
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vit_jax.checkpoint import CheckpointFolder, latest_params
from vit_jax.config import Config, duration_in_steps
from vit_jax.data.loader import BatchSpec, train_batches
from vit_jax.data.sources import Source, TfdsSource, class_count
from vit_jax.data.transforms import make_train_transform
from vit_jax.errors import DataError, DivergenceError
from vit_jax.evaluation.splits import SplitEvaluator
from vit_jax.metrics import MetricsWriter
from vit_jax.parallel.mesh import host_rows, make_mesh, to_devices
from vit_jax.run_folder import RunFolder
from vit_jax.train.program import Program, build_program
from vit_jax.train.progress import ProgressView
from vit_jax.train.signals import Stopped, StopSignals
from vit_jax.train.state import TrainState
from vit_jax.train.telemetry import Telemetry

log = logging.getLogger(__name__)

# Steps that may be under way on the device before the host waits for the oldest.
_IN_FLIGHT = 2


def train(config: Config, workdir: Path) -> dict[str, Any]:
    """Trains, or goes on training, in a run folder.

    Args:
        config: the run.
        workdir: run folder; a run begun there with the same config is resumed.

    Returns:
        The content of result.json.

    Raises:
        UserError: anything wrong with config, data, model, folder or checkpoint; DivergenceError
            where
            loss or gradient is no longer finite.
        Stopped: SIGTERM or SIGINT came; the state is saved.
    """
    with StopSignals() as stop:
        mesh = make_mesh(config.mesh)
        source = TfdsSource(config.data.name, config.data.train_split, config.data.data_dir)
        num_classes = class_count(source, config.data.num_classes)
        program = build_program(config, mesh, num_classes=num_classes, num_examples=len(source))
        evaluator = SplitEvaluator(config, mesh, num_classes=num_classes)
        with RunFolder(workdir, config) as folder:
            if folder.result is not None:
                log.info("run in %s is finished already; nothing to do", folder.path)
                return folder.result
            with CheckpointFolder(folder.path / "checkpoints", config.checkpoint) as checkpoints:
                state = restore_or_init(program, checkpoints, source)
                folder.write_config()
                start = int(state.step)
                with (
                    MetricsWriter(
                        folder.path,
                        config.logging,
                        start_step=start,
                        run_config=config.to_mapping(),
                        enabled=folder.is_writer,
                    ) as writer,
                    ProgressView(program.total_steps, start, enabled=folder.is_writer) as view,
                ):
                    run = _Run(program, source, evaluator, checkpoints, writer, view, stop)
                    result = run.run(state, start)
            folder.write_json("result.json", result)
        return result


def restore_or_init(program: Program, checkpoints: CheckpointFolder, source: Source) -> TrainState:
    """Returns the state of the latest checkpoint, or a new one (from `init_from` where given)."""
    config, abstract = program.config, program.abstract
    if not checkpoints.steps():
        state = program.init()
        if config.init_from is None:
            return state
        params, _ = latest_params(Path(config.init_from), abstract.params)
        log.info("parameters from %s", config.init_from)
        ema = None if state.ema is None else jax.tree.map(lambda x: x.copy(), params)
        return TrainState(state.step, params, state.opt_state, ema)
    wanted = {"params": abstract.params, "optimizer": abstract.opt_state}
    if abstract.ema is not None:
        wanted["ema"] = abstract.ema
    found = checkpoints.restore(wanted)
    if found.data != (expected := data_position(config, source, found.step)):
        raise DataError(
            f"checkpoint at data position {found.data}", f"{expected}",
            "restore the dataset that the run began with, or choose another --workdir",
        )  # fmt: skip
    log.info("resuming from step %d", found.step)
    step = jax.device_put(np.int32(found.step), abstract.step.sharding)
    return TrainState(
        step, found.arrays["params"], found.arrays["optimizer"], found.arrays.get("ema")
    )


def data_position(config: Config, source: Source, step: int) -> dict[str, Any]:
    """Returns what decides which examples come next: (seed, step) and the dataset's identity."""
    return {
        "step": step,
        "seed": config.seed,
        "examples_seen": step * config.data.global_batch_size,
        "dataset": source.name,
        "fingerprint": source.fingerprint,
    }


class _Run:
    """The moving parts of one call of `train`."""

    def __init__(
        self,
        program: Program,
        source: Source,
        evaluator: SplitEvaluator,
        checkpoints: CheckpointFolder,
        writer: MetricsWriter,
        view: ProgressView,
        stop: StopSignals,
    ):
        self.program, self.config, self.source = program, program.config, source
        self.evaluator, self.checkpoints = evaluator, checkpoints
        self.writer, self.view, self.stop = writer, view, stop
        self.telemetry = Telemetry(self.config.data.global_batch_size, program.flops_per_image)
        self.pending: collections.deque[tuple[int, dict[str, jax.Array]]] = collections.deque()
        self.evaluated: tuple[int, dict[str, float]] = (-1, {})
        self.saved = -1
        sizes = {"batch_size": self.config.data.global_batch_size, "num_examples": len(source)}
        self.eval_every = duration_in_steps(self.config.evaluation, "interval", **sizes)
        self.save_every = duration_in_steps(self.config.checkpoint, "interval", **sizes)

    def run(self, state: TrainState, start: int) -> dict[str, Any]:
        """Runs the steps from `start` to the end and returns the final figures."""
        begin = time.perf_counter()
        total = self.program.total_steps
        self.saved = start if start else -1
        step_fn = self._compile() if start < total else None
        feed = self._feed(start)
        self.telemetry.read()
        for step in range(start + 1, total + 1):
            assert step_fn is not None
            state, metrics = step_fn(state, to_devices(self._next(feed), self.program.mesh))
            self.pending.append((step, metrics))
            self._drain(_IN_FLIGHT)
            last = step == total
            if last or _due(step, self.eval_every):
                self._evaluate(step, state)
            if last or _due(step, self.save_every) or self.stop.requested:
                self._save(step, state)
            if self.stop.requested and not last:
                self.checkpoints.wait()
                raise Stopped(step)
        figures = self._evaluate(total, state)
        self.checkpoints.wait()
        return {
            "step": total,
            "parameters": self.program.num_parameters(),
            "wall_time_s": time.perf_counter() - begin,
            **figures,
        }

    def _compile(self) -> Any:
        """Compiles the step and says how long it took."""
        begin = time.perf_counter()
        compiled = self.program.compile()
        seconds = time.perf_counter() - begin
        self.view.say(
            f"{self.config.model.name}: {self.program.num_parameters():,} parameters, "
            f"{self.program.flops_per_image / 1e9:.2f} GFLOP an image to train, "
            f"{jax.device_count()} {jax.devices()[0].device_kind}, compiled in {seconds:.1f} s"
        )
        self.compile_time_s = seconds
        return compiled

    def _feed(self, start: int) -> Iterator[dict[str, np.ndarray]]:
        data = self.config.data
        batch = data.global_batch_size
        spec = BatchSpec(
            batch,
            host_rows(self.program.mesh, batch),
            self.program.num_classes,
            data.num_threads,
            data.prefetch_batches,
        )
        transform = make_train_transform(data.image_size, data.augment)
        return train_batches(
            self.source, transform, spec,
            seed=self.config.seed, start_step=start, end_step=self.program.total_steps,
        )  # fmt: skip

    def _next(self, feed: Iterator[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Returns the next batch; the time counts as waiting where the device ran dry meanwhile."""
        begin = time.perf_counter()
        batch = next(feed)
        newest: Any = self.pending[-1][1]["train/loss"] if self.pending else None
        if newest is None or newest.is_ready():
            self.telemetry.waited(time.perf_counter() - begin)
        return batch

    def _drain(self, keep: int) -> None:
        """Waits until at most `keep` steps are unread, checks each read one, logs those due."""
        while len(self.pending) > keep:
            step, arrays = self.pending.popleft()
            values = {name: value.item() for name, value in jax.device_get(arrays).items()}
            for name in ("train/loss", "train/gradient_norm"):
                if not math.isfinite(values[name]):
                    kept = self.checkpoints.steps()
                    raise DivergenceError(
                        f"{name} is {values[name]} at step {step}", "a finite number",
                        "lower the learning rate, clip gradients or use float32; the last good "
                        f"checkpoint is {f'that of step {kept[-1]}' if kept else 'none'}",
                    )  # fmt: skip
            self.telemetry.stepped()
            self.view.stepped(step)
            if step % self.config.logging.interval_steps == 0 or step == self.program.total_steps:
                values |= self.telemetry.read()
                values["train/compile_time_s"] = self.compile_time_s
                self.writer.write(step, values)
                self.view.logged(step, values)

    def _evaluate(self, step: int, state: TrainState) -> dict[str, float]:
        """Returns the figures of all splits at a step, computing and writing them once."""
        self._drain(0)
        if self.evaluated[0] != step:
            begin = time.perf_counter()
            figures = self.evaluator(self.program.eval_step, state.eval_params)
            if figures:
                self.writer.write(step, figures)
                self.view.evaluated(step, figures)
            self.evaluated = (step, figures)
            self.telemetry.pause(time.perf_counter() - begin)
        return self.evaluated[1]

    def _save(self, step: int, state: TrainState) -> None:
        """Starts saving a state whose every step so far was finite."""
        self._drain(0)
        if self.saved == step:
            return
        best = self.config.checkpoint.best_metric
        metrics = self._evaluate(step, state) if best is not None else None
        begin = time.perf_counter()
        self.checkpoints.save(
            step, state,
            data=data_position(self.config, self.source, step), config=self.config.to_mapping(),
            metrics=metrics,
        )  # fmt: skip
        self.saved = step
        self.telemetry.pause(time.perf_counter() - begin)


def _due(step: int, interval: int | None) -> bool:
    return interval is not None and step % interval == 0
