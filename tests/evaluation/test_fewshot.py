import jax
import numpy as np
import pytest
import scipy.linalg

from vit_jax.evaluation.fewshot import accuracies, fit_ridge, precision, solve

TOLERANCE = {"float32": 2e-4, "float64": 1e-9}


def examples(count, width, classes=4, seed=0):
    """Features with different means and scales, and labels with different frequencies."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=count) * (rng.random(count) < 0.8)
    centres = rng.normal(size=(classes, width))
    scales = rng.uniform(0.5, 2, width)
    x = (centres[labels] + rng.normal(size=(count, width))) * scales + rng.normal(size=width)
    return x.astype(np.float32), labels.astype(np.int32)


def solve_by_scipy(x, labels, classes, l2, whiten, bias):
    """Returns weights for (x - mean) / std and offsets, from the stacked least-squares problem."""
    x = x.astype(np.float64)
    mean, std = (x.mean(0), x.std(0) + 1e-5) if whiten else (0, 1)
    z = (x - mean) / std
    if bias is not None:
        z = np.concatenate([z, np.full((len(z), 1), bias)], axis=1)
    y = 2 * np.eye(classes)[labels] - 1
    stacked = np.concatenate([z, np.sqrt(l2) * np.eye(z.shape[1])])
    targets = np.concatenate([y, np.zeros((z.shape[1], classes))])
    weights = scipy.linalg.lstsq(stacked, targets)[0]
    offset = np.zeros(classes) if bias is None else bias * weights[-1]
    return weights[: x.shape[1]], offset


def solve_here(x, labels, classes, l2, whiten, bias, dtype="float32"):
    path = fit_ridge(x, labels, num_classes=classes, whiten=whiten, bias=bias, dtype=dtype)
    with precision(dtype):
        found = solve(path, np.asarray(l2, dtype), whiten, bias)
        return tuple(np.asarray(part) for part in found)


def test_two_examples_of_one_feature_by_hand():
    # Targets of class 0: 1, -1. Its weight: (1 * 1 + -1 * -1) / (1 + 1 + l2) = 2 / 4.
    x, labels = np.array([[1.0], [-1.0]], np.float32), np.array([0, 1], np.int32)
    weights, offset = solve_here(x, labels, 2, l2=2.0, whiten=False, bias=None)
    np.testing.assert_allclose(weights, [[0.5, -0.5]], rtol=1e-6)
    np.testing.assert_array_equal(offset, [0, 0])


def test_whitened_features_with_a_bias_by_hand():
    # Mean 3, deviation 2: whitened 1, 1, -1, -1. Targets of class 0: 1, 1, 1, -1.
    x = np.array([[5.0], [5.0], [1.0], [1.0]], np.float32)
    labels = np.array([0, 0, 0, 1], np.int32)
    weights, offset = solve_here(x, labels, 2, l2=4.0, whiten=True, bias=10.0)
    # (1 + 1 - 1 + 1) / (4 + 4), and 10 * (10 * 2) / (100 * 4 + 4).
    np.testing.assert_allclose(weights, [[0.25, -0.25]], rtol=2e-5)
    np.testing.assert_allclose(offset, [200 / 404, -200 / 404], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bias", [None, 100.0])
@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("count", [12, 90], ids=["fewer than features", "more than features"])
def test_weights_equal_those_of_scipys_least_squares(count, whiten, bias, dtype):
    x, labels = examples(count, 30)
    for l2 in (0.5, 1024.0):
        wanted = solve_by_scipy(x, labels, 4, l2, whiten, bias)
        found = solve_here(x, labels, 4, l2, whiten, bias, dtype)
        for have, want in zip(found, wanted, strict=True):
            assert have.dtype == dtype
            np.testing.assert_allclose(have, want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_a_bias_of_100_costs_whitened_features_no_precision():
    # 1,000 examples: an eigenvalue of 1e7 beside those of the features, if it were one of them.
    x, labels = examples(1000, 20)
    wanted = solve_by_scipy(x, labels, 4, 0.01, True, 100.0)
    found = solve_here(x, labels, 4, 0.01, True, 100.0)
    for have, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(have, want, atol=1e-6)


@pytest.mark.parametrize("whiten", [True, False])
def test_accuracies_of_a_grid_equal_those_of_each_l2_alone(whiten):
    x, labels = examples(24, 30)
    queries, wanted = examples(5000, 30, seed=1)  # More than go to the device at a time.
    grid = [2.0**i for i in range(-4, 15, 3)]
    path = fit_ridge(x, labels, num_classes=4, whiten=whiten, bias=100.0)
    found = accuracies(path, queries, wanted, grid, whiten=whiten, bias=100.0)
    mean, std = (x.mean(0), x.std(0) + 1e-5) if whiten else (0, 1)
    for l2, accuracy in zip(grid, found, strict=True):
        weights, offset = solve_by_scipy(x, labels, 4, l2, whiten, 100.0)
        classes = ((queries - mean) / std @ weights + offset).argmax(1)
        assert abs(accuracy - (classes == wanted).mean()) <= 2 / 5000  # Ties by rounding.
    assert len(set(found)) > 3


def test_classes_with_no_or_one_example():
    x = np.eye(3, dtype=np.float32)
    labels = np.array([0, 2, 3], np.int32)
    path = fit_ridge(x, labels, num_classes=4, whiten=True, bias=100.0)
    assert accuracies(path, x, labels, [1.0], whiten=True, bias=100.0) == [1.0]


def test_float64_is_disabled_again():
    x, labels = examples(12, 5)
    fit_ridge(x, labels, num_classes=4, whiten=True, bias=None, dtype="float64")
    assert not jax.config.jax_enable_x64
    assert jax.numpy.asarray(1.0).dtype == "float32"
