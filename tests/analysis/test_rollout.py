"""Rollout by hand, in NumPy, and for every pooling."""

import jax
import numpy as np
import numpy_reference as reference
import pytest
from flax import nnx
from random_models import random_images, random_model, run

from vit_jax.analysis import attention_rollout, rollout
from vit_jax.errors import ModelError

TINY = {"width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}


def in_numpy(weights):
    """[L, N, N] -> [N, N], the last layer leftmost."""
    product = np.eye(weights.shape[-1])
    for layer in np.asarray(weights, np.float64):
        product = (0.5 * layer + 0.5 * np.eye(len(layer))) @ product
    return product


def test_two_tokens_by_hand():
    # First layer: both attend to token 0; second layer: both attend to token 1.
    first, second = [[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]
    found = rollout(np.asarray([[first], [second]], np.float32))
    # [[.5, .5], [0, 1]] @ [[1, 0], [.5, .5]]
    np.testing.assert_allclose(found[0], [[0.75, 0.25], [0.5, 0.5]])
    alone = np.broadcast_to(np.eye(5, dtype=np.float32), (4, 2, 5, 5))
    np.testing.assert_array_equal(rollout(alone), alone[0])


@pytest.mark.parametrize("pooling", ["token", "map", "flatten"])
def test_the_rollout_of_a_model_equals_numpy(pooling):
    model = random_model("ViT-Ti/4", image_size=(8, 12), pooling=pooling, num_registers=2, **TINY)
    pixels = random_images(3, (8, 12))
    found = attention_rollout(model, pixels, batch_size=2)
    _, captured = run(model, pixels, return_intermediates=("attention_weights", "encoded"))
    heads = np.asarray(captured["attention_weights"], np.float64).mean(2)
    np.testing.assert_allclose(found.matrices.sum(-1), 1, rtol=1e-5)
    first = 3 if pooling == "token" else 2
    for image in range(3):
        want = in_numpy(heads[:, image])
        np.testing.assert_allclose(found.matrices[image], want, rtol=1e-4, atol=1e-7)
        row = want[0] if pooling == "token" else want[first:].mean(0)
        if pooling == "map":
            p = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model.attention_pooling)))
            row = probe_weights(np.asarray(captured["encoded"])[image, first:], p) @ want[first:]
        np.testing.assert_allclose(found.maps[image], row[first:].reshape(2, 3), rtol=1e-3)
    assert found.maps.shape == (3, 2, 3)
    assert (found.maps.sum((1, 2)) < 1).all()


def probe_weights(tokens, p):
    """Attention of the probe of an attention pooling to each token, mean over heads."""
    probe, heads = p["probe"][0, 0], p["query"]["kernel"].shape[1]
    each = []
    for h in range(heads):
        q = probe @ p["query"]["kernel"][:, h] + p["query"]["bias"][h]
        k = tokens @ p["key"]["kernel"][:, h] + p["key"]["bias"][h]
        each.append(reference.softmax(k @ q / np.sqrt(len(q))))
    return np.mean(each, 0)


def test_without_prefix_tokens_a_map_sums_to_one():
    model = random_model("ViT-Ti/4", image_size=8, pooling="gap", scan=False, **TINY)
    found = attention_rollout(model, random_images(2, 8))
    np.testing.assert_allclose(found.maps.sum((1, 2)), 1, rtol=1e-5)
    assert found.view == "mean of the patches"


def test_the_rollout_of_a_resnet_is_an_error():
    with pytest.raises(ModelError, match=r"rollout of a ResNet.*choose filters"):
        attention_rollout(random_model("BiT-R-Nano"), random_images(1))
