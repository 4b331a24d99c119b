"""The losses of pairs of images and texts on one device, by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.tasks.image_text import totals
from vit_jax.tasks.image_text.losses import LOSSES, _ring, _rows, sigmoid_loss, softmax_loss

TWO = jnp.eye(2)
ONE, ZERO = jnp.float32(1), jnp.float32(0)


def embeddings(pairs=6, width=4, seed=0):
    draws = np.random.default_rng(seed).normal(size=(2, pairs, width))
    images, texts = draws / np.linalg.norm(draws, axis=-1, keepdims=True)
    return jnp.asarray(images, jnp.float32), jnp.asarray(texts, jnp.float32)


def test_softmax_loss_by_hand():
    """Logits t and 0: both cross-entropies are log(1 + e^-t)."""
    found = softmax_loss(TWO, TWO, jnp.float32(2), ZERO)
    assert float(found.loss) == pytest.approx(np.log1p(np.exp(-2.0)))
    assert float(found.accuracy) == 1
    swapped = softmax_loss(TWO, TWO[::-1], jnp.float32(2), ZERO)
    assert float(swapped.loss) == pytest.approx(np.log1p(np.exp(2.0)))
    assert float(swapped.accuracy) == 0


def test_sigmoid_loss_by_hand():
    """Pairs have the logit t + b, others b; there are as many of each."""
    found = sigmoid_loss(TWO, TWO, jnp.float32(3), jnp.float32(-1))
    assert float(found.loss) == pytest.approx(np.log1p(np.exp(-2.0)) + np.log1p(np.exp(-1.0)))
    assert float(found.accuracy) == 1


def test_equal_texts_count_as_found():
    """Two images may have the same caption."""
    images, texts = jnp.eye(3), jnp.stack([jnp.eye(3)[0], jnp.eye(3)[0], jnp.eye(3)[2]])
    for loss in LOSSES.values():
        # Image 1 has the similarity 0 to all texts.
        assert float(loss(images, texts, ONE, ZERO).accuracy) == 1
        assert float(loss(images, texts[::-1], ONE, ZERO).accuracy) == pytest.approx(1 / 3)


def plain(kind, images, texts, temperature, bias):
    """The formulas with the whole matrix."""
    logits = temperature * images @ texts.T + bias
    if kind == "sigmoid":
        signs = 2 * jnp.eye(len(images)) - 1
        return -jax.nn.log_sigmoid(signs * logits).sum() / len(images)
    rows = (jax.nn.log_softmax(logits, axis) for axis in (0, 1))
    return -sum(jnp.diagonal(row).mean() for row in rows) / 2


@pytest.mark.parametrize("kind", LOSSES)
def test_value_and_gradient_are_those_of_the_formula(kind):
    arguments = (*embeddings(), jnp.float32(5), jnp.float32(-3))
    every = (0, 1, 2, 3)
    got = jax.value_and_grad(lambda *a: 2 * LOSSES[kind](*a).loss, every)(*arguments)
    want = jax.value_and_grad(lambda *a: 2 * plain(kind, *a), every)(*arguments)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", LOSSES)
def test_two_devices_compute_the_loss_of_the_whole_batch(kind):
    """`vmap` stands in for two devices, each with three of the six pairs."""
    images, _ = embeddings(seed=106)
    # Images 0 and 4 find their texts. Those of 1 and 5 are beaten on their own device alone, and
    # those of 2 and 3 on the other one alone.
    texts = images[jnp.array([0, 3, 1, 5, 4, 2])]
    scalars = jnp.float32(5), jnp.float32(-3)
    on_devices = jax.vmap(
        partial(_rows if kind == "softmax" else _ring, ("devices",)),
        (0, 0, None, None),
        axis_name="devices",
    )
    losses, found, *gradients = on_devices(
        images.reshape(2, 3, -1), texts.reshape(2, 3, -1), *scalars
    )
    whole = float(plain(kind, images, texts, *scalars))
    assert float(losses.sum()) / 6 == pytest.approx(whole, rel=1e-5)
    assert found.ravel().tolist() == [True, False, False, False, True, False]
    if gradients:
        want = jax.grad(partial(plain, kind), (0, 1, 2, 3))(images, texts, *scalars)
        for ours, other in zip(gradients[0], want, strict=True):
            ours = ours.reshape(other.shape) if other.ndim else ours.sum()
            np.testing.assert_allclose(ours / 6, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("block", [4, 16, 100])
def test_recall_in_blocks_equals_that_of_the_whole_matrix(block, monkeypatch):
    monkeypatch.setattr(totals, "_BLOCK", block)
    rng = np.random.default_rng(0)
    queries, keys = (rng.standard_normal((37, 5)).astype(np.float32) for _ in range(2))
    order = np.argsort(-(queries @ keys.T), axis=1)
    expected = np.argmax(order == np.arange(37)[:, None], axis=1)
    np.testing.assert_array_equal(totals.keys_before_own(queries, keys), expected)


def test_equal_embeddings_are_chance():
    same = np.ones((50, 4), np.float32) / 2
    assert totals.keys_before_own(same, same).tolist() == list(range(50))
