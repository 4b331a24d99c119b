"""Traces some steps with the profiler."""

import logging

from vit_jax.errors import ConfigError
from vit_jax.parallel.processes import is_first_host
from vit_jax.train.context import RunContext, StepOutput
from vit_jax.train.hooks.log import LogHook
from vit_jax.train.trace import Trace

log = logging.getLogger(__name__)


class ProfileHook:
    """Traces the steps of `profile.steps` into the folder `profile` of the run.

    A run that was resumed within these steps traces the rest of them. A trace that cannot be
    written is a warning.
    """

    def __init__(self, context: RunContext, log: LogHook):
        self._context, self._log = context, log
        self._trace: Trace | None = None
        self._steps = context.config.profile.first_and_last if is_first_host() else None
        context.on_exit(self._cancel)
        if context.config.profile.first_and_last is not None:
            self._check(*context.config.profile.first_and_last)
        if self._steps is not None and self._steps[0] <= context.start.step + 1 <= self._steps[1]:
            self._start(context.start.step + 1)

    def _check(self, first: int, last: int) -> None:
        total, start = self._context.program.total_steps, self._context.start.step
        if first > total:
            raise ConfigError(
                f"'profile.steps' is {first}:{last}, and the run has {total} steps",
                "steps of the run",
                "choose earlier ones",
            )
        written = self._context.folder / "profile" / "plugins" / "profile" / _name(first, last)
        if last <= start and is_first_host() and not written.is_dir():
            log.warning("no profile of steps %d to %d: the run is at step %d", first, last, start)

    def after_step(self, context: RunContext, output: StepOutput) -> None:
        """Starts the trace before the first of the steps and ends it after the last."""
        if self._steps is None:
            return
        if output.step == self._steps[0] - 1:
            self._start(output.step + 1)
        elif self._trace is not None:
            if output.step == self._steps[1] or context.is_last(output.step):
                with self._log.paused():
                    try:
                        self._finish(self._trace)
                    except Exception as error:  # The run is worth more than its profile.
                        log.warning("the profile is not complete: %r", error)
            else:
                self._trace.begin_step(output.step + 1)

    def _start(self, step: int) -> None:
        assert self._steps is not None
        with self._log.paused():
            try:
                self._trace = Trace(_name(*self._steps))
                self._trace.begin_step(step)
            except Exception as error:  # The run is worth more than its profile.
                log.warning("no profile: %r", error)
                self._cancel()
                self._trace = None

    def _finish(self, trace: Trace) -> None:
        self._trace = None
        trace.finish(self._context.folder / "profile")

    def _cancel(self) -> None:
        if self._trace is not None:
            self._trace.cancel()


def _name(first: int, last: int) -> str:
    return f"steps-{first}-{last}"
