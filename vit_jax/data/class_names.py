"""Matches the classes of a dataset to those of a trained head, by their names."""

import collections
import dataclasses
import unicodedata
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from vit_jax.data.benchmarks import imagenet_classes
from vit_jax.data.sources.base import Example, Source, SourceView
from vit_jax.errors import DataError, first_few


def spare_name(index: int) -> str:
    """Returns the name of a class of a head for which the dataset has no name."""
    return f"class {index}"


def with_spare_names(names: Sequence[str], num_classes: int) -> tuple[str, ...] | None:
    """Returns one name for each class of a head; None if there are more names than classes."""
    if len(names) > num_classes:
        return None
    return (*names, *(spare_name(i) for i in range(len(names), num_classes)))


def names_of_head(names: Sequence[str], num_classes: int) -> list[str]:
    """Returns a name for each class of a head; equal names get a number."""
    every = with_spare_names(names, num_classes) or tuple(names)
    return [f"{name} ({i})" if every.count(name) > 1 else name for i, name in enumerate(every)]


def head_columns(
    classes: Sequence[str], head: Sequence[str], *, data: str, model: str, subset: bool = False
) -> Int[np.ndarray, " C"] | None:
    """Returns the column of a head for each class of a dataset; None: class k has column k.

    Spare classes of the head (`with_spare_names`) follow those of the dataset. If one side has no
    names, the order is taken to be the same. With `subset`, the head may have more classes than the
    dataset. `data` and `model` are names for messages.
    """
    ours, theirs = (
        [unicodedata.normalize("NFC", str(n)) for n in names] for names in (classes, head)
    )
    if not ours or not theirs or ours == theirs or _both_of_imagenet(ours, theirs):
        return None
    for names, owner in ((ours, data), (theirs, model)):
        if repeated := [name for name, count in collections.Counter(names).items() if count > 1]:
            raise DataError(
                f"{owner} has several classes named {first_few(repeated, 3)}",
                f"other names, or the classes of {model if owner == data else data} in their order",
                "rename them",
            )
    column, present = {name: k for k, name in enumerate(theirs)}, set(ours)
    unknown = [name for name in ours if name not in column]
    absent = [
        name for k, name in enumerate(theirs) if name not in present and name != spare_name(k)
    ]
    if unknown or (absent and not subset):
        raise DataError(
            f"{data} has the class {unknown[0]!r}, which {model} was not trained on"
            if unknown
            else f"{data} lacks the class {absent[0]!r} of {model}",
            f"the {len(theirs)} classes {first_few(theirs, 3)}",
            "rename the classes, or train a new head on this dataset",
        )
    columns = [column[name] for name in ours]
    if not subset:
        columns += [k for k, name in enumerate(theirs) if name not in present]  # Spare classes.
    return np.array(columns)


def _both_of_imagenet(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether one side has ImageNet's numbers and the other names in words, in the same order."""
    numbers = list(imagenet_classes()["wnid"])
    for one, other in ((ours, theirs), (theirs, ours)):
        if one == numbers and len(other) == len(numbers) and not set(other) & set(numbers):
            return True
    return False


class MatchedSource(SourceView):
    """A dataset whose labels are columns of a trained head. `columns` comes from `head_columns`."""

    def __init__(self, source: Source, columns: Int[np.ndarray, " C"], head: Sequence[str]):
        super().__init__(source)
        self._columns, self.class_names, self.in_memory = columns, tuple(head), source.in_memory

    def read(self, indices: Sequence[int]) -> list[Example]:
        return [self._matched(example) for example in self._source.read(indices)]

    def _matched(self, example: Example) -> Example:
        if example.label < 0:
            return example
        if example.label >= len(self._columns):
            raise DataError(
                f"example {example.id} of {self.name} has label {example.label}",
                f"0 to {len(self._columns) - 1}",
                "repair the dataset",
            )
        return dataclasses.replace(example, label=int(self._columns[example.label]))


def match_classes(source: Source, head: Sequence[str], model: str) -> Source:
    """Returns a dataset with the labels of a head, which may have more classes or unknown names."""
    columns = head_columns(source.class_names, head, data=source.name, model=model, subset=True)
    return source if columns is None else MatchedSource(source, columns, head)
