"""Everything that a run needs before it opens its folder: data, program, evaluators.

Most mistakes in a config are found here, before anything is written.
"""

import dataclasses
import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from vit_jax.config.durations import duration_in_steps
from vit_jax.config.run import Config
from vit_jax.data.sources import (
    Source,
    TrainingData,
    class_count,
    open_training_data,
    with_subset_hash,
)
from vit_jax.errors import ConfigError, DataError
from vit_jax.evaluation.classification import prediction_metrics
from vit_jax.evaluation.frozen import FrozenEvaluator
from vit_jax.evaluation.metrics import OwnMetric
from vit_jax.evaluation.splits import SplitEvaluator
from vit_jax.parallel.mesh import make_mesh
from vit_jax.train.kernel_check import check_kernel
from vit_jax.train.program import Program, build_program

log = logging.getLogger(__name__)


class Evaluators:
    """The datasets that a run is evaluated on; tables are written to the folder `report`.

    Attributes:
        splits: evaluated at intervals and at the end.
        splits_every: steps between these evaluations; None: only at the end.
        final_splits: evaluated only at the end.
        of_task: evaluated together with `splits`; None: the task has nothing more.
        features: evaluates frozen features (few-shot, kNN, linear probe).
        features_every: steps between these evaluations; None: only at the end.
    """

    def __init__(self, config: Config, program: Program, trained: Source, report: Path):
        data, batch_size = config.data, eval_batch_size(config)
        evaluation = config.evaluation
        names = trained.class_names if config.task.uses_labels else ()
        options = {"report": report, "head": (names, f"the training split {data.train_split}")}
        self.splits = open_splits(config, program, evaluation.splits, **options)
        self.final_splits = open_splits(config, program, evaluation.final_splits, **options)
        open_evaluator = program.task.open_evaluator
        self.of_task = open_evaluator(program.mesh, batch_size) if open_evaluator else None
        if evaluation.has_interval and not (evaluation.splits or self.of_task):
            log.warning("evaluation.interval_* has no effect, because evaluation.splits is empty")
        self.features = FrozenEvaluator(
            config.fewshot,
            data,
            program.config.model,
            (data.image_size, data.image_size),
            program.mesh,
            batch_size=batch_size,
        )
        sizes = {"batch_size": data.global_batch_size, "num_examples": len(trained)}
        self.splits_every, self.features_every = (
            duration_in_steps(section, "interval", **sizes)
            for section in (evaluation, config.fewshot)
        )


def eval_batch_size(config: Config) -> int:
    """Returns the number of images per batch of an evaluation, over all hosts."""
    return config.evaluation.batch_size or config.data.global_batch_size


def open_splits(
    config: Config, program: Program, splits: Mapping[str, str], **options: Any
) -> SplitEvaluator:
    """Opens splits, to evaluate them with a program; `options` are those of `SplitEvaluator`."""
    return SplitEvaluator(
        config.data,
        splits,
        program.mesh,
        batch_size=eval_batch_size(config),
        num_classes=program.task.num_outputs,
        preprocessing=program.task.eval_preprocessing,
        make_totals=program.task.totals,
        variants=program.evaluated_variants,
        **options,
    )


@dataclasses.dataclass(frozen=True)
class RunInputs:
    """What a run needs before it opens its folder."""

    config: Config  # with the hash of the training subset
    program: Program
    attention: dict[str, Any] | None  # content of attention.json; None: the run has no such file
    training: TrainingData
    evaluators: Evaluators


def open_inputs(config: Config, workdir: Path, program: Program | None = None) -> RunInputs:
    """Opens the datasets of a run and builds its program, if it is None. Writes nothing."""
    training = open_training_data(config.data)
    source, config = training.source, with_subset_hash(config, training)
    num_classes = class_count(source, config.data.num_classes)
    check_metrics(config, num_classes)
    build = functools.partial(
        build_program,
        mesh=make_mesh(config.mesh) if program is None else program.mesh,
        num_classes=num_classes,
        num_examples=len(source),
        class_counts=count_classes(config, source, num_classes),
        source=source,
    )
    program = program or build(config)
    attention = check_kernel(program, workdir)
    if attention is not None and attention["kernel"] == "xla":
        program = build(config.replace(model=config.model.with_xla_attention()))
    report = workdir.expanduser() / "report"
    evaluators = Evaluators(config, program, source, report)
    return RunInputs(config, program, attention, training, evaluators)


def count_classes(config: Config, source: Source, num_classes: int) -> Int[np.ndarray, " C"] | None:
    """Returns the training examples of each class; None if the task does not need them."""
    key = config.task.class_counts_key(config)
    if key is None:
        return None
    labels = source.labels().astype(np.int64)
    good = (labels >= 0) & (labels < num_classes)
    if not good.all() and config.data.on_bad_example == "error":
        bad = int(np.flatnonzero(~good)[0])
        raise DataError(
            f"label {labels[bad]} of example {bad} of {source.name}",
            f"0 to {num_classes - 1}",
            "repair the dataset, or correct the number of classes: its class_names or"
            " data.num_classes",
        )
    return np.bincount(labels[good], minlength=num_classes)


def check_metrics(config: Config, num_classes: int) -> None:
    """Raises an error for a metric that fails, or that a run chooses by but does not measure."""
    if not config.task.reads_loss:
        return
    measured = prediction_metrics(
        num_classes, config.evaluation.metrics, by_class=config.measures_classes(num_classes)
    )
    absent = [name for name in config.evaluation.metrics if name not in measured]
    if absent:
        raise ConfigError(
            f"has {absent[0]!r}, which is not measured with {num_classes} classes",
            "metrics of so many classes",
            "leave it out",
            key="evaluation.metrics",
        )
    for own in measured.values():
        if isinstance(own, OwnMetric):
            own.try_out(num_classes)
    metric = config.early_stopping.metric
    if metric is None:
        return
    if metric.rpartition("/")[2] not in measured:
        top5 = metric.endswith("top5")
        raise ConfigError(
            f"is {metric!r}, which is not measured with {num_classes} classes",
            "a metric of the run",
            "choose by accuracy_top1" if top5 else "set evaluation.by_class=true",
            key="early_stopping.metric",
        )
