import jax.numpy as jnp
import numpy as np
import pytest
from random_models import random_images

from vit_jax.errors import ModelError
from vit_jax.models.registry import create_model


def test_features_are_the_means_of_blocks():
    model = create_model("BlockMeans-2", num_classes=0, image_size=(4, 6))
    x = random_images(size=(4, 6))
    means = np.array(
        [[[i[r : r + 2, c : c + 3].mean((0, 1)) for c in (0, 3)] for r in (0, 2)] for i in x]
    )
    features, found = model(x, return_intermediates=("encoded",))
    np.testing.assert_allclose(found["encoded"], means, rtol=1e-6)
    np.testing.assert_array_equal(features, found["encoded"].reshape(2, 12))


def test_logits_are_linear_in_the_means():
    model = create_model("BlockMeans-8", num_classes=5, image_size=32)
    kernel = jnp.asarray(np.random.default_rng(0).normal(size=(192, 5)), jnp.float32)
    model.head.linear.kernel[...] = kernel
    x = random_images(size=(32, 32))
    features = model(x, return_intermediates=("pre_logits",))[1]["pre_logits"]
    assert features.shape == (2, 192)
    np.testing.assert_allclose(
        model(x), np.asarray(features) @ np.asarray(kernel), rtol=1e-5, atol=1e-6
    )


def test_a_size_that_blocks_do_not_divide_is_refused():
    with pytest.raises(ModelError, match="image size 30x30 with number of blocks 8"):
        create_model("BlockMeans-8", image_size=30)
