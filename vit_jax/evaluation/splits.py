"""Evaluation of parameters on the splits of a config."""

from typing import Any

from jax.sharding import Mesh

from vit_jax.config import Config
from vit_jax.data.loader import BatchSpec, eval_batches
from vit_jax.data.sources import Source, TfdsSource
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
            name: TfdsSource(data.name, split, data.data_dir)
            for name, split in config.evaluation.splits.items()
        }
        self._transform = make_eval_transform(data.image_size, data.eval_crop)
        self._spec = BatchSpec(
            batch_size,
            host_rows(mesh, batch_size),
            num_classes,
            data.num_threads,
            data.prefetch_batches,
        )

    def __call__(self, eval_step: EvalStep, params: Any) -> dict[str, float]:
        """Returns "eval/SPLIT/METRIC" -> value: loss, accuracy_top1, accuracy_top5, examples."""
        figures = {}
        for name, source in self._sources.items():
            batches = eval_batches(source, self._transform, self._spec)
            for metric, value in evaluate(eval_step, params, batches, self._mesh).items():
                figures[f"eval/{name}/{metric}"] = value
        return figures
