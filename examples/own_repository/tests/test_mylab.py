"""Facts about the family, the loss and the augmentation: python -m pytest tests."""

import jax
import jax.numpy as jnp
import numpy as np
from mylab.augmentations import noise
from mylab.losses import focal

import vit_jax


def test_the_focal_loss_by_hand():
    logits = jnp.log(jnp.array([[1.0, 3.0]]))  # Probabilities 1/4 and 3/4.
    targets = jnp.array([[0.0, 1.0]])
    np.testing.assert_allclose(focal(logits, targets, gamma=0.0), [np.log(4 / 3)], rtol=1e-5)
    np.testing.assert_allclose(focal(logits, targets), [np.log(4 / 3) / 16], rtol=1e-5)


def test_noise_has_its_deviation():
    found = noise(jnp.zeros((4, 32, 32, 3)), jax.random.key(0), deviation=0.5)
    np.testing.assert_allclose([found.mean(), found.std()], [0, 0.5], atol=0.02)


def test_a_bag_does_not_know_where_its_patches_are():
    model = vit_jax.create_model("Bag-64/4", num_classes=10, image_size=8)
    model.head.linear.kernel.set_value(jnp.ones((64, 10)))
    image = np.random.default_rng(0).normal(size=(1, 8, 8, 3)).astype("float32")
    swapped = np.concatenate([image[:, 4:], image[:, :4]], axis=1)
    np.testing.assert_allclose(model(image), model(swapped), rtol=1e-4, atol=1e-5)
    assert np.abs(np.asarray(model(image))).max() > 0
