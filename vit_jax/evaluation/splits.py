"""Evaluates parameters on the splits of a config."""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from vit_jax.config.data import DataConfig
from vit_jax.data.arrays import Preprocessing
from vit_jax.data.benchmarks import benchmark_images, check_classes, find_benchmark, open_benchmark
from vit_jax.data.cache import cached
from vit_jax.data.class_names import match_classes
from vit_jax.data.loader import batch_spec
from vit_jax.data.sources import Source, open_source
from vit_jax.data.transforms import make_eval_transform
from vit_jax.errors import ConfigError
from vit_jax.evaluation.loop import EvalStep, StoppedError, Totals
from vit_jax.evaluation.measure import measure
from vit_jax.parallel.mesh import check_batch_size, host_rows
from vit_jax.parallel.processes import is_first_host

log = logging.getLogger(__name__)


class SplitEvaluator:
    """Evaluates splits, which are opened once.

    Args:
        data: the data section.
        splits: name in the metrics -> split of the dataset, or a preset of `data.benchmarks`.
        mesh: devices.
        batch_size: images per batch over all hosts.
        preprocessing: preprocessing of the task for evaluation.
        num_classes: outputs of the model.
        make_totals: class names -> an empty `Totals` of the task.
        variants: evaluate the same parameters with these, too: models of other patch sizes, as name
            -> (jitted step, preprocessing). Their metrics are eval/SPLIT@NAME/METRIC.
        report: folder for the tables of the totals; None: do not write them.
        suffix: suffix for the file names of these tables.
        head: names of the classes that the head was trained on, and name of the model. Labels are
            matched to them by name.

    Attributes:
        names: names in the metrics, those of variants included.
        sources: name in the metrics -> examples.
    """

    def __init__(
        self,
        data: DataConfig,
        splits: Mapping[str, str],
        mesh: Mesh,
        *,
        batch_size: int,
        preprocessing: Preprocessing,
        num_classes: int,
        make_totals: Callable[[Sequence[str]], Totals],
        variants: Mapping[str, tuple[EvalStep, Preprocessing]] = {},
        report: Path | None = None,
        suffix: str = "",
        head: tuple[Sequence[str], str] = ((), ""),
    ):
        check_batch_size(mesh, batch_size, "evaluation.batch_size")
        self.splits, self._variants = splits, variants
        self.names = [
            f"{name}{at}" for name in splits for at in ("", *(f"@{other}" for other in variants))
        ]
        self._make_totals = make_totals
        self._report, self._suffix = report, suffix
        self._warned = set[str]()  # Splits of which skipped examples were told.
        self.sources: dict[str, Source] = {}
        self._preprocessing = dict.fromkeys(splits, preprocessing)
        transform = make_eval_transform(data.image_size, **data.eval_view)
        for name, split in splits.items():
            preset = find_benchmark(split)
            if preset is None:
                source = open_source(data, split)
                self.sources[name] = match_classes(source, *head)
                if 0 < len(source.class_names) < len(head[0]):
                    classes = f"{len(source.class_names)} of the {len(head[0])} classes"
                    log.info("evaluation split %r has %s of %s", name, classes, head[1])
                continue
            if "label" not in preprocessing.arrays:
                raise ConfigError(
                    f"split {split!r} for a task without labels", "classification", "leave it out"
                )
            check_classes(num_classes, split)
            opened = open_benchmark(preset[0], data, preset[1])
            self.sources[name] = opened.source
            self._preprocessing[name] = benchmark_images(opened, transform, data.image_size)
        self._cached = {name: cached(s, data.cache_mb) for name, s in self.sources.items()}
        spec = batch_spec(data, batch_size, host_rows(mesh, batch_size))
        self._measure = functools.partial(measure, spec=spec, mesh=mesh)
        self._latest: dict[str, tuple[Source, Totals]] = {}

    def __call__(
        self,
        eval_step: EvalStep,
        params: Any,
        *,
        frozen: tuple[Any, ...] = (),
        stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, float] | None:
        """Returns "eval/SPLIT/METRIC" -> value; None if `stop`, called before a batch, ended it."""
        metrics = {}
        try:
            for name, source in self._cached.items():
                steps = {name: (eval_step, self._preprocessing[name])}
                steps |= {f"{name}@{other}": made for other, made in self._variants.items()}
                done: dict[EvalStep, tuple[Totals, dict[str, float]]] = {}
                for full_name, (step, preprocessing) in steps.items():
                    if step not in done:  # One of the variants has the model's own size.
                        totals = self._make_totals(source.class_names)
                        found = self._measure(
                            source,
                            preprocessing,
                            lambda batch, step=step: step(params, batch, *frozen),
                            totals,
                            stop=stop,
                        )
                        self._warn_of_skipped(name, found.get("skipped_examples", 0), len(source))
                        done[step] = totals, found
                    totals, found = done[step]
                    self._latest[full_name] = source, totals
                    if self._report is not None and is_first_host():
                        totals.write(self._report, f"{full_name}{self._suffix}")
                    metrics |= {f"eval/{full_name}/{metric}": v for metric, v in found.items()}
        except StoppedError:
            return None
        return metrics

    @property
    def fingerprints(self) -> dict[str, str]:
        """Name in the metrics -> what identifies its examples."""
        return {name: source.fingerprint for name, source in self.sources.items()}

    def write_mistakes(self) -> None:
        """Writes which examples of each split were wrong in its latest evaluation."""
        for name, (source, totals) in self._latest.items():
            if self._report is not None and is_first_host():
                totals.write_mistakes(self._report, f"{name}{self._suffix}", source)

    def _warn_of_skipped(self, name: str, skipped: float, examples: int) -> None:
        """Logs once how many examples of a split were skipped on all hosts, if any."""
        if skipped and name not in self._warned:
            self._warned.add(name)
            words = "evaluation split %r: %d of %d examples cannot be read and are skipped"
            log.warning(words, name, skipped, examples)
