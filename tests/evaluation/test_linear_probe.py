import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from vit_jax.evaluation.linear_probe import probe_accuracies, train_by_gradient, train_by_lbfgs

pytestmark = pytest.mark.usefixtures("optax_promotes")
STRENGTHS = [0.001, 0.1]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 10))
    labels = rng.integers(4, size=1500).astype(np.int32)
    return (2 + centres[labels] + 1.5 * rng.normal(size=(1500, 10))).astype(np.float32), labels


def objective(kernel, intercept, x, labels, strength):
    logits = x.astype(np.float64) @ kernel + intercept
    logits -= logits.max(1, keepdims=True)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(x)), labels]
    return losses.mean() + np.square(kernel).sum() / (2 * strength * len(x))


def test_minibatch_training_reaches_the_weights_of_scikit_learn(data):
    x, labels = data
    mean, std = x.mean(0), x.std(0)
    kernels, intercepts = train_by_gradient(x, labels, STRENGTHS, 4, mean, std, seed=0)
    scaled = (x - mean) / std
    wanted, offsets = train_by_lbfgs(scaled, labels, STRENGTHS, 4)
    for i, strength in enumerate(STRENGTHS):
        have = objective(kernels[i], intercepts[i], scaled, labels, strength)
        want = objective(wanted[i], offsets[i], scaled, labels, strength)
        zero = objective(np.zeros((10, 4)), np.zeros(4), scaled, labels, strength)
        assert want <= have < want + 1e-3 * (zero - want)


def test_accuracies_equal_those_of_scikit_learn(data):
    x, labels = data
    options = {"num_classes": 5, "by_gradient": False, "seed": 0}  # One never seen.
    found = probe_accuracies(x[:1000], labels[:1000], x[1000:], labels[1000:], STRENGTHS, **options)
    mean, std = x[:1000].mean(0), x[:1000].std(0)
    for accuracy, strength in zip(found, STRENGTHS, strict=True):
        model = LogisticRegression(C=strength, max_iter=1000)
        model.fit((x[:1000] - mean) / std, labels[:1000])
        wanted = model.score((x[1000:] - mean) / std, labels[1000:])
        assert accuracy == pytest.approx(wanted, abs=1 / 500)
        assert accuracy > 0.6


@pytest.mark.parametrize("seen", [[2], [1, 3]])
def test_training_examples_of_one_or_two_of_four_classes(data, seen):
    x, labels = data
    own = np.isin(labels, seen)
    options = {"num_classes": 4, "by_gradient": False, "seed": 0}
    found = probe_accuracies(x[own], labels[own], x[own], labels[own], [1.0], **options)
    assert found[0] > 0.8
    others = probe_accuracies(x[own], labels[own], x[~own], labels[~own], [1.0], **options)
    assert others[0] == 0
