"""Mean attention distance: how far each head looks, in pixels (Figures 7 and 11 of the paper)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.analysis.batches import map_batches, pixels_per_patch, with_attention
from vit_jax.models.resnet import ResNet
from vit_jax.models.vit import ViT


@dataclasses.dataclass(frozen=True)
class AttentionDistance:
    """How far the heads of a model look.

    Attributes:
        per_image: f32[M, L, H], pixels: of M images, L layers and H heads.
        prefix_share: f32[L, H]: share of the patches' attention that goes to class token and
            registers, which have no place and do not count in the distance; 0 without them.
        uniform: pixels: the distance of a head that looks at all patches alike.
        image_size: (height, width) in pixels.
    """

    per_image: Float[np.ndarray, "M L H"]
    prefix_share: Float[np.ndarray, "L H"]
    uniform: float
    image_size: tuple[int, int]

    @property
    def mean(self) -> Float[np.ndarray, "L H"]:
        """Pixels, mean over the images: the dots of Figure 7, right."""
        return self.per_image.mean(0)

    @property
    def standard_error(self) -> Float[np.ndarray, "L H"]:
        """Pixels, of `mean`, as far as it comes from the choice of images; 0 for one image."""
        count = len(self.per_image)
        return self.per_image.std(0, ddof=min(count - 1, 1)) / np.float32(np.sqrt(count))


def patch_distances(
    grid: tuple[int, int], patch_size: tuple[int, int]
) -> Float[np.ndarray, "P P"]:  # fmt: skip
    """Returns the Euclidean distances between the centres of all patches, in pixels.

    Args:
        grid: patches down and across.
        patch_size: height and width of a patch in pixels.

    >>> patch_distances((1, 3), (16, 16))[0].tolist()
    [0.0, 16.0, 32.0]
    """
    centres = np.indices(grid).reshape(2, -1).T * np.asarray(patch_size)
    offsets = centres[:, None] - centres[None]
    return np.sqrt(np.square(offsets).sum(-1)).astype(np.float32)


def mean_distances(
    weights: Float[Array, "B H N N"] | Float[np.ndarray, "B H N N"],
    distances: Float[Array, "P P"] | Float[np.ndarray, "P P"],
) -> tuple[Float[Array, "B H"], Float[Array, "B H"]]:
    """Returns how far the patches look on average, and how much of what they see has no place.

    The queries are the patches, the keys too: their weights are divided by their sum, so that what
    goes to class token and registers (the first N - P tokens) pulls the distance neither way. A
    patch's own weight counts, at distance 0. A query that gives patches nothing counts as 0.

    Args:
        weights: attention weights, query by key; rows sum to 1.
        distances: of `patch_distances`.

    Returns:
        The distance in the unit of `distances`, and the share of attention on the first N - P
        tokens: each f32[B, H], the mean over patches.
    """
    patches = distances.shape[0]
    weights = jnp.asarray(weights)
    among = weights[..., -patches:, -patches:]
    total = among.sum(-1)
    looked = jnp.einsum("bhnm,nm->bhn", among, jnp.asarray(distances))
    looked = jnp.where(total > 0, looked / jnp.where(total > 0, total, 1), 0)
    prefix = weights[..., -patches:, : weights.shape[-1] - patches].sum((-1, -2)) / patches
    return looked.mean(-1), prefix


def attention_distance(
    model: ViT | ResNet, images: Float[np.ndarray, "M H W 3"], *, batch_size: int = 16
) -> AttentionDistance:
    """Returns the mean attention distance of every head.

    The weights are computed beside whatever kernel the model uses, and reduced inside the loop over
    the layers: those of one layer and batch are held at a time. A hybrid's distances are those
    between the centres of the image regions that its tokens stand for.

    Args:
        model: ViT or hybrid.
        images: in [-1, 1], of the model's size. The paper takes 128.
        batch_size: images at once.

    Raises:
        ModelError: a ResNet, or images of another size.
        DataError: no images.

    Source: arXiv:2010.11929, section 4.5 and D.7.
    """
    vit = with_attention(model, "distance")
    distances = patch_distances(vit.grid, pixels_per_patch(vit))

    def reduce(weights: jax.Array) -> jax.Array:
        return jnp.stack(mean_distances(weights, distances), axis=1)

    def per_image(model: ViT, images: jax.Array, places: jax.Array) -> jax.Array:
        del places
        _, found = model(
            images,
            return_intermediates=("attention_weights",),
            reduce={"attention_weights": reduce},
        )
        return jnp.moveaxis(found["attention_weights"], 0, 2)

    found = map_batches(per_image, vit, images, batch_size)
    return AttentionDistance(
        found[:, 0], found[:, 1].mean(0), float(distances.mean()), vit.image_size
    )
