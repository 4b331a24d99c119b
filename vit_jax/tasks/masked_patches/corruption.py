"""Corruption of patch embeddings for masked patch prediction."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def corrupt(
    patches: Float[Array, "B N D"],
    source: Int[Array, "B N"],
    hidden: Bool[Array, "B N"],
    mask_token: Float[Array, "1 1 D"],
) -> Float[Array, "B N D"]:
    """Replaces patch embeddings by those of `source`, or by the mask token where `hidden`.

    Patches are moved by a matmul with zeros and ones, which is exact. So is its gradient, while
    the gradient of a gather is summed in an undefined order on accelerators.
    """
    places = jax.nn.one_hot(source, patches.shape[1], dtype=patches.dtype)
    moved = jnp.einsum("bnm,bmd->bnd", places, patches, precision="highest")
    return jnp.where(hidden[..., None], mask_token.astype(patches.dtype), moved)


def draw_corruption(
    key: jax.Array, num_patches: int, *, share: float, mask: float, random: float
) -> dict[str, Array]:
    """Draws which patches of one image are corrupted, and their replacements.

    Returns "corrupted" bool[N]; "source" i32[N], the patch of the same image whose embedding is
    used, the patch itself if it is not replaced; "hidden" bool[N], whether the mask token is used
    instead.

    The same number of patches is corrupted in every image, see `num_corrupted`. A corrupted patch
    is hidden with probability `mask`, replaced by a random other patch of the image with
    probability `random`, and otherwise kept.

    Source: arXiv:2010.11929, B.1.2. Two details are ours. The number of corrupted patches is exact,
    so that all images have equal weight. Another patch is always of the same image, so that the
    result for an image does not depend on the rest of its batch.
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
    hidden = chosen & (kind < mask)
    return {"corrupted": chosen, "source": source.astype(jnp.int32), "hidden": hidden}


def num_corrupted(num_patches: int, share: float) -> int:
    """Returns the number of corrupted patches per image: share * N, rounded, at least 1.

    >>> num_corrupted(196, 0.5), num_corrupted(4, 0.01)
    (98, 1)
    """
    return max(1, round(share * num_patches))
