"""The config section of evaluation."""

import dataclasses

from vit_jax.config.durations import check_duration
from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Section):
    """What is evaluated, when. The end of training always is. EMA weights are used where kept."""

    # Name in the metrics -> TFDS split, e.g. {"test": "test"}.
    splits: dict[str, str] = option({})
    # The same, but evaluated only at the end, of the weights that are the run's result.
    final_splits: dict[str, str] = option({})
    interval_steps: int | None = option(None, at_least=1)
    interval_epochs: float | None = option(None, above=0)
    interval_examples: int | None = option(None, at_least=1)
    # Global; None: the training batch size.
    batch_size: int | None = option(None, at_least=1)
    # Also by class: accuracy of each class and their mean, a confusion matrix in report/, and of
    # two classes the area under the ROC curve.
    by_class: bool = option(False)

    def check(self) -> None:
        check_duration(self, "interval", required=False)
        for name in self.all_splits:
            if not name or "/" in name:
                raise ConfigError(
                    f"'splits' has the name {name!r}", "a name without '/'", "rename it"
                )
        both = sorted(self.splits.keys() & self.final_splits.keys())
        if both:
            raise ConfigError(
                f"'splits' and 'final_splits' both have {both[0]!r}", "each name once",
                "drop it from one of the two",
            )  # fmt: skip

    @property
    def all_splits(self) -> dict[str, str]:
        """Name -> split of all that is evaluated at the end."""
        return {**self.splits, **self.final_splits}

    @property
    def has_interval(self) -> bool:
        """Whether evaluations are made before the end."""
        given = (self.interval_steps, self.interval_epochs, self.interval_examples)
        return any(value is not None for value in given)
