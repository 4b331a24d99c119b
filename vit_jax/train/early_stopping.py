"""Early stopping: which evaluation was the best, and whether a better one is still waited for."""

import math
from collections.abc import Mapping
from typing import Any

from vit_jax.config.early_stopping import EarlyStoppingConfig


class EarlyStopping:
    """Watches one figure of the evaluations of a run.

    Args:
        config: of what, and for how long.
        saved: what `to_json` returned at the checkpoint that the run goes on from; None: nothing.

    Attributes:
        best_step: of the best evaluation; None: there is none yet, or it is not asked for.

    >>> early = EarlyStopping(EarlyStoppingConfig(metric="eval/dev/loss", patience_evaluations=2))
    >>> for step, loss in ((10, 2.0), (20, 1.5), (30, 1.6), (40, 1.5)):
    ...     early.note(step, {"eval/dev/loss": loss})
    >>> early.best_step, early.is_over
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
    def is_on(self) -> bool:
        """Whether the best weights are the result."""
        return self._metric is not None

    @property
    def is_over(self) -> bool:
        """Whether the run has waited long enough for a better evaluation."""
        return self._patience is not None and self._since >= self._patience

    def note(self, step: int, figures: Mapping[str, float]) -> None:
        """Takes an evaluation into account, once; a figure that is not finite is never better."""
        if self._metric is None or step <= self._step:
            return
        score = figures[self._metric]
        if self._metric.endswith("/loss"):
            score = -score
        self._step = step
        if math.isfinite(score) and (self._best is None or score > self._best):
            self.best_step, self._best, self._since = step, score, 0
        else:
            self._since += 1

    def to_json(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps of it."""
        if not self.is_on:
            return {}
        found = {"step": self._step, "best_step": self.best_step, "best": self._best}
        return {"early_stopping": found | {"evaluations_since": self._since}}
