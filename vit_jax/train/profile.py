"""Traces some steps with the profiler."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from vit_jax.errors import ConfigError
from vit_jax.parallel.processes import is_first_host
from vit_jax.train.session import Session
from vit_jax.train.trace import Trace

log = logging.getLogger(__name__)


class Profile:
    """Traces the steps of `profile.steps` into the folder `profile` of the run.

    A run that was resumed within these steps traces the rest of them. A trace that cannot be
    written is a warning. `paused` is a context manager for what takes time between steps.
    """

    def __init__(self, session: Session, paused: Callable[[], AbstractContextManager[None]]):
        self._session, self._paused = session, paused
        self._trace: Trace | None = None
        self._steps = session.config.profile.first_and_last if is_first_host() else None
        session.on_exit(self._cancel)
        if session.config.profile.first_and_last is not None:
            self._check(*session.config.profile.first_and_last)
        if self._steps is not None and self._steps[0] <= session.start.step + 1 <= self._steps[1]:
            self._start(session.start.step + 1)

    def _check(self, first: int, last: int) -> None:
        total, start = self._session.program.total_steps, self._session.start.step
        if first > total:
            raise ConfigError(
                f"'profile.steps' is {first}:{last}, and the run has {total} steps",
                "steps of the run",
                "choose earlier ones",
            )
        written = self._session.folder / "profile" / "plugins" / "profile" / _name(first, last)
        if last <= start and is_first_host() and not written.is_dir():
            log.warning("no profile of steps %d to %d: the run is at step %d", first, last, start)

    def after_step(self, step: int) -> None:
        """Starts the trace before the first of the steps and ends it after the last."""
        if self._steps is None:
            return
        if step == self._steps[0] - 1:
            self._start(step + 1)
        elif self._trace is not None:
            if step == self._steps[1] or self._session.is_last(step):
                with self._paused():
                    try:
                        self._finish(self._trace)
                    except Exception as error:  # The run is worth more than its profile.
                        log.warning("the profile is not complete: %r", error)
            else:
                self._trace.begin_step(step + 1)

    def _start(self, step: int) -> None:
        assert self._steps is not None
        with self._paused():
            try:
                self._trace = Trace(_name(*self._steps))
                self._trace.begin_step(step)
            except Exception as error:  # The run is worth more than its profile.
                log.warning("no profile: %r", error)
                self._cancel()
                self._trace = None

    def _finish(self, trace: Trace) -> None:
        self._trace = None
        trace.finish(self._session.folder / "profile")

    def _cancel(self) -> None:
        if self._trace is not None:
            self._trace.cancel()


def _name(first: int, last: int) -> str:
    return f"steps-{first}-{last}"
