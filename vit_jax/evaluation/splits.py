"""Evaluation of parameters on the splits of a config."""

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from vit_jax.config.run import Config
from vit_jax.data.arrays import labelled_image
from vit_jax.data.cache import cached
from vit_jax.data.loader import HostBatch, batch_spec, eval_batches, on_device
from vit_jax.data.sources import Source, open_source
from vit_jax.data.transforms import make_eval_transform
from vit_jax.errors import first_few
from vit_jax.evaluation.by_class import ByClass
from vit_jax.evaluation.classification import EvalStep, evaluate
from vit_jax.parallel.hosts import is_first_host
from vit_jax.parallel.mesh import check_batch_size, host_rows

log = logging.getLogger(__name__)


class SplitEvaluator:
    """The splits to evaluate, opened once.

    Args:
        config: the run.
        splits: name in the metrics -> split.
        mesh: devices.
        num_classes: C.
        report: folder for the confusion matrices that the config asks for; None: not written.
        suffix: of their names, after the split's.

    Attributes:
        splits: as given.

    Raises:
        DataError: a split that is not there.
        ConfigError: a batch that does not divide over the devices.
    """

    def __init__(
        self,
        config: Config,
        splits: Mapping[str, str],
        mesh: Mesh,
        *,
        num_classes: int,
        report: Path | None = None,
        suffix: str = "",
    ):
        data = config.data
        batch_size = config.evaluation.batch_size or data.global_batch_size
        check_batch_size(mesh, batch_size, "evaluation.batch_size")
        self.splits = splits
        self._mesh, self._num_classes = mesh, num_classes
        self._by_class = config.evaluation.by_class
        self._report, self._suffix = report, suffix
        self._told: set[str] = set()
        self._sources: dict[str, Source] = {
            name: cached(open_source(data, split), data.cache_mb) for name, split in splits.items()
        }
        transform = make_eval_transform(data.image_size, data.eval_crop, data.augment)
        self._preprocessing = labelled_image(transform, data.image_size, num_classes)
        rows = host_rows(mesh, batch_size)
        self._spec = batch_spec(data, batch_size, rows)

    def __call__(
        self, eval_step: EvalStep, params: Any, stop: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """Evaluates all splits.

        Args:
            eval_step: sums over one batch.
            params: the model's parameters.
            stop: asked before each batch; when it says so, the evaluation ends.

        Returns:
            "eval/SPLIT/METRIC" -> value: loss, accuracy_top1, accuracy_top5, examples, and with
            `evaluation.by_class` those of `ByClass`; None where it was stopped.
        """
        figures = {}
        try:
            for name, source in self._sources.items():
                by_class = None
                if self._by_class:
                    by_class = ByClass(source.class_names, self._num_classes)
                with eval_batches(source, self._preprocessing, self._spec) as feed:
                    batches = _until(stop, feed)
                    found = evaluate(eval_step, params, batches, self._mesh, by_class)
                if by_class is not None:
                    self._tell_absent(name, by_class)
                if by_class is not None and self._report is not None and is_first_host():
                    by_class.write(self._report / f"confusion-{name}{self._suffix}.csv")
                figures |= {f"eval/{name}/{metric}": value for metric, value in found.items()}
        except _StoppedError:
            return None
        return figures

    def _tell_absent(self, name: str, by_class: ByClass) -> None:
        """Says once which classes a split lacks: a tenth of a small class may be no example."""
        absent = [repr(c) for c in by_class.absent()]
        if absent and name not in self._told and is_first_host():
            log.warning("evaluation split %r has no example of %s", name, first_few(absent, 5))
        self._told.add(name)


class _StoppedError(Exception):
    """The evaluation was asked to stop."""


def _until(stop: Callable[[], bool], batches: Iterator[HostBatch]) -> Iterator[HostBatch]:
    for batch in batches:
        if stop():
            raise _StoppedError
        # What was skipped is masked already; the number of examples tells.
        yield on_device(batch)
