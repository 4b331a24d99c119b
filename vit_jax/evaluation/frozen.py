"""Evaluates frozen features: opens the datasets, extracts features and runs the methods."""

import dataclasses
import functools
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.sharding import Mesh

from vit_jax.config.data import DataConfig, SubsetConfig
from vit_jax.config.fewshot import FewshotConfig, FewshotDatasetConfig
from vit_jax.data.arrays import labelled_image
from vit_jax.data.cache import cached
from vit_jax.data.loader import batch_spec
from vit_jax.data.sources import Source, open_source
from vit_jax.data.transforms import Transform, make_eval_transform
from vit_jax.errors import DataError, other_data
from vit_jax.evaluation.draws import check_shots
from vit_jax.evaluation.features import (
    Features,
    FeatureTotals,
    build_feature_extractor,
    resample_params,
)
from vit_jax.evaluation.loop import StoppedError
from vit_jax.evaluation.measure import measure
from vit_jax.evaluation.methods import Splits, run_methods
from vit_jax.models.options import ModelConfig
from vit_jax.parallel.mesh import check_batch_size, host_rows
from vit_jax.parallel.processes import on_first_host

log = logging.getLogger(__name__)

# The first host runs the methods. The other hosts wait for it at most this long.
_SOLVING_TIMEOUT_S = 24 * 3600.0


@dataclasses.dataclass(frozen=True)
class _Dataset:
    """An open dataset."""

    name: str  # in the metrics
    sources: dict[str, Source]  # "train", "test" and, if it is a separate split, "held_out"
    transform: Transform
    image_size: int  # height and width of the model's input


