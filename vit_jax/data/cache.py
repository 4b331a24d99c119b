"""Keeps small datasets decoded in memory."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from vit_jax.data.decode import decode
from vit_jax.data.sources import Example, Source
from vit_jax.data.sources.base import SourceView

# Examples from which the size of the dataset is estimated.
_SAMPLES = 16


class DecodedSource(SourceView):
    """A source that decodes each image on first use and keeps its pixels.

    For images of CIFAR's size, the input pipeline spends most of its time reading and decoding. An
    image that cannot be decoded is returned unchanged, so that the transform reports it. Images
    beyond `cap_mb` megabytes of pixels are decoded each time.
    """

    in_memory = True

    def __init__(self, source: Source, cap_mb: float = float("inf")):
        super().__init__(source)
        self._bytes_left = cap_mb * 1e6
        self._kept: list[Example | None] = [None] * len(source)

    def read(self, indices: Sequence[int]) -> list[Example]:
        found = {i: self._kept[i] for i in indices}
        missing = [i for i, example in found.items() if example is None]
        if missing:
            # Two threads may decode the same example; the results are equal.
            for i, example in zip(missing, self._source.read(missing), strict=True):
                found[i] = decoded = _decoded(example)
                size = memoryview(decoded.image).nbytes
                if size <= self._bytes_left:
                    self._bytes_left -= size
                    self._kept[i] = decoded
        return [example for i in indices if (example := found[i]) is not None]

    def read_ahead(self, indices: Sequence[int]) -> None:
        missing = [i for i in indices if self._kept[i] is None]
        if missing:
            self._source.read_ahead(missing)


def cached(source: Source, cap_mb: int) -> Source:
    """Returns the source, decoded in memory if all its images fit into `cap_mb` megabytes.

    The size is estimated from the largest of a few examples spread over the source. If others are
    larger, the images beyond the cap are not kept. A cap of 0 turns the cache off; a source of
    pixels in memory needs none.
    """
    if not cap_mb or source.in_memory or not len(source):
        return source
    picked = np.linspace(0, len(source) - 1, min(_SAMPLES, len(source))).astype(int)
    try:
        sizes = [decode(example.image).size for example in source.read(picked.tolist())]
    except ValueError:  # The transform reports unreadable examples.
        return source
    largest = max(width * height * 3 for width, height in sizes)
    return DecodedSource(source, cap_mb) if largest * len(source) <= cap_mb * 1e6 else source


def _decoded(example: Example) -> Example:
    try:
        return dataclasses.replace(example, image=np.asarray(decode(example.image)))
    except ValueError:
        return example
