"""Brightness."""

import jax

import vit_jax


@vit_jax.register_augmentation(stage="device")
def brightness(images: jax.Array, key: jax.Array, *, max_change: float = 0.2) -> jax.Array:
    """Makes each image darker or brighter by a drawn amount.

    Args:
        images: f32[B, H, W, 3] in [-1, 1].
        key: of this step; the same run draws the same amounts again.
        max_change: largest amount; black is -1 and white is 1.
    """
    shape = (len(images), 1, 1, 1)
    return images + jax.random.uniform(key, shape, minval=-max_change, maxval=max_change)
