"""The training loop."""

import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from vit_jax.config.run import Config
from vit_jax.data.balance import build_balance
from vit_jax.data.loader import on_device
from vit_jax.data.sources import (
    class_count,
    open_training_data,
    with_subset_hash,
)
from vit_jax.errors import DivergenceError
from vit_jax.parallel.mesh import make_mesh, to_devices
from vit_jax.parallel.processes import barrier, on_first_host
from vit_jax.run.folder import RunFolder
from vit_jax.train.context import Hook, RunContext, StepOutput, open_context
from vit_jax.train.divergence import explain_divergence
from vit_jax.train.hooks.evaluate import EvaluateHook, Evaluators
from vit_jax.train.hooks.log import LogHook
from vit_jax.train.hooks.profile import ProfileHook
from vit_jax.train.hooks.save import SaveHook
from vit_jax.train.hooks.stop import StopHook
from vit_jax.train.hooks.watch_attention import WatchAttentionHook
from vit_jax.train.program import Program, build_program
from vit_jax.train.signals import Stopped, StopSignals
from vit_jax.train.state import TrainState
from vit_jax.train.telemetry import DeviceClock

log = logging.getLogger(__name__)


def train(
    config: Config, workdir: Path, stop: StopSignals, program: Program | None = None
) -> dict[str, Any]:
    """Trains to the end of a run, resuming it if it was interrupted.

    Args:
        config: the run.
        workdir: run folder. A run that was started there with the same config is resumed.
        stop: asks the run to stop.
        program: program of this config, if it is already built; None: build it.

    Returns:
        The content of result.json.

    Raises:
        UserError: a problem with config, data, model, folder or checkpoint.
        DivergenceError: loss, gradient or update are not finite, after all rewinds that the config
            allows.
        Stopped: the run was asked to stop; its state is saved.
    """
    rewinds, skipped_batches = 0, None
    while True:
        last = rewinds == config.divergence.rewinds
        try:
            return _train_once(config, workdir, stop, program, skipped_batches, explain=last)
        except DivergenceError as error:
            if last:
                raise
            rewinds, skipped_batches = rewinds + 1, error.skip_batches
            log.warning(
                "%s: returning to the last checkpoint and skipping %d batches (rewind %d of %d)",
                error.got,
                skipped_batches,
                rewinds,
                config.divergence.rewinds,
            )


def _train_once(
    config: Config,
    workdir: Path,
    stop: StopSignals,
    program: Program | None,
    skipped_batches: int | None,
    *,
    explain: bool,
) -> dict[str, Any]:
    """Trains until the end or the first divergence.

    Args:
        config: the run.
        workdir: run folder.
        stop: asks the run to stop.
        program: see `train`.
        skipped_batches: batches to skip after a rewind; None: the number in the checkpoint.
        explain: if the run diverges, find the tensor that caused it and name it in the error.
    """
    training = open_training_data(config.data)
    source, config = training.source, with_subset_hash(config, training)
    num_classes = class_count(source, config.data.num_classes)
    balance = build_balance(config, source, num_classes)
    program = program or build_program(
        config,
        make_mesh(config.mesh),
        num_classes=num_classes,
        num_examples=len(source),
        class_counts=balance.counts,
    )
    evaluators = Evaluators(config, program, source, workdir.expanduser() / "report")
    with RunFolder(workdir, config) as folder:
        finished = on_first_host("look for a result", lambda: folder.result)
        if finished is not None:
            log.info("run in %s is already finished; nothing to do", folder.path)
            return finished
        with (
            open_context(
                config, program, training, balance.order, folder, stop, skipped_batches
            ) as run,
            DeviceClock() as clock,
        ):
            result = _run(run, evaluators, clock, explain=explain and config.divergence.report)
        folder.write_json("result.json", result)
    return result


def _run(
    context: RunContext, evaluators: Evaluators, clock: DeviceClock, *, explain: bool
) -> dict[str, Any]:
    """Trains from the state of `context.start` to the end; returns the content of result.json."""
    logger = LogHook(context, clock)
    evaluation = EvaluateHook(context, logger, evaluators)
    save = SaveHook(context, logger, evaluation)
    step, state = context.start.step, context.start.state
    if step:
        evaluation.resume()
        # The interrupted evaluation belongs to this step, so it must finish before the next step.
        if context.stop_requested() and not context.is_last(step):
            raise Stopped(step)
    if not context.is_last(step):
        with contextlib.closing(ProfileHook(context, logger)) as profile:
            hooks = (
                logger,
                WatchAttentionHook(context, logger),
                evaluation,
                StopHook(evaluation, save),
                save,
                profile,
            )
            try:
                step, state = _run_steps(context, logger, hooks)
            except DivergenceError as error:
                raise explain_divergence(context, error) if explain else error from None
    metrics = evaluation.final_metrics(step, state)
    context.checkpoints.wait()
    if metrics is None:
        raise Stopped(step)
    examples_seen = step * context.config.data.global_batch_size
    return {
        "step": step,
        "parameters": context.program.num_parameters(),
        "train_examples": len(context.source),
        "examples_seen": examples_seen,
        "train_exaflops": examples_seen * context.program.flops_per_image / 1e18,
        "wall_time_s": time.perf_counter() - context.begin_s,
        **metrics,
    }


def _run_steps(
    context: RunContext, logger: LogHook, hooks: Sequence[Hook]
) -> tuple[int, TrainState]:
    """Runs the remaining training steps; returns the last step and the state after it."""
    program, step, state = context.program, context.start.step, context.start.state
    begin = time.perf_counter()
    step_fn = program.compiled
    logger.compile_time_s = time.perf_counter() - begin
    # Gloo fails if processes reach the first collective more than 30 s apart.
    barrier("compile the training step")
    context.progress.print_line(
        f"{context.config.model.name}: {program.num_parameters():,} parameters, "
        f"{program.flops_per_image / 1e9:.2f} GFLOPs per training image, "
        f"{jax.device_count()} {jax.devices()[0].device_kind}, "
        f"compiled in {logger.compile_time_s:.1f} s"
    )
    with context.open_feed(step) as feed:
        logger.restart_clock()
        while not context.is_last(step):
            step += 1
            host_batch = logger.next_batch(feed)
            batch = to_devices(on_device(host_batch), program.mesh)
            state, metrics = step_fn(state, batch, *context.frozen)
            output = StepOutput(step, state, metrics, batch, host_batch)
            for hook in hooks:
                hook.after_step(context, output)
    return step, state
