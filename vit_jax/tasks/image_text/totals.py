"""Retrieval among the pairs of an evaluation split: how often an image finds its text."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

RECALL_AT = (1, 5, 10)
# Rows of similarities that are in memory at once.
_ROWS = 1024


class PairTotals:
    """Collects the embeddings of a split.

    The metrics are image_to_text_recall_K and text_to_image_recall_K: the fraction of the images
    (texts) with fewer than K texts (images) that are more similar to it than its own.
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
        """Returns metric name -> value."""
        images, texts = np.concatenate(self._images), np.concatenate(self._texts)
        found = {"image_to_text": own_ranks(images, texts), "text_to_image": own_ranks(texts, images)}
        recalls = {
            f"{way}_recall_{k}": float(np.mean(ranks < k))
            for way, ranks in found.items()
            for k in RECALL_AT
        }
        return {**recalls, "examples": float(len(images))}

    def warnings(self) -> list[str]:
        """Returns no warnings."""
        return []

    def write(self, folder: Path, name: str) -> None:
        """Writes nothing: there are no tables."""
        del folder, name


def own_ranks(
    queries: Float[np.ndarray, "M E"], keys: Float[np.ndarray, "M E"]
) -> Int[np.ndarray, " M"]:
    """Returns for each query how many keys are more similar to it than the key of its row.

    Equal keys, such as the captions of a class, rank alike.
    """
    ranks = np.empty(len(queries), np.int64)
    for start in range(0, len(queries), _ROWS):
        rows = slice(start, start + _ROWS)
        similarities = queries[rows] @ keys.T
        own = similarities[np.arange(len(similarities)), np.arange(len(queries))[rows]]
        ranks[rows] = (similarities > own[:, None]).sum(1)
    return ranks
