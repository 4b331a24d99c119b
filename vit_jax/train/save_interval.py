"""How many steps lie between two saves: a fixed number, or the number that loses the least time.

Saving often costs time, saving rarely loses time at every failure. If a save blocks training for C
seconds and a run fails every M seconds, an interval of T seconds costs C/T + (T/2 + W)/M of the
time: half an interval is lost per failure, and the W seconds in which the last checkpoint was still
being written in the background. The smallest cost is at T = sqrt(2 C M). W does not change it, but
the next save waits for the last one, so T is at least W.

Source: J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9),
1974; J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps,
FGCS 22(3), 2006.
"""

import logging
import math
from pathlib import Path

from vit_jax.config.durations import duration_in_steps, is_due, next_due
from vit_jax.parallel.processes import on_first_host
from vit_jax.run.about import write_time_s
from vit_jax.run.time_account import TimeAccount, duration_text
from vit_jax.train.context import RunContext

log = logging.getLogger(__name__)

# Steps between saves if the config does not set an interval.
DEFAULT_INTERVAL = 1000
# With interval=auto, the first interval is chosen after this many steps, when their time is known.
_FIRST_CHOICE = 10
# Assumed until there is a measurement: the cost of a save, and the time between failures.
_ASSUMED_SAVE_S = 1.0
_ASSUMED_HOURS = 24.0
# A new interval is used if it differs from the old one by more than this factor.
_WORTH_CHANGING = 1.5


def best_interval_s(blocked_s: float, between_failures_s: float, write_s: float = 0.0) -> float:
    """Returns the time between saves that loses the least time.

    Args:
        blocked_s: time that a save blocks training.
        between_failures_s: mean time between failures.
        write_s: time from the start of a save until its checkpoint is complete.

    >>> best_interval_s(2.0, 3600.0), best_interval_s(2.0, 3600.0, write_s=300.0)
    (120.0, 300.0)
    """
    return max(math.sqrt(2 * blocked_s * between_failures_s), write_s)


class FixedInterval:
    """Saves are due at the multiples of a number of steps.

    Args:
        steps: this number.
    """

    def __init__(self, steps: int):
        self._steps = steps

    def is_due(self, step: int) -> bool:
        """Whether to save after this step."""
        return is_due(step, self._steps)

    def next_step(self, step: int) -> int | None:
        """Returns the first step after this one at which a save is due."""
        return next_due(step, self._steps)

    def saved(self, step: int) -> None:
        """Called after each save."""


class AutoInterval:
    """Chooses the interval by `best_interval_s` after the first steps, and again after each save.

    Process 0 measures and chooses, so that all processes save after the same step.

    Args:
        account: the time of the run so far.
        checkpoints: folder of the checkpoints.
        step: step that this session starts from.
        hours: mean time between failures in hours; None: what the run has seen.
    """

    def __init__(self, account: TimeAccount, checkpoints: Path, step: int, hours: float | None):
        self._account, self._checkpoints, self._hours = account, checkpoints, hours
        self._first = self._saved = step
        self._steps: int | None = None
        self._begin: tuple[int, float] | None = None

    def is_due(self, step: int) -> bool:
        """Whether to save after this step. All processes must call this after each step."""
        if self._begin is None:  # The first step includes warm-up.
            self._begin = step, self._time()
        if self._steps is None and step >= self._first + _FIRST_CHOICE:
            self._choose(step)
        return self._steps is not None and step >= self._saved + self._steps

    def next_step(self, step: int) -> int | None:
        """Returns the first step after this one at which a save is due; None: not chosen yet."""
        return None if self._steps is None else max(self._saved + self._steps, step + 1)

    def saved(self, step: int) -> None:
        """Chooses the interval again, by what the saves until now have cost."""
        self._saved = step
        if self._begin is not None and step > self._begin[0]:
            self._choose(step)

    def _choose(self, step: int) -> None:
        steps, reason = on_first_host("choose the checkpoint interval", lambda: self._best(step))
        changed = self._steps is None or not (
            1 / _WORTH_CHANGING <= steps / self._steps <= _WORTH_CHANGING
        )
        if changed:
            self._steps = steps
            log.info("checkpoint interval: %s", reason)

    def _best(self, step: int) -> tuple[int, str]:
        """Returns the best number of steps, and a line that explains it."""
        assert self._begin is not None
        account = self._account
        save_s, write_s = account.save_s, write_time_s(self._checkpoints)
        if self._hours is None:
            # One failure is assumed in the first 24 hours, or a run that never failed would hardly
            # save.
            hours = (_ASSUMED_HOURS + account.running_s / 3600) / (1 + account.failures)
            source = f"{account.failures} seen in {duration_text(account.running_s)}"
            source = source if account.failures else "assumed"
        else:
            hours, source = self._hours, "as configured"
        step_s = (self._time() - self._begin[1]) / (step - self._begin[0])
        cost_s = _ASSUMED_SAVE_S if save_s is None else save_s
        seconds = best_interval_s(cost_s, hours * 3600, write_s or 0.0)
        steps = max(round(seconds / step_s), 1)
        cost = f"{cost_s:.3g} s ({'assumed' if save_s is None else 'measured'})"
        return steps, (
            f"{steps:,} steps = {duration_text(steps * step_s)}, because a save blocks training for"
            f" {cost} and a failure comes every {duration_text(hours * 3600)} ({source})"
        )

    def _time(self) -> float:
        """Returns the time of training and evaluation so far, without saves."""
        seconds = self._account.seconds()
        return sum(seconds[part] for part in ("steps", "data", "evaluation"))


def build_interval(context: RunContext) -> FixedInterval | AutoInterval:
    """Returns the interval of a run's config."""
    config = context.config
    if config.checkpoint.interval is not None:
        hours = config.checkpoint.hours_between_failures
        return AutoInterval(context.account, context.checkpoints.folder, context.start.step, hours)
    steps = duration_in_steps(
        config.checkpoint,
        "interval",
        batch_size=config.data.global_batch_size,
        num_examples=len(context.source),
    )
    return FixedInterval(steps or DEFAULT_INTERVAL)
