import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.augment.flip import Flip


def test_flip_mirrors_half_of_the_images_left_to_right_and_leaves_the_rest():
    images = jnp.arange(18_000, dtype=jnp.float32).reshape(1000, 2, 3, 3)
    found, again, other = (Flip()(images, jax.random.key(k)) for k in (0, 0, 1))
    same = np.all(found == images, axis=(1, 2, 3))
    mirrored = np.all(found == images[:, :, ::-1], axis=(1, 2, 3))
    assert (same ^ mirrored).all()
    # 500 expected, standard deviation 16.
    assert 430 < mirrored.sum() < 570
    np.testing.assert_array_equal(found, again)
    assert (found != other).any()