class FrozenEvaluator:
    """Evaluates the frozen features of a model on the datasets of a fewshot section.

    Args:
        config: the fewshot section.
        data: the data section of the run; its `data_dir` is the default for the datasets.
        options: the model section.
        image_size: (height, width) of the model's parameters.
        mesh: devices.
        batch_size: images per batch over all hosts, unless the fewshot section sets it.

    Attributes:
        details: dataset -> method -> how its hyperparameter was chosen in the last call; only on
            the first host.
    """

    def __init__(
        self,
        config: FewshotConfig,
        data: DataConfig,
        options: ModelConfig,
        image_size: tuple[int, int],
        mesh: Mesh,
        *,
        batch_size: int,
    ):
        self._config, self._mesh, self._cache_mb = config, mesh, data.cache_mb
        batch_size = config.batch_size or batch_size
        self.details: dict[str, Any] = {}
        if not config.datasets:
            self._datasets: list[_Dataset] = []
            return
        check_batch_size(mesh, batch_size, "fewshot.batch_size")
        spec = batch_spec(data, batch_size, host_rows(mesh, batch_size))
        self._measure = functools.partial(measure, spec=spec, mesh=mesh)
        build = functools.cache(
            lambda size: build_feature_extractor(options, size, config.features, mesh)
        )
        self._own = build(image_size)
        self._datasets = []
        for name, dataset in config.datasets.items():
            with other_data(f"few-shot dataset {name!r}"):
                self._datasets.append(_open_dataset(name, dataset, data, image_size))
                self._check_classes(self._datasets[-1])
        self._models = {d.image_size: build((d.image_size, d.image_size)) for d in self._datasets}

    def __call__(
        self, params: Any, stop: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """Runs all methods on all datasets. `stop` is called before each batch.

        Returns:
            "fewshot/NAME/SHOTS_shot/...", "knn/NAME/...", "linear_probe/NAME/..." -> value, the
            same on all hosts; None if `stop` ended the evaluation.
        """
        metrics: dict[str, float] = {}
        for dataset in self._datasets:
            begin = time.perf_counter()
            try:
                with other_data(f"few-shot dataset {dataset.name!r}"):
                    splits, skipped = self._extract_splits(dataset, params, stop)
            except StoppedError:
                return None
            details: dict[str, Any] = {"skipped_examples": skipped} if skipped else {}
            details["features_s"] = time.perf_counter() - begin
            metrics |= on_first_host(
                "few-shot evaluation",
                lambda d=dataset, s=splits, more=details: self._run_methods(d, s, more),
                _SOLVING_TIMEOUT_S,
            )
        return metrics

    def _run_methods(
        self, dataset: _Dataset, splits: Splits, more: dict[str, Any]
    ) -> dict[str, float]:
        """Returns the metrics of the methods; `more` is for the details of the dataset."""
        begin = time.perf_counter()
        metrics, details = run_methods(splits, self._config, dataset.name)
        details |= more
        details["solving_s"] = time.perf_counter() - begin
        details["images"] = {name: len(source) for name, source in dataset.sources.items()}
        self.details[dataset.name] = details
        log.info(
            "%s: features of %s images in %.1f s, %s in %.1f s",
            dataset.name,
            f"{sum(details['images'].values()):,}",
            details["features_s"],
            ", ".join(self._config.methods),
            details["solving_s"],
        )
        return metrics

    def _check_classes(self, dataset: _Dataset) -> None:
        """Raises DataError if a class has too few examples, before features are extracted."""
        train, test = dataset.sources["train"], dataset.sources["test"]
        if "least_squares" not in self._config.methods:
            return
        chooses = self._config.l2 is None and "held_out" not in dataset.sources
        check_shots(
            _class_counts(train),
            _class_counts(test),
            train.class_names,
            max(self._config.shots),
            held_out=int(chooses),
            dataset=train.name,
        )

    def _extract_splits(
        self, dataset: _Dataset, params: Any, stop: Callable[[], bool]
    ) -> tuple[Splits, dict[str, float]]:
        """Returns the features, and split -> number of its examples that cannot be read, if any."""
        model, size = self._models[dataset.image_size], dataset.image_size
        fitted = resample_params(params, self._own, model, self._mesh)
        features: dict[str, Features] = {}
        skipped: dict[str, float] = {}
        for split, source in dataset.sources.items():
            totals = FeatureTotals(len(source))
            preprocessing = labelled_image(dataset.transform, size, len(source.class_names))
            kept, step = cached(source, self._cache_mb), functools.partial(model.step, fitted)
            found = self._measure(kept, preprocessing, step, totals, stop=stop)
            features[split] = totals.features()
            if "skipped_examples" in found:
                skipped[split] = found["skipped_examples"]
        train, held_out = dataset.sources["train"], features.get("held_out")
        names, name = train.class_names, train.name
        return Splits(features["train"], features["test"], held_out, names, name), skipped


def _class_counts(source: Source) -> np.ndarray:
    """Returns the number of examples of each class; labels out of range are not counted."""
    labels, num_classes = np.asarray(source.labels(), np.int64), len(source.class_names)
    return np.bincount(labels[(labels >= 0) & (labels < num_classes)], minlength=num_classes)


def _open_dataset(
    name: str, dataset: FewshotDatasetConfig, data: DataConfig, image_size: tuple[int, int]
) -> _Dataset:
    side = dataset.image_size
    if side is None and image_size[0] != image_size[1]:
        raise DataError(
            f"no image_size, and the model's {image_size[0]}x{image_size[1]} is not square",
            "a size in pixels",
            "set its image_size",
        )
    own = data.replace(
        source=dataset.source,
        name=dataset.name,
        data_dir=dataset.data_dir or data.data_dir,
        train_split=dataset.train_split,
        subset=SubsetConfig(),
        image_key=dataset.image_key,
        label_key=dataset.label_key,
        label_rule=None,
        num_classes=None,
        image_size=side or image_size[0],
    )
    wanted = {"train": dataset.train_split, "test": dataset.test_split}
    if dataset.held_out_split is not None:
        wanted["held_out"] = dataset.held_out_split
    sources: dict[str, Source] = {key: open_source(own, split) for key, split in wanted.items()}
    for key in ("train", "held_out"):
        if key in sources and sources[key].fingerprint == sources["test"].fingerprint:
            raise DataError(
                f"split {wanted[key]!r} is also the test split",
                "different splits",
                "change train_split, held_out_split or test_split",
            )
    transform = make_eval_transform(
        own.image_size,
        dataset.crop,
        central_fraction=dataset.central_fraction,
        antialias=dataset.antialias,
    )
    return _Dataset(name, sources, transform, own.image_size)
