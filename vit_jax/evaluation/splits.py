"""Evaluation of parameters on the splits of a config."""

from collections.abc import Callable, Iterator
from typing import Any

from jax.sharding import Mesh

from vit_jax.config import Config
from vit_jax.data.loader import BatchSpec, HostBatch, eval_batches
from vit_jax.data.sources import Source, open_source
from vit_jax.data.transforms import make_eval_transform
from vit_jax.evaluation.classification import EvalStep, evaluate
from vit_jax.parallel.mesh import check_batch_size, host_rows


class SplitEvaluator:
    """The splits to evaluate, opened once.

    Args:
        config: the run.
        mesh: devices.
        num_classes: C.

    Raises:
        DataError: a split that is not there.
        ConfigError: a batch that does not divide over the devices.
    """

    def __init__(self, config: Config, mesh: Mesh, *, num_classes: int):
        data = config.data
        batch_size = config.evaluation.batch_size or data.global_batch_size
        check_batch_size(mesh, batch_size, "evaluation.batch_size")
        self._mesh = mesh
        self._sources: dict[str, Source] = {
            name: open_source(data, split) for name, split in config.evaluation.splits.items()
        }
        self._transform = make_eval_transform(data.image_size, data.eval_crop)
        self._spec = BatchSpec(
            global_batch_size=batch_size,
            rows=host_rows(mesh, batch_size),
            num_classes=num_classes,
            num_threads=data.num_threads,
            prefetch=data.prefetch_batches,
        )

    def __call__(
        self, eval_step: EvalStep, params: Any, stop: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """Evaluates all splits.

        Args:
            eval_step: sums over one batch.
            params: the model's parameters.
            stop: asked before each batch; when it says so, the evaluation ends.

        Returns:
            "eval/SPLIT/METRIC" -> value: loss, accuracy_top1, accuracy_top5, examples; None where
            it was stopped.
        """
        figures = {}
        try:
            for name, source in self._sources.items():
                batches = _until(stop, eval_batches(source, self._transform, self._spec))
                for metric, value in evaluate(eval_step, params, batches, self._mesh).items():
                    figures[f"eval/{name}/{metric}"] = value
        except _StoppedError:
            return None
        return figures


class _StoppedError(Exception):
    """The evaluation was asked to stop."""


def _until(stop: Callable[[], bool], batches: Iterator[HostBatch]) -> Iterator[HostBatch]:
    for batch in batches:
        if stop():
            raise _StoppedError
        yield batch
