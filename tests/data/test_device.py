import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.data.device import (
    cutmix,
    cutmix_box,
    erase,
    erased_boxes,
    flip,
    mix,
    mixup,
    to_unit_range,
)


def constant_images(values, side: int = 4) -> jax.Array:
    """One image per value, every pixel at it."""
    values = jnp.array(values, jnp.float32)[:, None, None, None]
    return jnp.broadcast_to(values, (len(values), side, side, 3))


def ramp_images(count: int, height: int = 2, width: int = 3) -> jax.Array:
    return jnp.arange(count * height * width * 3, dtype=jnp.float32).reshape(
        count, height, width, 3
    )


def share(value: float) -> jax.Array:
    return jnp.array(value, jnp.float32)


def test_unit_range_maps_0_and_255_to_exactly_minus_one_and_one():
    images = jnp.array([0, 51, 102, 153, 204, 255], jnp.uint8)[None, :, None, None]
    found = to_unit_range(jnp.broadcast_to(images, (1, 6, 1, 3)))
    assert found.dtype == jnp.float32
    assert found[0, 0, 0].tolist() == [-1.0] * 3
    assert found[0, 5, 0].tolist() == [1.0] * 3
    np.testing.assert_allclose(found[0, :, 0, 0], [-1, -0.6, -0.2, 0.2, 0.6, 1], atol=1e-6)


def test_flip_mirrors_half_of_the_images_left_to_right_and_leaves_the_rest():
    images = ramp_images(1000)
    found, again, other = (flip(images, jax.random.key(k)) for k in (0, 0, 1))
    same = np.all(found == images, axis=(1, 2, 3))
    mirrored = np.all(found == images[:, :, ::-1], axis=(1, 2, 3))
    assert (same ^ mirrored).all()
    # 500 expected, standard deviation 16.
    assert 430 < mirrored.sum() < 570
    np.testing.assert_array_equal(found, again)
    assert (found != other).any()


erase_compiled = jax.jit(erase, static_argnames="probability")


@pytest.fixture(scope="module")
def erased():
    """What is erased of 2000 images of 20 x 30, a quarter of them: bool[2000, 20, 30, 3]."""
    images = jnp.full((2000, 20, 30, 3), 7.0)
    return np.asarray(erase_compiled(images, jax.random.key(0), probability=0.25) != 7)


def test_a_quarter_of_the_images_is_erased_in_all_channels(erased):
    assert (erased == erased[..., :1]).all()
    # 500 expected, standard deviation 19.
    assert 425 < erased.any(axis=(1, 2, 3)).sum() < 575


def test_the_erased_rectangle_has_the_documented_area_and_aspect_ratio(erased):
    masks = erased[erased.any(axis=(1, 2, 3)), :, :, 0]
    heights, widths = masks.any(axis=2).sum(axis=1), masks.any(axis=1).sum(axis=1)
    np.testing.assert_array_equal(masks.sum(axis=(1, 2)), heights * widths)
    # Sides are rounded to whole pixels: half a pixel of slack each.
    assert ((heights + 0.5) * (widths + 0.5) >= 0.02 * 600).all()
    assert ((heights - 0.5) * (widths - 0.5) <= 0.33 * 600).all()
    assert ((heights + 0.5) / (widths - 0.5) >= 0.3).all()
    assert ((heights - 0.5) / (widths + 0.5) <= 3.3).all()
    # The area is uniform: 17.5 % on average, standard deviation 9 % / sqrt(500).
    assert abs((heights * widths).mean() / 600 - 0.175) < 0.02
    # Every pixel is erased in some image.
    assert masks.any(axis=0).all()


