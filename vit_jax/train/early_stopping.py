"""Early stopping: tracks the best evaluation, and stops after too many without improvement."""

import math
from collections.abc import Mapping
from typing import Any

from vit_jax.config.early_stopping import EarlyStoppingConfig
from vit_jax.evaluation.metric_kinds import kind_of


class EarlyStopping:
    """Tracks one metric over the evaluations of a run; `saved` is from `to_json`, None: a new run.

    >>> early = EarlyStopping(EarlyStoppingConfig(metric="eval/dev/loss", patience_evaluations=2))
    >>> for step, loss in ((10, 2.0), (20, 1.5), (30, 1.6), (40, 1.5)):
    ...     early.update(step, {"eval/dev/loss": loss})
    >>> early.best_step, early.should_stop
    (20, True)
    """

    def __init__(self, config: EarlyStoppingConfig, saved: Mapping[str, Any] | None = None):
        saved = saved or {}
        self._metric, self._patience = config.metric, config.patience_evaluations
        self.best_step: int | None = saved.get("best_step")
        self._best: float | None = saved.get("best")
        self._since: int = saved.get("evaluations_since", 0)
        self._step: int = saved.get("step", -1)

    @property
    def enabled(self) -> bool:
        """Whether early stopping is on, so that the best weights are the final ones."""
        return self._metric is not None

    @property
    def should_stop(self) -> bool:
        return self._patience is not None and self._since >= self._patience

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds an evaluation. A repeated step is ignored.

        NaN, or no value of the metric, is never an improvement.
        """
        if self._metric is None or step <= self._step:
            return
        score = metrics.get(self._metric, math.nan)
        if kind_of(self._metric).lower:
            score = -score
        self._step = step
        if math.isfinite(score) and (self._best is None or score > self._best):
            self.best_step, self._best, self._since = step, score, 0
        else:
            self._since += 1

    def to_json(self) -> dict[str, Any]:
        """Returns the state to save in a checkpoint."""
        if not self.enabled:
            return {}
        found = {"step": self._step, "best_step": self.best_step, "best": self._best}
        return {"early_stopping": found | {"evaluations_since": self._since}}
