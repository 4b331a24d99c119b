"""Intervals by hand, and of a normal distribution."""

import numpy as np
import pytest

from vit_jax.evaluation.intervals import (
    DRAWS,
    _resamples,
    in_random_order,
    interval,
    resample_means,
    wilson_interval,
)


def test_wilson_intervals():
    low, high = wilson_interval(0.5, 100)
    # (0.5 + z^2 / 200 -+ z sqrt(0.25 / 100 + z^2 / 40000)) / (1 + z^2 / 100), z = 1.959964
    assert (low, high) == (pytest.approx(0.403832, abs=1e-6), pytest.approx(0.596168, abs=1e-6))
    assert wilson_interval(0, 10) == (0, pytest.approx(0.277533, abs=1e-6))


def test_equal_images_are_drawn_together():
    values = np.random.default_rng(0).standard_normal((50, 2, 3))
    values[:, 1] = 5 - values[:, 0]
    means = resample_means(values, "x")
    assert means.shape == (DRAWS, 2, 3)
    np.testing.assert_allclose(means[:, 0] + means[:, 1], 5)
    np.testing.assert_array_equal(resample_means(values[:, 0], "x"), means[:, 0])
    assert not np.array_equal(resample_means(values, "y"), means)


def test_a_bootstrap_interval_is_that_of_the_mean():
    values = np.random.default_rng(0).normal(2, 1, 400)
    half = 1.96 * values.std() / 20
    want = (values.mean() - half, values.mean() + half)
    assert interval(resample_means(values, "all")) == pytest.approx(want, abs=0.01)
    assert interval(resample_means(np.ones(1), "all")) == (1, 1)


def test_draws_are_a_fixed_function_of_the_raw_bits_of_philox():
    """As NumPy 2.4 draws them; a later version may draw otherwise, and these stay."""
    sets = _resamples("a", 10)
    assert next(sets).tolist() == [9, 7, 8, 3, 7, 8, 6, 4, 0, 2]
    assert next(sets).tolist() == [6, 7, 8, 6, 0, 7, 4, 1, 6, 9]
    assert in_random_order(np.arange(10.0), "a").tolist() == [6, 4, 8, 1, 0, 9, 7, 2, 3, 5]
