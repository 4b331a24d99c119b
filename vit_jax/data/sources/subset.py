"""Class-balanced, nested subsets of a split, the same on every machine.

The examples of a split are sorted once, and a subset is the first E of them. The order starts with
one example of each class. The others follow by (rank + 1/2) / n, where n is the size of the class
and rank is the example's index in its class when sorted by a hash of (seed, position in the split).
This is Sainte-Lague apportionment with one guaranteed seat for each class. Class proportions are
exact to within one example, every class is included, and there are exactly E examples. Because
there is only one order, the 30 % subset contains the 10 % subset.

Source of the data-size study: arXiv:2010.11929, section 4.3. The order is ours.
"""

import hashlib
import heapq
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from vit_jax.config.data import SubsetConfig
from vit_jax.data.sources.base import Example, Source, SourceView, hash_of
from vit_jax.errors import DataError
from vit_jax.rng import seeded_hash


class SubsetSource(SourceView):
    """A subset of a source: its examples at some sorted positions."""

    def __init__(self, source: Source, indices: np.ndarray, name: str, fingerprint: str):
        super().__init__(source)
        self._indices, self.name, self.fingerprint = indices, name, fingerprint
        self.in_memory, self.quick_labels = source.in_memory, source.quick_labels

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, indices: Sequence[int]) -> list[Example]:
        return self._source.read([int(i) for i in self._indices[list(indices)]])

    def read_ahead(self, indices: Sequence[int]) -> None:
        self._source.read_ahead([int(i) for i in self._indices[list(indices)]])

    def labels(self) -> np.ndarray:
        return self._source.labels()[self._indices]


def take_subset(source: Source, subset: SubsetConfig) -> tuple[Source, dict[str, Any]]:
    """Returns the subset that a config describes, and its manifest.

    The manifest identifies the examples: dataset, rule, seed, number per class, a hash of the
    positions, and a hash of all of these, which must be `subset.hash` if that is set.
    """
    assert subset.rule is not None
    kind, amount = subset.rule
    # Without classes, all examples are one class.
    labels = source.labels() if source.class_names else np.zeros(len(source), np.int32)
    counts = _count_classes(source, labels)
    wanted = _examples_per_class(source, counts, kind, amount)
    indices = _choose_indices(labels, counts, wanted, subset.seed)
    manifest = {
        "dataset": source.name,
        "fingerprint": source.fingerprint,
        "rule": {kind: amount},
        "seed": subset.seed,
        "examples": int(wanted.sum()),
        "of": len(labels),
        "examples_per_class": wanted.tolist(),
        "indices_sha256": _hash_positions(indices),
    }
    manifest["hash"] = hash_of(manifest)
    if subset.hash not in (None, manifest["hash"]):
        raise DataError(
            f"the subset of {source.name} has hash {manifest['hash']}",
            f"data.subset.hash = {subset.hash}",
            "restore the dataset that the subset was made from, or set data.subset.hash=none",
        )
    if len(indices) == len(labels):
        return source, manifest
    described = f"{amount:g}" if kind == "fraction" else f"{amount:,.0f}"
    name = f"{source.name}, {kind} {described}, seed {subset.seed}"
    return SubsetSource(source, indices, name, manifest["hash"]), manifest


def _hash_positions(indices: np.ndarray) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(indices), 1 << 20):
        digest.update(indices[start : start + (1 << 20)].astype("<u8").tobytes())
    return digest.hexdigest()


def _count_classes(source: Source, labels: np.ndarray) -> np.ndarray:
    """Returns the number of examples of each class."""
    num_classes = max(len(source.class_names), 1)
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(bad):
        raise DataError(
            f"label {labels[bad[0]]} of example {bad[0]} of {source.name}"
            f" ({len(bad)} such examples)",
            f"0 to {num_classes - 1}",
            "repair the dataset, or use a split without them",
        )
    return np.bincount(labels, minlength=num_classes)


def _examples_per_class(source: Source, counts: np.ndarray, kind: str, amount: float) -> np.ndarray:
    """Returns how many examples of each class the subset takes."""
    total, present = int(counts.sum()), int((counts > 0).sum())
    examples = round(amount * total) if kind == "fraction" else int(amount)
    if not present <= examples <= total:
        raise DataError(
            f"a subset of {examples:,} of the {total:,} examples of {source.name}",
            f"between {present:,}, one for each class, and {total:,}",
            f"change data.subset.{kind}, or data.subset.preset",
        )
    return apportion(counts, examples)


def apportion(counts: np.ndarray, examples: int) -> np.ndarray:
    """Divides a number of examples among classes: one each, the rest by Sainte-Lague.

    When the total grows, no class loses examples. (With Hamilton's largest remainders one can.) The
    total is between the number of non-empty classes and sum(counts).

    >>> apportion(np.array([100, 50, 1, 0]), 15).tolist()
    [9, 5, 1, 0]
    """
    sizes = [int(n) for n in counts]
    total = sum(sizes)
    # Examples whose key (2 rank + 1) / 2n is at most E/N. The result is within one per class.
    taken = [min(n, max(1, (2 * examples * n + total) // (2 * total))) for n in sizes]

    def key(label: int, rank: int) -> tuple[Fraction, int]:
        return Fraction(2 * rank + 1, 2 * sizes[label]), label

    spare = sum(taken) - examples
    if spare > 0:  # Drop those with the largest keys.
        heap = [tuple(-x for x in key(c, k - 1)) for c, k in enumerate(taken) if k > 1]
        heapq.heapify(heap)
        for _ in range(spare):
            label = int(-heap[0][1])
            taken[label] -= 1
            if taken[label] > 1:
                heapq.heapreplace(heap, tuple(-x for x in key(label, taken[label] - 1)))
            else:
                heapq.heappop(heap)
    else:  # Add those with the next keys.
        heap = [key(c, k) for c, (k, n) in enumerate(zip(taken, sizes, strict=True)) if k < n]
        heapq.heapify(heap)
        for _ in range(-spare):
            label = int(heap[0][1])
            taken[label] += 1
            if taken[label] < sizes[label]:
                heapq.heapreplace(heap, key(label, taken[label]))
            else:
                heapq.heappop(heap)
    return np.array(taken, np.int64)


def _choose_indices(
    labels: np.ndarray, counts: np.ndarray, wanted: np.ndarray, seed: int
) -> np.ndarray:
    """Returns the sorted positions of the first `wanted` examples of every class."""
    kind = np.uint32 if len(labels) <= 2**32 else np.uint64
    if (wanted == counts).all():
        return np.arange(len(labels), dtype=kind)
    by_class = np.argsort(labels, kind="stable").astype(kind)
    starts = np.concatenate([[0], np.cumsum(counts)])
    chosen = []
    for label in np.flatnonzero(wanted):
        mine = by_class[starts[label] : starts[label + 1]]
        chosen.append(mine[np.argsort(seeded_hash(seed, mine))[: wanted[label]]])
    return np.sort(np.concatenate(chosen))
