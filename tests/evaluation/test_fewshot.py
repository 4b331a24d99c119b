import numpy as np
import pytest
import scipy.linalg

from vit_jax.evaluation.fewshot import accuracies, fit_ridge, solve

BIAS = 100


def examples(count, width, classes=4, seed=0):
    """Features with different means and scales, and labels with different frequencies."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=count) * (rng.random(count) < 0.8)
    centres = rng.normal(size=(classes, width))
    scales = rng.uniform(0.5, 2, width)
    x = (centres[labels] + rng.normal(size=(count, width))) * scales + rng.normal(size=width)
    return x.astype(np.float32), labels.astype(np.int32)


def solve_by_scipy(x, labels, classes, l2):
    """Returns weights for (x - mean) / std and offsets, from the stacked least-squares problem."""
    x = x.astype(np.float64)
    z = (x - x.mean(0)) / (x.std(0) + 1e-5)
    z = np.concatenate([z, np.full((len(z), 1), BIAS)], axis=1)
    y = 2 * np.eye(classes)[labels] - 1
    stacked = np.concatenate([z, np.sqrt(l2) * np.eye(z.shape[1])])
    targets = np.concatenate([y, np.zeros((z.shape[1], classes))])
    weights = scipy.linalg.lstsq(stacked, targets)[0]
    return weights[:-1], BIAS * weights[-1]


def solve_here(x, labels, classes, l2):
    return tuple(map(np.asarray, solve(fit_ridge(x, labels, classes), np.float32(l2))))


def test_four_examples_of_one_feature_by_hand():
    # Mean 3, deviation 2: whitened 1, 1, -1, -1. Targets of class 0: 1, 1, 1, -1.
    x = np.array([[5.0], [5.0], [1.0], [1.0]], np.float32)
    labels = np.array([0, 0, 0, 1], np.int32)
    weights, offset = solve_here(x, labels, 2, l2=4.0)
    # (1 + 1 - 1 + 1) / (4 + 4), and 100 * (100 * 2) / (10,000 * 4 + 4).
    np.testing.assert_allclose(weights, [[0.25, -0.25]], rtol=2e-5)
    np.testing.assert_allclose(offset, [20_000 / 40_004, -20_000 / 40_004], rtol=1e-6)


@pytest.mark.parametrize("count", [12, 90], ids=["fewer than features", "more than features"])
def test_weights_equal_those_of_scipys_least_squares(count):
    x, labels = examples(count, 30)
    for l2 in (0.5, 1024.0):
        wanted = solve_by_scipy(x, labels, 4, l2)
        for have, want in zip(solve_here(x, labels, 4, l2), wanted, strict=True):
            assert have.dtype == np.float32
            np.testing.assert_allclose(have, want, atol=2e-4, rtol=2e-4)


def test_a_bias_of_100_costs_whitened_features_no_precision():
    # 1,000 examples: an eigenvalue of 1e7 beside those of the features, if it were one of them.
    x, labels = examples(1000, 20)
    wanted = solve_by_scipy(x, labels, 4, 0.01)
    for have, want in zip(solve_here(x, labels, 4, 0.01), wanted, strict=True):
        np.testing.assert_allclose(have, want, atol=1e-6)


def test_accuracies_of_a_grid_equal_those_of_each_l2_alone():
    x, labels = examples(24, 30)
    queries, wanted = examples(5000, 30, seed=1)  # More than go to the device at a time.
    grid = [2.0**i for i in range(-4, 15, 3)]
    found = accuracies(fit_ridge(x, labels, 4), queries, wanted, grid)
    for l2, accuracy in zip(grid, found, strict=True):
        weights, offset = solve_by_scipy(x, labels, 4, l2)
        classes = ((queries - x.mean(0)) / (x.std(0) + 1e-5) @ weights + offset).argmax(1)
        assert abs(accuracy - (classes == wanted).mean()) <= 2 / 5000  # Ties by rounding.
    assert len(set(found)) > 3


def test_classes_with_no_or_one_example():
    x = np.eye(3, dtype=np.float32)
    labels = np.array([0, 2, 3], np.int32)
    assert accuracies(fit_ridge(x, labels, 4), x, labels, [1.0]) == [1.0]
