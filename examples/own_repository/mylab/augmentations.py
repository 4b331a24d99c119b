"""Gaussian noise."""

import jax

import vit_jax


@vit_jax.register_augmentation(stage="device")
def noise(images: jax.Array, key: jax.Array, *, deviation: float = 0.1) -> jax.Array:
    """Adds Gaussian noise to each pixel.

    Args:
        images: f32[B, H, W, 3] in [-1, 1].
        key: of this step; the same run draws the same noise again.
        deviation: standard deviation of the noise.
    """
    return images + deviation * jax.random.normal(key, images.shape)
