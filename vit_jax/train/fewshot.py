"""Evaluation of frozen features during training: few-shot, kNN and linear probes."""

from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh

from vit_jax.config.durations import duration_in_steps
from vit_jax.config.run import Config
from vit_jax.evaluation.frozen import FrozenEvaluator
from vit_jax.parallel.hosts import first_does
from vit_jax.run.metrics import MetricsWriter

_PREFIXES = ("fewshot/", "knn/", "linear_probe/")


class FewshotEvaluator:
    """The evaluations of the fewshot section. Datasets are opened before training starts.

    Args:
        config: the run.
        mesh: devices.
        num_examples: training examples per epoch.

    Attributes:
        step: of the latest figures; -1: there are none yet.
        figures: metric name -> value.

    Raises:
        DataError: a dataset that does not exist, or has too few examples of a class.
    """

    def __init__(self, config: Config, mesh: Mesh, *, num_examples: int):
        side, batch_size = config.data.image_size, config.data.global_batch_size
        self.step, self.figures = -1, dict[str, float]()
        self._every = duration_in_steps(
            config.fewshot, "interval", batch_size=batch_size, num_examples=num_examples
        )
        self._evaluator = FrozenEvaluator(
            config.fewshot, config.data, config.model, (side, side), mesh,
            batch_size=config.evaluation.batch_size or batch_size,
        )  # fmt: skip

    def is_due(self, step: int) -> bool:
        """Whether the interval asks for an evaluation after this step."""
        return self._every is not None and step % self._every == 0

    def read(self, step: int, metrics: MetricsWriter) -> None:
        """Reads the figures that an earlier session wrote at a step, if it did."""
        found = first_does("read few-shot", lambda: metrics.evaluation_at(step, _PREFIXES))
        if found:
            self.step, self.figures = step, found

    def run(self, step: int, params: Any, stop: Callable[[], bool]) -> bool:
        """Evaluates the parameters of a step, once; returns whether there are new figures.

        Args:
            step: number of updates made.
            params: to evaluate.
            stop: called before each batch; if it returns True, the evaluation ends without figures.
        """
        if self.step == step:
            return False
        figures = self._evaluator(params, stop)
        if figures is None:
            return False
        self.step, self.figures = step, figures
        return bool(figures)
