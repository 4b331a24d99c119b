import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import ConfigError
from vit_jax.losses import loss_class

LOGITS = jnp.asarray(
    [[0.0, np.log(3.0)], [np.log(4.0), 0.0]], jnp.float32
)  # [1/4, 3/4], [4/5, 1/5]
LABELS = jnp.asarray([1, 1], jnp.int32)


def make_loss(**section):
    return loss_class(section)(**section)


def test_softmax_by_hand():
    loss = make_loss()(LOGITS, LABELS)
    np.testing.assert_allclose(loss, [-np.log(3 / 4), -np.log(1 / 5)], rtol=1e-6)


def test_sigmoid_by_hand_sums_over_the_classes():
    loss = make_loss(name="sigmoid_cross_entropy")(LOGITS, LABELS)
    first = -np.log(1 / 2) - np.log(3 / 4)  # sigmoid(0) = 1/2, sigmoid(log 3) = 3/4
    second = -np.log(1 / 5) - np.log(1 / 2)  # 1 - sigmoid(log 4) = 1/5
    np.testing.assert_allclose(loss, [first, second], rtol=1e-6)


def test_the_mean_over_classes_and_binary_targets_by_hand():
    """The shares 3/4 and 1/4 of a mixed image become 1 and 1."""
    options = {"mean_over_classes": True, "binary_targets": True}
    loss = make_loss(name="sigmoid_cross_entropy", **options)
    mixed = loss(LOGITS[:1], jnp.asarray([[0.75, 0.25]]))
    np.testing.assert_allclose(mixed, [-(np.log(1 / 2) + np.log(3 / 4)) / 2], rtol=1e-6)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"mean_over_classes": True}, "set name=sigmoid_cross_entropy, which has it"),
        ({"binary_targets": True}, "unknown config key 'binary_targets' for softmax"),
        ({"name": "soft"}, "'name' is 'soft'; expected one of .*softmax"),
        (
            {"name": "sigmoid_cross_entropy", "binary_targets": True, "label_smoothing": 0.1},
            "makes every target positive",
        ),
    ],
)
def test_loss_options_that_do_not_fit_are_refused(section, words):
    with pytest.raises(ConfigError, match=words):
        make_loss(**section)


def test_label_smoothing_by_hand():
    """0.2 over two classes: targets 0.1 and 0.9."""
    loss = make_loss(label_smoothing=0.2)(LOGITS, LABELS)
    want = [-0.1 * np.log(1 / 4) - 0.9 * np.log(3 / 4), -0.1 * np.log(4 / 5) - 0.9 * np.log(1 / 5)]
    np.testing.assert_allclose(loss, want, rtol=1e-6)


@pytest.mark.parametrize("name", ["softmax_cross_entropy", "sigmoid_cross_entropy"])
def test_distributions_as_labels_equal_class_indices(name):
    loss = make_loss(name=name, label_smoothing=0.1)
    np.testing.assert_array_equal(loss(LOGITS, LABELS), loss(LOGITS, jnp.eye(2)[LABELS]))


def test_the_loss_of_bfloat16_logits_is_float32():
    loss = make_loss()(LOGITS.astype(jnp.bfloat16), LABELS)
    assert loss.dtype == jnp.float32
