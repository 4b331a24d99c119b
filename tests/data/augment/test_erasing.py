import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.data.augment.erasing import Erasing, erased_boxes


@functools.partial(jax.jit, static_argnames="probability")
def erase(images, key, *, probability):
    return Erasing(probability=probability)(images, key)


@pytest.fixture(scope="module")
def erased():
    """What is erased of 2000 images of 20 x 30, a quarter of them: bool[2000, 20, 30, 3]."""
    images = jnp.full((2000, 20, 30, 3), 7.0)
    return np.asarray(erase(images, jax.random.key(0), probability=0.25) != 7)


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
    found = np.asarray(erase(images, jax.random.key(1), probability=1.0))
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
    images = jnp.arange(38_400, dtype=jnp.float32).reshape(50, 16, 16, 3)

    def erased(key):
        return np.asarray(erase(images, jax.random.key(key), probability=0.5))

    np.testing.assert_array_equal(erased(1), erased(1))
    assert (erased(1) != erased(2)).any()
    assert 0.8 < (erased(1) == np.asarray(images)).mean() < 0.97


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (1, 40)])
def test_the_smallest_images_keep_at_least_a_row_and_a_column(shape):
    tops, lefts, heights, widths = erased_boxes(100, *shape, jax.random.key(0))
    assert (np.asarray(tops + heights) <= shape[0]).all()
    assert (np.asarray(lefts + widths) <= shape[1]).all()
    assert (np.asarray(heights * widths) < shape[0] * shape[1]).all()
