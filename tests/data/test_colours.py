"""Classes of mean colours, by hand; and keys that depend on pixels alone."""

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.colours import colour_classes, colours_of_classes, content_key
from vit_jax.data.device import to_unit_range


def classes(pixels, patch, bits=3):
    images = to_unit_range(jnp.asarray(pixels, jnp.uint8))
    return np.asarray(jax.jit(colour_classes, static_argnums=(1, 2))(images, patch, bits))


def test_the_colours_of_four_patches_by_hand():
    """2 x 2 patches of 2 x 2 pixels: red, green, a mean of 128 from four pixels, nearly black."""
    image = np.zeros((4, 4, 3), np.uint8)
    image[:2, :2] = (255, 0, 0)
    image[:2, 2:] = (0, 255, 0)
    image[2:, :2] = np.array([[[0, 0, 255], [255, 0, 255]], [[2, 0, 255], [255, 0, 255]]])
    image[2:, 2:] = (31, 32, 64)
    # Levels of 32: red 7 -> 7 * 64; green 7 -> 7 * 8; (512 / 4 = 128, 0, 255) -> 4 * 64 + 7;
    # (31, 32, 64) -> levels 0, 1, 2.
    assert classes(image[None], 2).tolist() == [[448, 56, 263, 10]]


def test_the_class_changes_exactly_at_the_border_between_bins():
    """Means of 96 and of 96 - 1/256 over patches of 16 x 16."""
    image = np.full((1, 16, 16, 3), 96, np.uint8)
    assert classes(image, 16).tolist() == [[3 * 73]]
    image[0, 0, 0] -= 1
    assert classes(image, 16).tolist() == [[2 * 73]]


def test_fewer_bits_give_fewer_colours():
    assert classes(np.full((1, 2, 2, 3), 255), 2, bits=1).tolist() == [[7]]
    assert colours_of_classes(np.array([5]), 1).tolist() == [[191.5, 63.5, 191.5]]


def test_every_class_maps_to_its_own_colour():
    numbers = np.arange(512)
    pixels = colours_of_classes(numbers, 3)[:, None, None].astype(np.uint8)
    np.testing.assert_array_equal(classes(pixels, 1)[:, 0], numbers)


def test_the_random_key_of_an_image_depends_only_on_its_pixels():
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3)).astype(np.uint8)
    images[3] = images[0]
    images[4] = images[0]
    images[4, 3, 3, 2] ^= 1
    keys = np.asarray(jax.random.key_data(content_key(0, jnp.asarray(images))))
    np.testing.assert_array_equal(keys[0], keys[3])
    assert len({tuple(key) for key in keys}) == 4
    again = np.asarray(jax.random.key_data(content_key(0, jnp.asarray(images[2:3]))))
    np.testing.assert_array_equal(again[0], keys[2])
