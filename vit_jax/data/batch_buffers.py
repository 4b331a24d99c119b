"""Reuses the memory of batches, because new memory costs a page fault every 4 kB."""

import collections
import sys
import threading
from collections.abc import Mapping, Sequence

import numpy as np

from vit_jax.data.arrays import ArraySpec

# Smaller arrays are cheaper to copy than to reuse.
_MIN_BYTES = 1 << 14


class BatchBuffers:
    """Allocates one array for all chunks of a batch, so that joining the chunks copies nothing.

    A large array is reused when there are no other references to it or to a view of it. `rows` are
    this host's rows of a batch. Thread-safe.
    """

    def __init__(self, rows: Sequence[int]):
        self._rows = rows
        self._arrays = collections.defaultdict[tuple[str, ArraySpec], list[np.ndarray]](list)
        self._filling: dict[int, dict[str, np.ndarray]] = {}
        self._lock = threading.Lock()

    def part(
        self, step: int, rows: Sequence[int], arrays: Mapping[str, ArraySpec]
    ) -> dict[str, np.ndarray]:
        """Returns name -> uninitialized memory for some of this host's rows, a slice of them.

        `arrays` are those of the step's batch. Small ones are left out.
        """
        with self._lock:
            batch = self._filling.get(step)
            if batch is None:
                batch = self._filling[step] = {
                    name: self._unused_array(name, array)
                    for name, array in arrays.items()
                    if array.num_bytes * len(self._rows) >= _MIN_BYTES
                }
        start = self._rows.index(rows[0])
        places = slice(start, start + len(rows))
        return {name: array[places] for name, array in batch.items()}

    def whole(self, step: int) -> dict[str, np.ndarray]:
        """Returns a step's batch. All its parts must be filled."""
        with self._lock:
            return {name: array[:] for name, array in self._filling.pop(step).items()}

    def _unused_array(self, name: str, spec: ArraySpec) -> np.ndarray:
        arrays = self._arrays[name, spec]
        for array, references in _with_references(arrays):
            if references == _UNUSED:
                return array
        array = np.empty((len(self._rows), *spec.shape), spec.dtype)
        arrays.append(array)
        return array


def _with_references(arrays: list[np.ndarray]) -> list[tuple[np.ndarray, int]]:
    return [(array, sys.getrefcount(array)) for array in arrays]


# Reference count of an array that only a list refers to. It is measured because Python versions
# differ: 3.14 does not count the reference of a function argument.
((_, _UNUSED),) = _with_references([np.empty(1, np.uint8)])
