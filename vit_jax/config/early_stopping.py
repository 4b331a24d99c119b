"""Config section of early stopping."""

import dataclasses

from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyStoppingConfig(Section):
    """The result of a run is its best evaluated step instead of its last.

    Source: arXiv:2010.11929, section 4.3 (subsets of JFT).
    """

    # Metric of a split that is evaluated at intervals, e.g. "eval/minival/accuracy_top1". The largest
    # value is best, for a loss the smallest, and the first of equal values. None: off.
    metric: str | None = option(None)
    # Stop after this many evaluations in a row without a better one; None: train all steps.
    patience_evaluations: int | None = option(None, at_least=1)

    def check(self) -> None:
        if self.patience_evaluations is not None and self.metric is None:
            raise ConfigError(
                f"'patience_evaluations' is {self.patience_evaluations} without a 'metric'",
                "a metric of an evaluated split",
                "set early_stopping.metric, e.g. eval/minival/accuracy_top1",
            )
