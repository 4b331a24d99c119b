"""Saves checkpoints at intervals, after the best evaluation, and at the end."""

import time
from typing import Any

from vit_jax.config.durations import duration_in_steps, is_due, next_due
from vit_jax.train.context import RunContext, StepOutput
from vit_jax.train.hooks.log import LogHook
from vit_jax.train.start import data_position

# Steps between saves if the config does not set an interval.
DEFAULT_INTERVAL = 1000


class SaveHook:
    """Saves checkpoints."""

    def __init__(self, context: RunContext, log: LogHook):
        self._log = log
        self._saved = context.start.step or -1
        config = context.config
        self._interval = (
            duration_in_steps(
                config.checkpoint,
                "interval",
                batch_size=config.data.global_batch_size,
                num_examples=len(context.source),
            )
            or DEFAULT_INTERVAL
        )

    def after_step(self, context: RunContext, output: StepOutput) -> None:
        """Saves if a save is due, or if this step is the last or the best so far."""
        context.checkpoints.check()
        step = output.step
        best = context.early_stopping.best_step == step
        if is_due(step, self._interval) or best or context.is_last(step):
            self.save(context, output)

    def next_step(self, context: RunContext, step: int) -> int:
        total = context.program.total_steps
        return min(next_due(step, self._interval) or total, total)

    def save(self, context: RunContext, output: StepOutput) -> None:
        """Starts to save a state, unless it is saved. First checks that all steps were finite."""
        step, config = output.step, context.config
        if self._saved == step:
            return
        stage = context.progress.stage("saving")
        with self._log.paused(), context.account.part("saving"), stage:
            begin = time.perf_counter()
            # A run that resumes from here must find all lines up to this step.
            context.metrics.flush()
            context.examples.flush()
            context.checkpoints.pinned = context.early_stopping.best_step
            context.checkpoints.save(
                step, output.state, data=self._data(context, step), config=config.to_mapping()
            )
            self._saved = step
            blocked = time.perf_counter() - begin
            context.metrics.write(step, {"checkpoint/blocked_s": blocked})
            context.account.log()

    def _data(self, context: RunContext, step: int) -> dict[str, Any]:
        """Returns the JSON that a checkpoint keeps beside its arrays."""
        return (
            data_position(context.config, context.source, step)
            | {
                "elapsed_s": time.perf_counter() - context.begin_s,
                "seconds": context.account.seconds(),
            }
            | context.early_stopping.to_json()
        )
