"""Class-balanced, nested parts of a split, the same on every machine.

All examples of a split have one order, and a subset is its first E: first one example of each
class, then the others by (rank + 1/2) / n, rank being the example's place among the n of its class
by a hash of (seed, position in the split). That is Sainte-Lague apportionment with one seat for
everybody: classes keep their shares to within one example, every class is there, E is met exactly,
and because it is one order, 10 % lie inside 30 % lie inside 100 %. `per_class` takes the first K of
every class instead.

Source of the data-size study: arXiv:2010.11929, section 4.3; the rule is ours.
"""

import hashlib
import heapq
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from vit_jax.config.data import SubsetConfig
from vit_jax.data.sources.base import Example, LabelledSource, Source, hash_of
from vit_jax.errors import DataError


class SubsetSource:
    """Some examples of a source.

    Args:
        source: whose.
        indices: u[N], sorted positions.
        name: of the result.
        fingerprint: of the result.
    """

    def __init__(self, source: LabelledSource, indices: np.ndarray, name: str, fingerprint: str):
        self._source, self._indices = source, indices
        self.name, self.class_names = name, source.class_names
        self.fingerprint = fingerprint

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Example:
        return self._source[int(self._indices[index])]

    def read(self, indices: Sequence[int]) -> list[Example]:
        """Returns several examples; faster than one by one."""
        return self._source.read([int(i) for i in self._indices[list(indices)]])

    def labels(self) -> np.ndarray:
        """Returns the label of every example."""
        return self._source.labels()[self._indices]


def take_subset(source: LabelledSource, subset: SubsetConfig) -> tuple[Source, dict[str, Any]]:
    """Returns the part of a source that a config describes, and its manifest.

    The manifest says which examples these are: dataset, rule, seed, number per class, a hash of the
    positions; its own hash stands for all of it.

    Raises:
        DataError: too few examples for the rule, or another subset than `subset.hash` says.
    """
    assert subset.rule is not None
    kind, amount = subset.rule
    labels = source.labels()
    counts = _count(source, labels)
    wanted = _per_class(source, counts, kind, amount)
    indices = _choose(labels, counts, wanted, subset.seed)
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


def _count(source: LabelledSource, labels: np.ndarray) -> np.ndarray:
    """Returns the number of examples of each class."""
    num_classes = len(source.class_names)
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(bad):
        raise DataError(
            f"label {labels[bad[0]]} of example {bad[0]} of {source.name}"
            f" ({len(bad)} such examples)",
            f"0 to {num_classes - 1}",
            "repair the dataset, or take a split without them",
        )
    return np.bincount(labels, minlength=num_classes)


def _per_class(source: Source, counts: np.ndarray, kind: str, amount: float) -> np.ndarray:
    """Returns how many examples of each class are taken."""
    total, present = int(counts.sum()), int((counts > 0).sum())
    if kind == "per_class":
        short = int(np.argmin(np.where(counts > 0, counts, total + 1)))
        if counts[short] < amount:
            named = source.class_names[short]
            raise DataError(
                f"class {named!r} of {source.name} has {counts[short]} examples",
                f"at least data.subset.per_class = {amount:.0f}",
                "lower it",
            )
        return np.where(counts > 0, int(amount), 0)
    examples = round(amount * total) if kind == "fraction" else int(amount)
    if not present <= examples <= total:
        raise DataError(
            f"a subset of {examples:,} of the {total:,} examples of {source.name}",
            f"between {present:,}, one for each class, and {total:,}",
            f"change data.subset.{kind}, or the preset",
        )
    return apportion(counts, examples)


def apportion(counts: np.ndarray, examples: int) -> np.ndarray:
    """Returns how many of `examples` fall to each class: one each, the others by Sainte-Lague.

    Never fewer of any class for more examples in all, as Hamilton's largest remainders could be.

    Args:
        counts: i[C], examples that there are of each class.
        examples: in all; from the number of classes that are not empty to sum(counts).

    >>> apportion(np.array([100, 50, 1, 0]), 15).tolist()
    [9, 5, 1, 0]
    """
    sizes = [int(n) for n in counts]
    total = sum(sizes)
    # Those whose key (2 rank + 1) / 2n is at most E/N: within one a class of the right number.
    taken = [min(n, max(1, (2 * examples * n + total) // (2 * total))) for n in sizes]

    def key(label: int, rank: int) -> tuple[Fraction, int]:
        return Fraction(2 * rank + 1, 2 * sizes[label]), label

    spare = sum(taken) - examples
    if spare > 0:  # Drop the last.
        heap = [tuple(-x for x in key(c, k - 1)) for c, k in enumerate(taken) if k > 1]
        heapq.heapify(heap)
        for _ in range(spare):
            label = int(-heap[0][1])
            taken[label] -= 1
            if taken[label] > 1:
                heapq.heapreplace(heap, tuple(-x for x in key(label, taken[label] - 1)))
            else:
                heapq.heappop(heap)
    else:  # Add the next.
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


def _choose(labels: np.ndarray, counts: np.ndarray, wanted: np.ndarray, seed: int) -> np.ndarray:
    """Returns the sorted positions of the first `wanted` of every class."""
    kind = np.uint32 if len(labels) <= 2**32 else np.uint64
    if (wanted == counts).all():
        return np.arange(len(labels), dtype=kind)
    by_class = np.argsort(labels, kind="stable").astype(kind)
    starts = np.concatenate([[0], np.cumsum(counts)])
    chosen = []
    for label in np.flatnonzero(wanted):
        mine = by_class[starts[label] : starts[label + 1]]
        chosen.append(mine[np.argsort(mix(seed, mine))[: wanted[label]]])
    return np.sort(np.concatenate(chosen))


def mix(seed: int, numbers: np.ndarray) -> np.ndarray:
    """Returns a well-mixed u64 for each number; different numbers never collide.

    Args:
        seed: below 2**32.
        numbers: u[N].

    Source: SplitMix64, doi:10.1145/2660193.2660195.
    """
    start = _finish(np.array([seed], np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    return _finish(numbers.astype(np.uint64) ^ start)


def _finish(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
