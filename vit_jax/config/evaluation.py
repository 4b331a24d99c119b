"""The config section of evaluation."""

from typing import TYPE_CHECKING, Annotated, Any

from vit_jax.config.durations import check_duration
from vit_jax.errors import ConfigError
from vit_jax.registry import NameIn, Registry
from vit_jax.schema import Section, option

METRICS: Registry[Any] = Registry("vit_jax.evaluation.metrics", "metric")
if TYPE_CHECKING:
    MetricName = str
else:
    MetricName = Annotated[str, NameIn(METRICS)]


class EvaluationConfig(Section):
    """Splits to evaluate, and when. All of them are evaluated after training.

    If a run keeps averaged weights (EMA), these are evaluated.
    """

    splits: dict[str, str] = option({})
    """Name in the metrics -> TFDS split, e.g. {"test": "test"}, or for models of ImageNet's classes
    a preset of `data.benchmarks`, e.g. {"real": "imagenet_real"}.
    """
    final_splits: dict[str, str] = option({})
    """The same for splits that are evaluated only once, after training, with the final weights."""
    interval_steps: int | None = option(None, at_least=1)
    """How often to evaluate `splits` during training. None: only after it."""
    interval_epochs: float | None = option(None, above=0)
    """The same in epochs."""
    interval_examples: int | None = option(None, at_least=1)
    """The same in examples."""
    batch_size: int | None = option(None, at_least=1)
    """Global batch size; None: the training batch size."""
    by_class: bool | None = option(None, changes_result=False)
    """Also compute the accuracy of each class and their mean, a confusion matrix in report/, and
    for two classes the area under the ROC curve. None: if the data are a folder of images
    (data.source=folder) with at most 100 classes.
    """

    metrics: tuple[MetricName, ...] = option((), changes_result=False)
    """Other metrics of the predictions on each split, by their names: those of
    `evaluation/metrics`, and your own (`vit_jax.register_metric`).
    """

    def check(self) -> None:
        check_duration(self, "interval", required=False)
        for name in self.all_splits:
            if not name or "/" in name:
                raise ConfigError(
                    f"has the name {name!r}", "a name without '/'", "rename it", key="splits"
                )
        both = sorted(self.splits.keys() & self.final_splits.keys())
        if both:
            raise ConfigError(
                f"and 'final_splits' both have {both[0]!r}",
                "each name once",
                "remove it from one of the two",
                key="splits",
            )

    @property
    def all_splits(self) -> dict[str, str]:
        return {**self.splits, **self.final_splits}

    @property
    def has_interval(self) -> bool:
        given = (self.interval_steps, self.interval_epochs, self.interval_examples)
        return any(value is not None for value in given)


class PresetsConfig(Section):
    """One run of `python -m vit_jax eval CHECKPOINT --preset=...`; all hosts must agree on it."""

    checkpoint: str = option()
    presets: tuple[str, ...] = option()
