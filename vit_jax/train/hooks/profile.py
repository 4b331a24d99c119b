"""Writes a profiler trace of some steps to the run folder."""

import jax

from vit_jax.train.context import RunContext, StepOutput
from vit_jax.train.hooks.log import LogHook


class ProfileHook:
    """Traces the steps of `logging.profile_steps` into the folder `profile` of the run.

    A resumed run traces only the steps after its checkpoint.

    Args:
        context: the run.
        log: the log hook of the run.
    """

    def __init__(self, context: RunContext, log: LogHook):
        self._log, self._folder = log, context.folder / "profile"
        self._steps = context.config.logging.profile_steps
        self._tracing = False
        context.on_exit(self._stop)
        if self._steps is not None and self._steps[0] <= context.start.step + 1 <= self._steps[1]:
            self._start()

    def after_step(self, context: RunContext, output: StepOutput) -> None:
        """Starts the trace before the first of the steps and ends it after the last."""
        if self._steps is None:
            return
        if output.step == self._steps[0] - 1:
            self._start()
        elif output.step == self._steps[1]:
            with self._log.paused():
                self._stop()

    def _start(self) -> None:
        with self._log.paused():
            jax.profiler.start_trace(self._folder)
        self._tracing = True

    def _stop(self) -> None:
        if self._tracing:
            self._tracing = False
            jax.profiler.stop_trace()
