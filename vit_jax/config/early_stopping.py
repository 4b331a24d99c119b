"""Config section of early stopping."""

import dataclasses

from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyStoppingConfig(Section):
    """Makes the weights of the best evaluation the result of a run, not those of its last step.

    Source: arXiv:2010.11929, section 4.3 (subsets of JFT).
    """

    # What is best, of a split that is evaluated at an interval, e.g. "eval/minival/accuracy_top1":
    # the largest, of a loss the smallest; of equal ones the first. None: the last weights.
    metric: str | None = option(None)
    # End after so many evaluations in a row that are no better; None: all steps are made.
    patience_evaluations: int | None = option(None, at_least=1)

    def check(self) -> None:
        if self.patience_evaluations is not None and self.metric is None:
            raise ConfigError(
                f"'patience_evaluations' is {self.patience_evaluations} without a 'metric'",
                "a metric of an evaluated split",
                "set early_stopping.metric, e.g. eval/minival/accuracy_top1",
            )
