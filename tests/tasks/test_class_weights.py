"""The weighted loss against values computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from sklearn.utils.class_weight import compute_class_weight
from small_config import small_mapping

from vit_jax.config.run import Config
from vit_jax.data.sources import TfdsSource
from vit_jax.errors import DataError
from vit_jax.tasks.classification.task import Classification, class_weights
from vit_jax.tasks.task import DataInfo
from vit_jax.train.inputs import count_classes

LOGITS = np.array([[2.0, 0.0, -1.0], [0.5, 0.5, 0.0], [0.0, 1.0, 3.0]], np.float32)
WEIGHTS = np.array([0.5, 4.0, 1.0], np.float32)
LABELS = np.random.default_rng(0).permutation(np.repeat([0, 2, 3], [50, 7, 3]))


def test_balanced_weights_equal_those_of_scikit_learn():
    counts = np.bincount(LABELS)
    found = class_weights("balanced", counts)
    wanted = compute_class_weight("balanced", classes=np.array([0, 2, 3]), y=LABELS)
    np.testing.assert_allclose(found, [wanted[0], 0, wanted[1], wanted[2]], rtol=1e-6)


@pytest.mark.parametrize("kind", ["balanced", "sqrt"])
def test_weights_average_to_one_over_examples(kind):
    weights = class_weights(kind, np.bincount(LABELS))
    assert weights[LABELS].mean() == pytest.approx(1, abs=1e-6)


def test_sqrt_weights():
    found = class_weights("sqrt", np.array([4, 16]))
    np.testing.assert_allclose(found[0] / found[1], 2, rtol=1e-6)


class Fixed(nnx.Module):
    """Returns the same logits for all images."""

    def __init__(self):
        self.logits = nnx.Param(jnp.asarray(LOGITS))

    def __call__(self, images: jax.Array, key: jax.Array) -> jax.Array:
        return self.logits[...]


def loss_of(labels, weights, **loss):
    config = Config.from_mapping(small_mapping(loss=loss))
    graphdef, state = nnx.split(Fixed())
    batch = {"image": jnp.zeros((3, 2, 2, 3)), "label": jnp.asarray(labels)}
    with jax.numpy_dtype_promotion("standard"):
        task = Classification(config, DataInfo(3), platform="cpu")
        task.graphdef, task.weights = graphdef, weights
        return float(task.loss(nnx.to_pure_dict(state), batch, jax.random.key(0))[0])


def test_each_example_has_the_weight_of_its_class():
    labels = np.array([0, 1, 2], np.int32)
    chance = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    losses = -np.log(chance[np.arange(3), labels])
    wanted = (0.5 * losses[0] + 4.0 * losses[1] + 1.0 * losses[2]) / 3
    assert loss_of(labels, WEIGHTS) == pytest.approx(wanted, rel=1e-6)
    assert loss_of(labels, None) == pytest.approx(losses.mean(), rel=1e-6)


def test_a_mixed_example_is_weighted_by_its_labels():
    shares = np.array([[1, 0, 0], [0.25, 0.75, 0], [0, 0, 1]], np.float32)
    logs = LOGITS - np.log(np.exp(LOGITS).sum(axis=1, keepdims=True))
    losses = -(shares * logs).sum(axis=1)
    wanted = (0.5 * losses[0] + (0.25 * 0.5 + 0.75 * 4.0) * losses[1] + losses[2]) / 3
    assert loss_of(shares, WEIGHTS) == pytest.approx(wanted, rel=1e-6)


def test_label_smoothing_does_not_change_the_weight():
    labels = np.array([1, 1, 1], np.int32)
    assert loss_of(labels, WEIGHTS, label_smoothing=0.1) == pytest.approx(
        4 * loss_of(labels, None, label_smoothing=0.1), rel=1e-6
    )


def test_classes_are_counted_for_weights_only(digits_dir):
    source = TfdsSource("digits", "train[:100]", str(digits_dir))
    plain = Config.from_mapping(small_mapping())
    weighted = Config.from_mapping(small_mapping(loss__class_weights="balanced"))
    assert count_classes(plain, source, 10) is None
    counts = np.bincount(source.labels(), minlength=12)
    np.testing.assert_array_equal(count_classes(weighted, source, 12), counts)
    with pytest.raises(DataError, match=r"correct the number of classes"):
        count_classes(weighted, source, 5)
