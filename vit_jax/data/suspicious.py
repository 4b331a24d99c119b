"""Warnings about data from which nothing can be learned, or whose scores mean nothing.

One class only, classes without training examples, a single example, and examples that are in both
training and evaluation data are rarely intended, but nothing else would tell: such runs end with a
score.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import numpy as np

from vit_jax.data.sources.base import Source
from vit_jax.data.sources.splits import Span
from vit_jax.errors import first_few

_MAX_NAMED = 5


@dataclasses.dataclass(frozen=True)
class Split:
    """A split of a dataset, as far as it is known."""

    name: str  # For messages.
    num_examples: int
    per_class: np.ndarray | None  # i[C]; None: unknown, or other classes.


def training_warnings(
    source: Source, evaluated: Mapping[str, Source], *, uses_labels: bool
) -> list[str]:
    """Returns warnings about the data of a run. Reads labels only where that is quick."""
    train = Split(source.name, len(source), _per_class(source) if uses_labels else None)
    # A split with other classes, such as ObjectNet, is of another dataset.
    same = {
        name: tuple(other.class_names) == tuple(source.class_names)
        for name, other in evaluated.items()
    }
    others = {
        name: Split(
            f"{name!r} ({other.name})", len(other), _per_class(other) if same[name] else None
        )
        for name, other in evaluated.items()
    }
    warnings = split_warnings(train, list(others.values()), source.class_names)
    for name, other in evaluated.items():
        # Evaluating training examples may be intended, and then it is called so; train_dev is not.
        is_intended = name.startswith("train") and not re.search("dev|val|test", name)
        compares = same[name] and not is_intended
        shared = _num_shared(source, other) if compares else 0
        if shared:
            warnings.append(
                f"{shared:,} of the {len(other):,} examples of evaluation split {others[name].name}"
                " are also training examples"
            )
    return warnings


def split_warnings(train: Split, others: Sequence[Split], class_names: Sequence[str]) -> list[str]:
    """Returns warnings about the sizes of splits and their classes."""
    warnings = [
        f"{split.name} has 1 example" for split in (train, *others) if split.num_examples == 1
    ]
    counts = train.per_class
    if counts is None or not counts.any():
        return warnings
    there, absent = np.flatnonzero(counts), np.flatnonzero(counts == 0)
    if len(there) == 1:
        warnings.append(
            f"all {counts.sum():,} examples of {train.name} have class {class_names[there[0]]!r}:"
            " there is nothing to learn, and any model is right"
        )
    if len(absent):
        # Classes that are evaluated come first.
        known = [split.per_class for split in others if split.per_class is not None]
        evaluated = np.sum([np.zeros(len(counts), np.int64), *known], axis=0)[absent]
        order = np.argsort(-evaluated, kind="stable").tolist()
        named = [
            class_names[int(absent[i])] + (f" ({evaluated[i]:,} evaluated)" if evaluated[i] else "")
            for i in order
        ]
        warnings.append(
            f"{len(absent):,} of {len(counts):,} classes have no example in {train.name}:"
            f" {first_few(named, _MAX_NAMED)}"
        )
    for split in others if len(there) > 1 else ():
        if split.per_class is not None and (untested := there[split.per_class[there] == 0]).size:
            names = first_few([class_names[int(i)] for i in untested], _MAX_NAMED)
            warnings.append(f"{split.name} has no example of these classes: {names}")
    return warnings


def _per_class(source: Source) -> np.ndarray | None:
    """Returns the number of examples of each class; None if it takes long to find out."""
    if not source.quick_labels:
        return None
    labels, num_classes = source.labels().astype(np.int64), len(source.class_names)
    return np.bincount(labels[(labels >= 0) & (labels < num_classes)], minlength=num_classes)


def _num_shared(one: Source, other: Source) -> int:
    """Returns the number of examples that two parts of a dataset share; 0 if it is unknown."""
    return sum(_overlap(a, b) for a in one.spans for b in other.spans)


def _overlap(one: Span, other: Span) -> int:
    if one.split != other.split:
        return 0
    return max(0, min(one.stop, other.stop) - max(one.start, other.start))
