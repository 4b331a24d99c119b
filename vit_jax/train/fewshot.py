"""Evaluation of frozen features during training: few-shot, kNN and linear probes."""

from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh

from vit_jax.config.durations import duration_in_steps
from vit_jax.config.run import Config
from vit_jax.evaluation.frozen import FrozenEvaluator
from vit_jax.parallel.processes import on_first_host
from vit_jax.run.metrics import MetricsWriter

_PREFIXES = ("fewshot/", "knn/", "linear_probe/")


class FewshotEvaluator:
    """The evaluations of the fewshot section. Datasets are opened before training starts.

    Args:
        config: the run.
        mesh: devices.
        num_examples: training examples per epoch.

    Attributes:
        step: step of the latest evaluation; -1: none yet.
        metrics: metric name -> value of the latest evaluation.

    Raises:
        DataError: a dataset that does not exist, or has too few examples of a class.
    """

    def __init__(self, config: Config, mesh: Mesh, *, num_examples: int):
        side, batch_size = config.data.image_size, config.data.global_batch_size
        self.step, self.metrics = -1, dict[str, float]()
        self._every = duration_in_steps(
            config.fewshot, "interval", batch_size=batch_size, num_examples=num_examples
        )
        self._evaluator = FrozenEvaluator(
            config.fewshot,
            config.data,
            config.model,
            (side, side),
            mesh,
            batch_size=config.evaluation.batch_size or batch_size,
        )

    def is_due(self, step: int) -> bool:
        """Whether an evaluation is due after this step."""
        return self._every is not None and step % self._every == 0

    def read(self, step: int, metrics: MetricsWriter) -> None:
        """Reads the metrics of a step from metrics.jsonl, if an earlier session wrote them."""
        found = on_first_host("read few-shot", lambda: metrics.evaluation_at(step, _PREFIXES))
        if found:
            self.step, self.metrics = step, found

    def run(self, step: int, params: Any, stop: Callable[[], bool]) -> bool:
        """Evaluates the parameters, unless this was done at this step; returns whether it did.

        Args:
            step: number of updates made.
            params: parameters to evaluate.
            stop: called before each batch. If it returns True, the evaluation ends without result.
        """
        if self.step == step:
            return False
        metrics = self._evaluator(params, stop)
        if metrics is None:
            return False
        self.step, self.metrics = step, metrics
        return bool(metrics)
