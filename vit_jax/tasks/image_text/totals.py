"""Retrieval among the pairs of an evaluation split: how often an image finds its text."""

from collections.abc import Mapping

import numpy as np

from vit_jax.evaluation.loop import Totals
from vit_jax.evaluation.retrieval import Retrieval, recalled


class PairTotals(Totals):
    """Collects the embeddings of a split.

    The metrics are image_to_text/recall_at_K and text_to_image/recall_at_K: the fraction of the
    images (texts) whose text (image) is among the K most similar ones. An image has one text here,
    the first of its captions; `zeroshot --retrieval` uses all of them.
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
        own = np.arange(len(images), dtype=np.int32)
        found = Retrieval(recalled(images, texts, own, own), recalled(texts, images, own, own), own)
        return {name: value for name, value in found.metrics().items() if name != "captions"}
