"""Collapse: the metric by hand, over a split as over a batch."""

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.tasks.collapse import FeatureStd, direction_sums, feature_std


def test_the_metric_is_the_deviation_of_directions_scaled_by_the_width():
    features = np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32) + 0.5
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    want = np.sqrt(np.mean(unit.std(axis=0) ** 2)) * np.sqrt(8)
    assert float(feature_std(jnp.asarray(features))) == pytest.approx(want, rel=1e-5)
    nearly_equal = 5 + 1e-3 * features
    assert float(feature_std(jnp.asarray(nearly_equal))) < 0.02


def test_a_split_has_the_metric_of_one_batch():
    features = np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32)
    metric, totals = FeatureStd(), {}
    for start in (0, 8):
        rows = np.concatenate([features[start : start + 8], np.ones((8, 8), np.float32)])[:8]
        mask = np.arange(start, start + 8) < 12
        sums = direction_sums(jnp.asarray(rows), jnp.asarray(mask))
        totals = metric.add(totals, {name: np.asarray(value) for name, value in sums.items()})
    want = float(feature_std(jnp.asarray(features)))
    assert metric.value(totals) == pytest.approx(want, rel=1e-5)
