import jax.numpy as jnp
import numpy as np

from vit_jax.data.device import to_unit_range


def test_unit_range_maps_0_and_255_to_exactly_minus_one_and_one():
    images = jnp.array([0, 51, 102, 153, 204, 255], jnp.uint8)[None, :, None, None]
    found = to_unit_range(jnp.broadcast_to(images, (1, 6, 1, 3)))
    assert found.dtype == jnp.float32
    assert found[0, 0, 0].tolist() == [-1.0] * 3
    assert found[0, 5, 0].tolist() == [1.0] * 3
    np.testing.assert_allclose(found[0, :, 0, 0], [-1, -0.6, -0.2, 0.2, 0.6, 1], atol=1e-6)
