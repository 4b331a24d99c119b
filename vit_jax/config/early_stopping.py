"""The config section of early stopping."""

from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option


class EarlyStoppingConfig(Section):
    """Makes the weights with the best evaluation the final ones, instead of the last weights.

    Source: arXiv:2010.11929, section 4.3 (subsets of JFT).
    """

    metric: str | None = option(None)
    """Metric of a split that is evaluated at intervals, e.g. "eval/minival/accuracy_top1". The best
    value is the highest, or the lowest for a loss; ties go to the first. None: keep the last
    weights.
    """
    patience_evaluations: int | None = option(None, at_least=1)
    """Stop after this many evaluations in a row without improvement; None: train to the end."""

    def check(self) -> None:
        if self.patience_evaluations is not None and self.metric is None:
            raise ConfigError(
                f"is {self.patience_evaluations} without a 'metric'",
                "a metric of an evaluated split",
                "set early_stopping.metric, e.g. eval/minival/accuracy_top1",
                key="patience_evaluations",
            )