def test_noise_is_normal_around_imagenets_mean_and_differs_by_pixel_channel_and_image():
    images = jnp.full((64, 32, 32, 3), 7.0)
    found = np.asarray(erase_compiled(images, jax.random.key(1), probability=1.0))
    values = found[found != 7]
    by_channel = found.reshape(-1, 3)[(found != 7).all(axis=-1).ravel()]
    # Twice the mean minus 1, and twice the deviation.
    np.testing.assert_allclose(by_channel.mean(axis=0), [-0.03, -0.088, -0.188], atol=0.02)
    np.testing.assert_allclose(by_channel.std(axis=0), [0.458, 0.448, 0.45], atol=0.01)
    normal = (by_channel - by_channel.mean(axis=0)) / by_channel.std(axis=0)
    for limit, inside in ((1, 0.683), (2, 0.954), (3, 0.9973)):
        assert abs((np.abs(normal) < limit).mean() - inside) < 0.01
    assert values.max() > 1.2  # Beyond white, as there.
    for axis in (0, 3):
        one, other = np.split(found, 2, axis)[:2] if axis == 0 else (found[..., 0], found[..., 1])
        both = (one != 7) & (other != 7)
        assert abs(np.corrcoef(one[both], other[both])[0, 1]) < 0.05


def test_erasing_depends_only_on_the_key_and_changes_no_other_pixels():
    images = ramp_images(50, 16, 16)

    def erased(key, probability=0.5):
        return np.asarray(erase_compiled(images, jax.random.key(key), probability=probability))

    np.testing.assert_array_equal(erased(1), erased(1))
    assert (erased(1) != erased(2)).any()
    assert 0.8 < (erased(1) == np.asarray(images)).mean() < 0.97
    np.testing.assert_array_equal(erased(1, probability=0.0), images)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (1, 40)])
def test_the_smallest_images_keep_at_least_a_row_and_a_column(shape):
    tops, lefts, heights, widths = erased_boxes(100, *shape, jax.random.key(0))
    assert (np.asarray(tops + heights) <= shape[0]).all()
    assert (np.asarray(lefts + widths) <= shape[1]).all()
    assert (np.asarray(heights * widths) < shape[0] * shape[1]).all()


def test_mixup_blends_each_example_with_the_one_before_it():
    images, labels = mixup(constant_images([0.0, 4.0, 8.0]), jnp.eye(3), share(0.75))
    # 0.75 * 0 + 0.25 * 8, 0.75 * 4 + 0.25 * 0, 0.75 * 8 + 0.25 * 4.
    np.testing.assert_array_equal(images, constant_images([2.0, 3.0, 7.0]))
    expected = [[0.75, 0, 0.25], [0.25, 0.75, 0], [0, 0.25, 0.75]]
    np.testing.assert_array_equal(labels, expected)


@pytest.mark.parametrize("function", [mixup, cutmix])
def test_a_mixup_share_of_one_changes_nothing(function):
    key = () if function is mixup else (jax.random.key(0),)
    images = ramp_images(3)
    found, labels = function(images, jnp.eye(3), share(1), *key)
    np.testing.assert_array_equal(found, images)
    np.testing.assert_array_equal(labels, np.eye(3))


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
    labels = jnp.arange(count, dtype=jnp.int32)

    @jax.jit
    @jax.vmap
    def run(key):
        return mix(images, labels, num_classes=count + 1, key=key, **alphas)

    return zip(*map(np.asarray, run(jax.random.split(jax.random.key(0), times))), strict=True)


def test_without_mixing_images_and_labels_are_unchanged():
    images, labels = ramp_images(4), jnp.arange(4, dtype=jnp.int32)
    key = jax.random.key(0)
    found = mix(images, labels, num_classes=5, mixup_alpha=0.0, cutmix_alpha=0.0, key=key)
    assert found[0] is images
    assert found[1] is labels


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
    mixed = mix_often(images, times=4000, mixup_alpha=0.2, cutmix_alpha=0.0)
    shares = np.array([labels[0, 0] for _, labels in mixed])
    assert abs(shares.mean() - 0.5) < 0.03
    # Variance of Beta(a, a): 1 / (4 (2 a + 1)) = 1 / 5.6.
    assert abs(shares.var() - 0.1786) < 0.015
