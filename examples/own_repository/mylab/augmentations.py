"""Brightness."""

import jax

import vit_jax


@vit_jax.register_augmentation(stage="device")
def brightness(images: jax.Array, key: jax.Array, *, most: float = 0.2) -> jax.Array:
    """Makes each image darker or brighter by a drawn amount.

    Args:
        images: f32[B, H, W, 3] in [-1, 1].
        key: of this step; the same run draws the same amounts again.
        most: largest amount; from black to white is 2.
    """
    amounts = jax.random.uniform(key, (len(images), 1, 1, 1), minval=-most, maxval=most)
    return images + amounts
