"""Corrupting embedded patches, of which masked patch prediction asks what they were."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Corruption(NamedTuple):
    """What stands in the place of each patch.

    Attributes:
        source: i32[B, N], the patch of the same image whose embedding is taken; its own where
            nothing is changed.
        hidden: bool[B, N], whether the mask token is taken instead.
    """

    source: Int[Array, "B N"]
    hidden: Bool[Array, "B N"]


def corrupt(
    patches: Float[Array, "B N D"], corruption: Corruption, mask_token: Float[Array, "1 1 D"]
) -> Float[Array, "B N D"]:
    """Returns embedded patches, some of them others' or the mask token.

    Patches are moved by a product with zeros and ones, exact, whose gradient is a product as well:
    that of a gather would add up in an order that accelerators choose.
    """
    places = jax.nn.one_hot(corruption.source, patches.shape[1], dtype=patches.dtype)
    moved = jnp.einsum("bnm,bmd->bnd", places, patches, precision="highest")
    return jnp.where(corruption.hidden[..., None], mask_token.astype(patches.dtype), moved)


def draw_corruption(
    key: jax.Array, num_patches: int, *, share: float, mask: float, random: float
) -> tuple[Bool[Array, " N"], Corruption]:
    """Draws what becomes of the patches of one image.

    Of N patches the nearest whole number to share * N, at least one, are corrupted: exactly as many
    in every image, ours, so that each image counts alike. Each of these is hidden with probability
    `mask`, replaced by another patch of the image, all equally likely, with probability `random`,
    and else kept.

    Args:
        key: random key.
        num_patches: N.
        share: of the patches, see `num_corrupted`.
        mask: probability.
        random: probability.

    Returns:
        bool[N], which are corrupted; and what stands in their place, without the axis B.

    Source: arXiv:2010.11929, B.1.2; "another patch" is of the same image, ours, so that what a
    model sees of an image does not depend on the others of its batch.
    """
    key_place, key_kind, key_other = jax.random.split(key, 3)
    order = jnp.argsort(jax.random.uniform(key_place, (num_patches,)))
    chosen = jnp.zeros(num_patches, bool)
    chosen = chosen.at[order[: num_corrupted(num_patches, share)]].set(True)
    kind = jax.random.uniform(key_kind, (num_patches,))
    own = jnp.arange(num_patches)
    steps = jax.random.randint(key_other, (num_patches,), 1, max(num_patches, 2))
    moved = chosen & (kind >= mask) & (kind < mask + random)
    source = jnp.where(moved, (own + steps) % num_patches, own)
    return chosen, Corruption(source.astype(jnp.int32), chosen & (kind < mask))


def num_corrupted(num_patches: int, share: float) -> int:
    """Returns how many patches of an image are corrupted.

    >>> num_corrupted(196, 0.5), num_corrupted(4, 0.01)
    (98, 1)
    """
    return max(1, round(share * num_patches))
