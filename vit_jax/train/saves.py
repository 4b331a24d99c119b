"""Saves checkpoints at intervals, after the best evaluation, and at the end."""

import time
from collections.abc import Mapping
from typing import Any

from vit_jax.config.durations import duration_in_steps, is_due, next_due
from vit_jax.train.session import Session
from vit_jax.train.start import data_position
from vit_jax.train.state import TrainState

# Steps between saves if the config does not set an interval.
DEFAULT_INTERVAL = 1000


class Saves:
    """Decides when to save the state, and saves it with the position in the data."""

    def __init__(self, session: Session):
        self._session = session
        self._saved = session.start.step or -1
        config = session.config
        self._interval = (
            duration_in_steps(
                config.checkpoint,
                "interval",
                batch_size=config.data.global_batch_size,
                num_examples=len(session.source),
            )
            or DEFAULT_INTERVAL
        )

    def is_due(self, step: int) -> bool:
        """Whether to save after a step: at intervals, the best step so far, and the last."""
        best = self._session.early_stopping.best_step == step
        return is_due(step, self._interval) or best or self._session.is_last(step)

    def next_step(self, step: int) -> int:
        """Returns the next step after which the state is saved for certain."""
        total = self._session.program.total_steps
        return min(next_due(step, self._interval) or total, total)

    def save(self, step: int, state: TrainState, log: Mapping[str, Any]) -> None:
        """Starts to save a state and `StepLog.to_json`, unless it is saved."""
        if self._saved == step:
            return
        session = self._session
        with session.account.part("saving"), session.progress.stage("saving"):
            begin = time.perf_counter()
            # A run that resumes from here must find all lines up to this step.
            session.metrics.flush()
            session.examples.flush()
            session.checkpoints.pinned = session.early_stopping.best_step
            session.checkpoints.save(
                step,
                state,
                data={**self._data(step), **log},
                config=session.config.to_mapping(),
            )
            self._saved = step
            blocked = time.perf_counter() - begin
            session.metrics.write(step, {"checkpoint/blocked_s": blocked})
            session.account.log()

    def _data(self, step: int) -> dict[str, Any]:
        """Returns the JSON that a checkpoint keeps beside its arrays."""
        session = self._session
        return (
            data_position(session.config, session.source, step)
            | {
                "elapsed_s": time.perf_counter() - session.begin_s,
                "seconds": session.account.seconds(),
                "evaluated": session.evaluators.splits.fingerprints,
            }
            | session.early_stopping.to_json()
        )
