"""One way from a source to its metrics: every example once, skipped ones counted, stops."""

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.config.mesh import MeshConfig
from vit_jax.data.arrays import ArraySpec, Preprocessing
from vit_jax.data.loader import BatchSpec
from vit_jax.data.sources.base import Example, Source
from vit_jax.errors import DataError
from vit_jax.evaluation.loop import StoppedError
from vit_jax.evaluation.measure import measure
from vit_jax.evaluation.metric_totals import MetricTotals
from vit_jax.evaluation.metrics import Mean, mean_sums
from vit_jax.parallel.mesh import make_mesh


class Numbers(Source):
    """Examples whose label is their index."""

    name, class_names, fingerprint = "numbers", (), "numbers"

    def __len__(self):
        return 11

    def __getitem__(self, index):
        return Example(b"", index, str(index))


def row(example, rng):
    if example.label in (3, 10):
        raise DataError(f"example {example.label}", "a good one", "leave it out")
    return {"value": example.label}


GOOD = Preprocessing(
    {"value": ArraySpec((), np.float32)}, lambda example, rng: {"value": example.label}
)
BAD = Preprocessing(GOOD.arrays, row)


def measured(preprocessing, on_bad_example="error", **options):
    def step(batch):
        assert set(batch) == {"value", "mask"}
        mask = batch["mask"]
        return {"mean": mean_sums(batch["value"], mask), "examples": jnp.sum(mask)}

    spec = BatchSpec(4, range(4), num_threads=0, on_bad_example=on_bad_example)
    totals, mesh = MetricTotals({"mean": Mean()}), make_mesh(MeshConfig())
    return measure(Numbers(), preprocessing, step, totals, spec=spec, mesh=mesh, **options)


def test_every_example_counts_once_and_skipped_ones_do_not():
    assert measured(GOOD) == {"mean": 55 / 11, "examples": 11}
    found = measured(BAD, "skip")
    assert found == {"mean": (55 - 3 - 10) / 9, "examples": 9, "skipped_examples": 2}
    with pytest.raises(DataError, match="example 3"):
        measured(BAD)


def test_it_stops_before_the_batch_at_which_it_is_asked_to():
    asked = []
    with pytest.raises(StoppedError):
        measured(GOOD, stop=lambda: bool(asked.append(0)) or len(asked) == 3)
    assert len(asked) == 3
    assert measured(GOOD, stop=lambda: False)["examples"] == 11
