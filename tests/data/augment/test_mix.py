import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.data.augment.mix import Mix, cutmix, cutmix_box, mixup


def constant_images(values, side: int = 4) -> jax.Array:
    """One image per value, every pixel at it."""
    values = jnp.array(values, jnp.float32)[:, None, None, None]
    return jnp.broadcast_to(values, (len(values), side, side, 3))


def share(value: float) -> jax.Array:
    return jnp.array(value, jnp.float32)


def test_mixup_blends_each_example_with_the_one_before_it():
    images, labels = mixup(constant_images([0.0, 4.0, 8.0]), jnp.eye(3), share(0.75))
    # 0.75 * 0 + 0.25 * 8, 0.75 * 4 + 0.25 * 0, 0.75 * 8 + 0.25 * 4.
    np.testing.assert_array_equal(images, constant_images([2.0, 3.0, 7.0]))
    expected = [[0.75, 0, 0.25], [0.25, 0.75, 0], [0, 0.25, 0.75]]
    np.testing.assert_array_equal(labels, expected)


def test_cutmix_pastes_one_box_of_the_previous_example_and_mixes_labels_by_area():
    originals = constant_images([0.0, 1.0, 2.0], side=16)
    keys = jax.random.split(jax.random.key(0), 20)
    run = jax.jit(jax.vmap(lambda key: cutmix(originals, jnp.eye(3), share(0.6), key)))
    found = run(keys)
    for images, labels in zip(*map(np.asarray, found), strict=True):
        pasted = images[1] == 0
        rows, columns = np.nonzero(pasted[:, :, 0])
        # A full rectangle, at the same place in every image.
        assert pasted[:, :, 0].sum() == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
        for own, before, image in zip([0, 1, 2], [2, 0, 1], images, strict=True):
            np.testing.assert_array_equal(image, np.where(pasted, before, own))
        kept = 1 - pasted.mean()
        assert 0 < kept < 1
        expected = kept * np.eye(3) + (1 - kept) * np.roll(np.eye(3), 1, axis=0)
        np.testing.assert_allclose(labels, expected, atol=1e-7)


def test_cutmix_box_has_sides_of_the_square_root_of_the_pasted_share():
    keys = jax.random.split(jax.random.key(0), 200)
    run = jax.jit(jax.vmap(lambda key: cutmix_box(12, 20, share(0.75), key)))
    masks = np.asarray(run(keys))
    heights, widths = masks.any(axis=2).sum(axis=1), masks.any(axis=1).sum(axis=1)
    # Half of 12 and of 20; less where the border cuts the box off.
    assert (heights.min(), heights.max()) == (3, 6)
    assert (widths.min(), widths.max()) == (5, 10)
    # Every pixel is inside some box.
    assert masks.any(axis=0).all()
    # A box of less than two pixels is empty.
    assert cutmix_box(12, 20, share(0.999), jax.random.key(3)).sum() == 0


def mix_often(images, times: int = 8, **alphas):
    """Images and labels of several keys; the labels are 0, 1, 2, ..."""
    count = images.shape[0]
    labels = jax.nn.one_hot(jnp.arange(count), count + 1)

    @jax.jit
    @jax.vmap
    def run(key):
        return Mix(**alphas)(images, labels, key)

    return zip(*map(np.asarray, run(jax.random.split(jax.random.key(0), times))), strict=True)


@pytest.fixture(scope="module")
def mixed_by_both():
    """400 mixed batches: class c is the image of constant c."""
    images = constant_images([0.0, 1.0, 2.0, 3.0], 8)
    return list(mix_often(images, times=400, mixup_alpha=0.8, cutmix_alpha=1.0))


def test_mixed_labels_are_distributions_over_the_two_mixed_classes(mixed_by_both):
    for images, labels in mixed_by_both[:20]:
        assert images.shape == (4, 8, 8, 3)
        assert labels.shape == (4, 5)
        assert images.dtype == labels.dtype == np.float32
        own, before = labels[range(4), range(4)], labels[range(4), [3, 0, 1, 2]]
        assert (labels >= 0).all()
        np.testing.assert_allclose(own + before, np.ones(4), rtol=1e-6)
        np.testing.assert_allclose(labels.sum(axis=1), np.ones(4), rtol=1e-6)
        # As classes are constants, labels @ classes is the mean pixel.
        mean = labels @ np.arange(5, dtype=np.float32)
        np.testing.assert_allclose(images.mean(axis=(1, 2, 3)), mean, atol=1e-5)
    # The share is drawn anew for each key.
    assert len({labels[0, 0] for _, labels in mixed_by_both[:20]}) > 15


def test_with_both_on_each_batch_uses_one_with_equal_probability(mixed_by_both):
    pasted = sum(np.isin(images, [0, 1, 2, 3]).all() for images, _ in mixed_by_both)
    # 200 expected, standard deviation 10.
    assert 155 < pasted < 245


def test_the_share_of_mixup_is_beta_distributed():
    images = constant_images([0.0, 1.0], 1)
    mixed = mix_often(images, times=4000, mixup_alpha=0.2)
    shares = np.array([labels[0, 0] for _, labels in mixed])
    assert abs(shares.mean() - 0.5) < 0.03
    # Variance of Beta(a, a): 1 / (4 (2 a + 1)) = 1 / 5.6.
    assert abs(shares.var() - 0.1786) < 0.015
