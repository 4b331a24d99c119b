"""Mirroring of images."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Num

from vit_jax.data.augment import AUGMENTATIONS, Operation


@AUGMENTATIONS.register
class Flip(Operation):
    """Mirrors each image left to right with probability 1/2."""

    stage = "uint8"
    place = 0

    @property
    def same_at_any_size(self) -> bool:
        return True

    def __call__(self, images: Num[Array, "B H W 3"], key: jax.Array) -> Num[Array, "B H W 3"]:
        chosen = jax.random.bernoulli(key, 0.5, (images.shape[0], 1, 1, 1))
        return jnp.where(chosen, images[:, :, ::-1], images)
