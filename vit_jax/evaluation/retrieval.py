"""Retrieval between images and captions: recall at 1, 5 and 10, both ways.

An image may have several captions. From images to texts, a query is right if any caption of the
image is among the first k; from texts to images, each caption is a query. Source: the protocol of
arXiv:2103.00020, Table 13, as for COCO and Flickr30k.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vit_jax.data.captions import Captions
from vit_jax.data.sources import Source
from vit_jax.errors import DataError
from vit_jax.evaluation.embeddings import EvaluatedImages, embed_images, embed_texts
from vit_jax.evaluation.intervals import interval, resample_means
from vit_jax.models.text import check_vocabulary
from vit_jax.models.two_towers import TwoTowers

RANKS = (1, 5, 10)
# Queries and keys that are compared at a time.
_BLOCK = 2048
# Examples whose captions are read at a time.
_READ = 256


@dataclasses.dataclass(frozen=True)
class Retrieval:
    """Which queries are right."""

    images: Bool[np.ndarray, "N K"]  # whether one of its captions is among the first 1, 5, 10
    texts: Bool[np.ndarray, "M K"]  # for each caption, whether its image is
    owners: Int[np.ndarray, " M"]  # the image of each caption

    def metrics(self) -> dict[str, float]:
        found = {f"image_to_text/recall_at_{k}": self.images[:, i] for i, k in enumerate(RANKS)}
        found |= {f"text_to_image/recall_at_{k}": self.texts[:, i] for i, k in enumerate(RANKS)}
        counts = {"examples": float(len(self.images)), "captions": float(len(self.texts))}
        return {name: float(right.mean()) for name, right in found.items()} | counts

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Returns metric name -> 95 % interval, a bootstrap over images with their captions."""
        count = len(self.images)
        right = np.zeros((count, len(RANKS)))
        np.add.at(right, self.owners, self.texts)
        captions = np.bincount(self.owners, minlength=count)[:, None]
        draws = resample_means(np.hstack([self.images, right, captions]).astype(float), "retrieval")
        size = len(RANKS)
        shares = (draws[:, :size], draws[:, size : 2 * size] / draws[:, -1:])
        return {
            f"{way}/recall_at_{k}": interval(share[:, i])
            for way, share in zip(("image_to_text", "text_to_image"), shares, strict=True)
            for i, k in enumerate(RANKS)
        }


def evaluate_retrieval(model: TwoTowers, captions: Captions, images: EvaluatedImages) -> Retrieval:
    """Embeds all images and captions of a split and compares them.

    The model's parameters are on the devices of the mesh.
    """
    tokenizer = captions.tokenizer
    check_vocabulary(model.text.options, tokenizer.vocabulary_size, str(tokenizer.path))
    found, read = embed_images(model, images)
    kept = np.flatnonzero(read)
    if len(kept) < 2:
        raise DataError(
            f"{images.source.name} with {len(kept)} images", "two or more", "widen the split"
        )
    texts = captions_of(images.source, captions, kept.tolist())
    owners = np.repeat(np.arange(len(kept), dtype=np.int32), [len(own) for own in texts])
    flat = [text for own in texts for text in own]
    embedded = embed_texts(model, tokenizer, flat, images.mesh, images.spec.global_batch_size)
    own = np.arange(len(kept), dtype=np.int32)
    return Retrieval(
        recalled(found, embedded, own, owners), recalled(embedded, found, owners, own), owners
    )


def captions_of(source: Source, captions: Captions, indices: Sequence[int]) -> list[list[str]]:
    """Returns all captions of some examples."""
    found = []
    for start in range(0, len(indices), _READ):
        for example in source.read(indices[start : start + _READ]):
            try:
                found.append(captions.texts(example))
            except DataError as error:
                where = f"example {example.id} of {source.name}: {error.got}"
                raise DataError(where, error.expected, error.fix) from None
    return found


def recalled(
    queries: Float[np.ndarray, "Q E"],
    keys: Float[np.ndarray, "K E"],
    query_owners: Int[np.ndarray, " Q"],
    key_owners: Int[np.ndarray, " K"],
) -> Bool[np.ndarray, "Q R"]:
    """Returns for each query whether a key of its owner is among the first 1, 5 and 10.

    The embeddings have length 1, and an owner is the number of an image. Keys are ranked by their
    product with the query; of equal ones, the first comes first. The similarities are computed in
    blocks: never more than `_BLOCK` squared are held.
    """
    most, block = max(RANKS), _BLOCK
    found = np.empty((len(queries), len(RANKS)), bool)
    for start in range(0, len(queries), block):
        rows = _padded(queries[start : start + block], block)
        best = np.full((block, most), -np.inf, np.float32), np.full((block, most), -1, np.int32)
        for at in range(0, len(keys), block):
            owners = np.full(block, -1, np.int32)
            owners[: len(key_owners) - at] = key_owners[at : at + block]
            best = _merge(*best, rows, _padded(keys[at : at + block], block), owners)
        own = query_owners[start : start + block, None]
        right = np.asarray(best[1])[: len(own)] == own
        found[start : start + block] = np.stack([right[:, :k].any(1) for k in RANKS], axis=1)
    return found


@jax.jit
def _merge(
    values: Float[Array, "B R"],
    owners: Int[Array, "B R"],
    queries: Float[Array, "B E"],
    keys: Float[Array, "B E"],
    key_owners: Int[Array, " B"],
) -> tuple[Float[Array, "B R"], Int[Array, "B R"]]:
    """Returns the largest similarities so far, with those of a block of keys, and their owners."""
    products = jnp.matmul(queries, keys.T, precision="highest")
    products = jnp.where(key_owners[None] < 0, -jnp.inf, products)
    everything = jnp.concatenate([values, products], axis=1)
    own = jnp.broadcast_to(key_owners[None], products.shape)
    best, places = jax.lax.top_k(everything, values.shape[1])
    return best, jnp.take_along_axis(jnp.concatenate([owners, own], axis=1), places, axis=1)


def _padded(rows: np.ndarray, count: int) -> np.ndarray:
    return np.pad(rows, ((0, count - len(rows)), (0, 0)))
