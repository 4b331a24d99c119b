"""Colour distortion on the device, against Python's and OpenCV's formulas."""

import colorsys

import cv2
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.distortion import distort, gaussian_blur, shift_hue


def images(count=3, side=8):
    return np.random.default_rng(0).random((count, side, side, 3)).astype(np.float32)


def test_the_hue_is_shifted_as_in_colorsys():
    pixels = images(2, 3)
    pixels[0, 0, 0] = 0.5  # Gray has no hue.
    shift = np.array([0.1, -0.25], np.float32)
    found = np.asarray(shift_hue(jnp.asarray(pixels), jnp.asarray(shift).reshape(2, 1, 1)))
    for place in np.ndindex(2, 3, 3):
        hue, saturation, value = colorsys.rgb_to_hsv(*map(float, pixels[place]))
        want = colorsys.hsv_to_rgb((hue + shift[place[0]]) % 1, saturation, value)
        np.testing.assert_allclose(found[place], want, atol=1e-5)


def test_the_blur_is_that_of_opencv():
    pixels, sigmas = images(2, 12), np.array([0.5, 1.4], np.float32)
    found = np.asarray(gaussian_blur(jnp.asarray(pixels), jnp.asarray(sigmas), 1.4))
    for image, blurred, sigma in zip(pixels, found, sigmas, strict=True):
        want = cv2.GaussianBlur(image, (11, 11), float(sigma), borderType=cv2.BORDER_REPLICATE)
        np.testing.assert_allclose(blurred, want, atol=1e-5)


def test_each_image_is_distorted_differently_by_its_key_and_stays_in_range():
    same = jnp.asarray(np.repeat(images(1), 64, axis=0) * 2 - 1)
    call = jax.jit(lambda x, key: distort(x, key, blur=0.5, solarize=0.2, image_size=224))
    found = np.asarray(call(same, jax.random.key(0)))
    again = np.asarray(call(same, jax.random.key(0)))
    np.testing.assert_array_equal(found, again)
    assert np.abs(found).max() <= 1 + 1e-6
    assert len(np.unique(found.reshape(64, -1).round(4), axis=0)) > 50
    gray = (np.ptp(found, axis=-1) < 1e-5).all(axis=(1, 2))
    assert 4 <= gray.sum() <= 24  # A fifth.
    assert (np.asarray(call(same, jax.random.key(1))) != found).any()
