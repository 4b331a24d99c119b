"""Facts about what the package registers: python -m pytest tests."""

import jax
import jax.numpy as jnp
import numpy as np
from mylab.augmentations import brightness
from mylab.losses import poly
from mylab.metrics import worst_class
from mylab.rotation import all_turns
from mylab.sources import shapes

import vit_jax


def test_the_poly_loss_by_hand():
    logits = jnp.log(jnp.array([[1.0, 3.0]]))  # Probabilities 1/4 and 3/4.
    targets = jnp.array([[0.0, 1.0]])
    np.testing.assert_allclose(poly(logits, targets, epsilon=0.0), [np.log(4 / 3)], rtol=1e-5)
    np.testing.assert_allclose(poly(logits, targets), [np.log(4 / 3) + 1 / 4], rtol=1e-5)


def test_each_image_gets_one_brightness():
    found = brightness(jnp.zeros((64, 2, 2, 3)), jax.random.key(0), max_change=0.5)
    amounts = found[:, 0, 0, 0]
    np.testing.assert_array_equal(
        found, jnp.broadcast_to(amounts[:, None, None, None], found.shape)
    )
    np.testing.assert_allclose([amounts.min(), amounts.max()], [-0.5, 0.5], atol=0.1)


def test_a_bag_does_not_know_where_its_patches_are():
    model = vit_jax.create_model("Bag-64/4", num_classes=10, image_size=8)
    model.head.linear.kernel.set_value(jnp.ones((64, 10)))
    image = np.random.default_rng(0).normal(size=(1, 8, 8, 3)).astype("float32")
    swapped = np.concatenate([image[:, 4:], image[:, :4]], axis=1)
    np.testing.assert_allclose(model(image), model(swapped), rtol=1e-4, atol=1e-5)
    assert np.abs(np.asarray(model(image))).max() > 0


def test_shapes_are_the_same_each_time_and_have_two_colours():
    train = shapes(None, "train", side=24)
    image, label = train[1]
    np.testing.assert_array_equal(image, shapes(None, "train", side=24)[1][0])
    assert (len(train), image.shape, train.class_names[label]) == (600, (24, 24, 3), "disc")
    assert len(np.unique(image.reshape(-1, 3), axis=0)) == 2


def test_the_worst_class_by_hand():
    logits = np.array([[1, 0], [1, 0], [0, 1], [1, 0]])  # Predictions 0, 0, 1, 0.
    assert worst_class(logits, np.array([0, 0, 1, 1])) == 0.5


def test_four_turns_are_none():
    image = jnp.arange(12.0).reshape(1, 2, 2, 3)
    turned = all_turns(image, 4)
    np.testing.assert_array_equal(turned[1][0, 0], image[0, :, 1])  # The right column, now on top.
    np.testing.assert_array_equal(all_turns(turned[3], 2)[1], image)
