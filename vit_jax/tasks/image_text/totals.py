"""Retrieval among the pairs of an evaluation split: how often an image finds its text."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

from vit_jax.evaluation.loop import Totals

RANKS = (1, 5, 10)
# Queries that are compared with all keys at a time.
_BLOCK = 256


class PairTotals(Totals):
    """Collects the embeddings of a split.

    The metrics are image_to_text/recall_at_K and text_to_image/recall_at_K: the fraction of the
    images (texts) whose text (image) is among the K most similar ones. An image has one text, the
    first of its captions.
    """

    def __init__(self):
        self._images: list[np.ndarray] = []
        self._texts: list[np.ndarray] = []

    def add(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Adds one batch: "images" and "texts" f32[B, E], and "mask" bool[B]."""
        mask = np.asarray(outputs["mask"])
        self._images.append(np.asarray(outputs["images"])[mask])
        self._texts.append(np.asarray(outputs["texts"])[mask])

    def metrics(self) -> dict[str, float]:
        images, texts = np.concatenate(self._images), np.concatenate(self._texts)
        found = {"examples": float(len(images))}
        for way, queries, keys in (
            ("image_to_text", images, texts),
            ("text_to_image", texts, images),
        ):
            better = keys_before_own(queries, keys)
            found |= {f"{way}/recall_at_{k}": float((better < k).mean()) for k in RANKS}
        return found


def keys_before_own(
    queries: Float[np.ndarray, "N E"], keys: Float[np.ndarray, "N E"]
) -> Int[np.ndarray, " N"]:
    """Returns how many keys are before key i in the order of their product with query i.

    Of equal keys, the first comes first.
    """
    counts = []
    for start in range(0, len(queries), _BLOCK):
        products = queries[start : start + _BLOCK] @ keys.T
        place = np.arange(start, start + len(products))[:, None]
        own = np.take_along_axis(products, place, axis=1)
        earlier = np.arange(len(keys)) < place
        counts.append(((products > own) | ((products == own) & earlier)).sum(1))
    return np.concatenate(counts)
