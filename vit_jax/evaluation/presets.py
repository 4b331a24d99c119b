"""Evaluates any weights on the test sets that papers print, see `data.benchmarks`."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from vit_jax.config.data import DataConfig
from vit_jax.config.mesh import MeshConfig
from vit_jax.data.benchmarks import (
    BENCHMARKS,
    NUM_CLASSES,
    OpenBenchmark,
    benchmark_images,
    check_classes,
    find_benchmark,
    open_benchmark,
)
from vit_jax.data.decode import ImageData
from vit_jax.data.device import Batch, to_unit_range
from vit_jax.data.loader import batch_spec
from vit_jax.data.preprocess import preprocess_of
from vit_jax.errors import ConfigError, DataError, ModelError, nearest
from vit_jax.evaluation.classification import (
    PredictionTotals,
    benchmark_predictions,
    example_outputs,
    prediction_metrics,
)
from vit_jax.evaluation.features import shard_params
from vit_jax.evaluation.intervals import wilson_interval
from vit_jax.evaluation.loop import BatchStep
from vit_jax.evaluation.measure import measure
from vit_jax.evaluation.metrics import Metric
from vit_jax.interop.load import Loaded
from vit_jax.models.activation_sharding import with_mesh
from vit_jax.parallel.mesh import check_batch_size, host_rows

ALL, TABLE_2 = "all", "table2"
# Columns of Table 2 of arXiv:2010.11929: title -> preset, or the stage of configs/transfer.py.
_TABLE_2 = {
    "ImageNet": "imagenet",
    "ImageNet ReaL": "imagenet_real",
    "CIFAR-10": "transfer.py:cifar10,test",
    "CIFAR-100": "transfer.py:cifar100,test",
    "Oxford-IIIT Pets": "transfer.py:pets,test",
    "Oxford Flowers-102": "transfer.py:flowers,test",
    "VTAB (19 tasks)": "transfer.py:vtab_NAME,test",
}


@dataclasses.dataclass(frozen=True)
class Score:
    """One row of the table."""

    title: str  # of the test set in papers
    preset: str | None  # None: a column that needs fine-tuning
    accuracy: float | None = None  # top-1; None: not measured
    interval: tuple[float, float] | None = None  # Wilson's 95 % interval over images
    accuracy_top5: float | None = None
    examples: int = 0  # number of images that count
    note: str = ""  # why it was not measured


def preset_rows(given: Sequence[str]) -> dict[str, str]:
    """Returns title -> preset, or a recipe of configs/, for names on a command line.

    The names are keys of `BENCHMARKS`, also with a slice; "all"; "table2".

    >>> preset_rows(["imagenet_v2[:1%]"])
    {'ImageNet V2[:1%]': 'imagenet_v2[:1%]'}
    """
    rows: dict[str, str] = {}
    for name in given:
        if name == TABLE_2:
            rows |= _TABLE_2
        elif name == ALL:
            rows |= {chosen.title: preset for preset, chosen in BENCHMARKS.items()}
        elif (preset := find_benchmark(name)) is not None:
            rows[BENCHMARKS[preset[0]].title + preset[1]] = name
        else:
            known = [*BENCHMARKS, ALL, TABLE_2]
            raise ConfigError(
                f"unknown preset {name!r}",
                f"one of {', '.join(known)}",
                f"did you mean {nearest(name, known)!r}?",
            )
    return rows


def evaluate_presets(
    loaded: Loaded,
    rows: Mapping[str, str],
    *,
    checkpoint: str,
    data_dir: str | None,
    mesh: Mesh,
    batch_size: int,
    needs_all: bool,
) -> list[Score]:
    """Evaluates weights on the test sets of `preset_rows`; opens all of them first.

    With `needs_all`, a missing dataset is an error. Otherwise its row says so, unless all are
    missing. `checkpoint` is an address, for the notes.
    """
    side, width = loaded.image_size
    if side != width:
        raise ModelError(f"image size {side}x{width}", "a square image", "give --image_size")
    presets = {p: found for p in rows.values() if (found := find_benchmark(p)) is not None}
    for preset in presets:
        check_classes(loaded.num_classes, preset)
    check_batch_size(mesh, batch_size, "evaluation.batch_size")
    preprocess = preprocess_of(loaded.model)
    data = DataConfig(
        name="imagenet2012", data_dir=data_dir, global_batch_size=batch_size, image_size=side
    )

    def transform(image: ImageData, rng: np.random.Generator) -> np.ndarray:
        del rng
        return preprocess.pixels(image)

    opened: dict[str, OpenBenchmark] = {}
    missing: dict[str, DataError] = {}
    for preset, (name, part) in presets.items():
        try:
            opened[preset] = open_benchmark(name, data, part)
        except DataError as error:
            if needs_all:
                raise
            missing[preset] = error
    if missing and not opened:
        raise next(iter(missing.values()))
    metrics = prediction_metrics(NUM_CLASSES)
    step = _make_step(loaded, metrics, mesh)
    spec = batch_spec(data, batch_size, host_rows(mesh, batch_size))

    def score(title: str, preset: str) -> Score:
        if preset in opened:
            source, totals = opened[preset].source, PredictionTotals(metrics)
            images = benchmark_images(opened[preset], transform, side)
            found = measure(source, images, step, totals, spec=spec, mesh=mesh)
            top1, top5, count = (found[k] for k in ("accuracy_top1", "accuracy_top5", "examples"))
            return Score(title, preset, top1, wilson_interval(top1, int(count)), top5, int(count))
        if preset in missing:
            return Score(title, preset, note=f"{missing[preset].got}; {missing[preset].fix}")
        note = f"needs fine-tuning: train --config=configs/{preset} --config.init_from={checkpoint}"
        return Score(title, None, note=note)

    return [score(title, preset) for title, preset in rows.items()]


def _make_step(loaded: Loaded, metrics: Mapping[str, Metric], mesh: Mesh) -> BatchStep:
    """Returns the jitted step of an evaluation, with the weights on the devices."""
    graphdef, state = nnx.split(loaded.model)

    def eval_step_fn(params: Any, batch: Batch) -> dict[str, Any]:
        logits = nnx.merge(graphdef, params)(to_unit_range(batch["image"]))
        labels = (batch["right"], batch["among"], batch["mask"])
        return example_outputs(benchmark_predictions(logits, *labels), metrics)

    params = shard_params(nnx.to_pure_dict(state), MeshConfig(), mesh)
    return functools.partial(jax.jit(with_mesh(eval_step_fn, mesh)), params)
