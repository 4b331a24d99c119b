"""Matches the classes of a dataset to those of a trained head, by their names."""

import dataclasses
import logging
import unicodedata
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from vit_jax.data.sources.base import Example, Source
from vit_jax.errors import DataError, first_few

log = logging.getLogger(__name__)


def head_columns(
    classes: Sequence[str], head: Sequence[str], *, data: str, model: str, subset: bool = False
) -> Int[np.ndarray, " C"] | None:
    """Returns the column of a head for each class of a dataset; None: class k has column k.

    If one side has no names, the order is taken to be the same.

    Args:
        classes: names of the dataset's classes, in label order.
        head: names of the head's classes.
        data: name of the dataset, for messages.
        model: name of the model, for messages.
        subset: whether the head may have more classes than the dataset.

    Raises:
        DataError: the dataset has a class that the head does not have, or lacks one.
    """
    ours, theirs = (
        [unicodedata.normalize("NFC", str(n)) for n in names] for names in (classes, head)
    )
    if not ours or not theirs or ours == theirs:
        return None
    column = {name: k for k, name in enumerate(theirs)}
    unknown = [name for name in ours if name not in column]
    absent = [name for name in theirs if name not in ours]
    if unknown or (absent and not subset):
        sides = [f"has {first_few(unknown, 3)}" if unknown else ""]
        sides += [f"lacks {first_few(absent, 3)}" if absent else ""]
        raise DataError(
            f"{data} {' and '.join(filter(None, sides))}, compared with the classes of {model}",
            f"the {len(theirs)} classes that it was trained on ({first_few(theirs, 3)})",
            "rename the classes, or train a new head on this dataset",
        )
    what = f"{len(ours)} of the {len(theirs)} classes" if absent else "the classes"
    log.info("%s has %s of %s; labels are matched by name", data, what, model)
    return np.array([column[name] for name in ours])


class MatchedSource:
    """A dataset whose labels are columns of a trained head.

    Args:
        source: the dataset.
        columns: column of each class, from `head_columns`.
        head: names of the head's classes.
    """

    def __init__(self, source: Source, columns: Int[np.ndarray, " C"], head: Sequence[str]):
        self._source, self._columns = source, columns
        self.class_names, self.name = tuple(head), source.name
        self.fingerprint = source.fingerprint

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Example:
        return self._matched(self._source[index])

    def read(self, indices: Sequence[int]) -> list[Example]:
        """Returns several examples."""
        return [self._matched(example) for example in self._source.read(indices)]

    def _matched(self, example: Example) -> Example:
        if example.label < 0:
            return example
        return dataclasses.replace(example, label=int(self._columns[example.label]))


def match_classes(source: Source, head: Sequence[str], model: str) -> Source:
    """Returns a dataset with the labels of a head, which may have more classes.

    Args:
        source: the dataset.
        head: names of the head's classes; empty: not known.
        model: name of the model, for messages.

    Raises:
        DataError: the dataset has a class that the head does not have.
    """
    columns = head_columns(source.class_names, head, data=source.name, model=model, subset=True)
    return source if columns is None else MatchedSource(source, columns, head)
