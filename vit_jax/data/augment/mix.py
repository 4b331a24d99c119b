"""Mixing of pairs of examples: mixup and CutMix."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from vit_jax.data.augment import AUGMENTATIONS, Operation
from vit_jax.errors import ConfigError
from vit_jax.schema import option

Mixed = tuple[Float[Array, "B H W 3"], Float[Array, "B C"]]


@AUGMENTATIONS.register
class Mix(Operation):
    """Mixes pairs of images and their labels. Each batch uses one of the kinds that are on."""

    stage = "mix"
    stream = "mixing"
    place = 0

    mixup_alpha: float = option(0.0, at_least=0)
    """Mixup ratios are drawn from Beta(alpha, alpha) (arXiv:1710.09412); 0: off."""
    cutmix_alpha: float = option(0.0, at_least=0)
    """The same for CutMix (arXiv:1905.04899)."""

    @property
    def same_at_any_size(self) -> bool:
        return not self.cutmix_alpha

    def check(self) -> None:
        if not (self.mixup_alpha or self.cutmix_alpha):
            raise ConfigError(
                "is 0, as is 'cutmix_alpha'",
                "mixup or CutMix",
                "set one of them, e.g. to 0.2, or leave 'mix' out",
                key="mixup_alpha",
            )

    def __call__(
        self, images: Float[Array, "B H W 3"], labels: Float[Array, "B C"], key: jax.Array
    ) -> Mixed:
        key_coin, key_mixup, key_cutmix, key_box = jax.random.split(key, 4)

        def with_mixup(images, labels):
            share = jax.random.beta(key_mixup, self.mixup_alpha, self.mixup_alpha)
            return mixup(images, labels, share)

        def with_cutmix(images, labels):
            share = jax.random.beta(key_cutmix, self.cutmix_alpha, self.cutmix_alpha)
            return cutmix(images, labels, share, key_box)

        if not self.cutmix_alpha:
            return with_mixup(images, labels)
        if not self.mixup_alpha:
            return with_cutmix(images, labels)
        coin = jax.random.bernoulli(key_coin)
        return jax.lax.cond(coin, with_cutmix, with_mixup, images, labels)


def mixup(
    images: Float[Array, "B H W 3"], labels: Float[Array, "B C"], share: Float[Array, ""]
) -> Mixed:
    """Blends each example with the previous one: share * x + (1 - share) * x_previous.

    Source: arXiv:1710.09412, equation 1, with one share for the whole batch.
    """
    images = share * images + (1 - share) * jnp.roll(images, 1, axis=0)
    return images, share * labels + (1 - share) * jnp.roll(labels, 1, axis=0)


def cutmix(
    images: Float[Array, "B H W 3"],
    labels: Float[Array, "B C"],
    share: Float[Array, ""],
    key: jax.Array,
) -> Mixed:
    """Pastes a box from the previous example, about (1 - share) of the area.

    Labels are mixed by the area that was pasted. Source: arXiv:1905.04899, equations 1 and 2, with
    one box for the whole batch.
    """
    inside = cutmix_box(images.shape[1], images.shape[2], share, key)
    images = jnp.where(inside[None, :, :, None], jnp.roll(images, 1, axis=0), images)
    kept = 1 - jnp.mean(inside, dtype=jnp.float32)
    return images, kept * labels + (1 - kept) * jnp.roll(labels, 1, axis=0)


def cutmix_box(
    height: int, width: int, share: Float[Array, ""], key: jax.Array
) -> Bool[Array, "H W"]:
    """Returns the mask of a box with sides sqrt(1 - share) of the image's, clipped to the image."""
    key_y, key_x = jax.random.split(key)
    side = jnp.sqrt(1 - share)

    def span(length: int, key: jax.Array) -> Bool[Array, " L"]:
        centre = jax.random.randint(key, (), 0, length)
        half = jnp.floor(side * length / 2).astype(jnp.int32)
        position = jnp.arange(length)
        return (position >= centre - half) & (position < centre + half)

    return span(height, key_y)[:, None] & span(width, key_x)[None, :]
