"""The interface between datasets and the rest of the package."""

import abc
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.data.decode import ImageData
from vit_jax.data.sources.splits import Span
from vit_jax.errors import DataError, UnreachableError

# Features that are read with the image by default.
LABEL_ONLY = ("label",)


@dataclasses.dataclass(frozen=True)
class Example:
    """One example as stored."""

    image: ImageData
    label: int  # -1 if it was not requested.
    id: str  # Within its source, for error messages.
    # Others that the task requested, by their names in the dataset. Images are not decoded.
    features: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Source(abc.ABC):
    """A dataset split: a random-access sequence of examples, safe to read from many threads.

    A subclass has its length, its examples and a fingerprint; everything else has a default.
    """

    name: str = "the dataset"  # For messages.
    class_names: tuple[str, ...] = ()  # In label order.
    fingerprint: str  # Changes when the examples do.
    spans: Sequence[Span] = ()  # The parts of splits that it consists of; (): unknown.
    in_memory: bool = False  # Keeps its images as pixels, so reader processes would copy them.
    quick_labels: bool = False  # Whether `labels` takes less than about a second.
    remote: bool = False  # In a bucket, so callers should announce what they will read.

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Example: ...

    def read(self, indices: Sequence[int]) -> list[Example]:
        """Returns several examples; in some sources faster than one by one."""
        self.read_ahead(indices)
        return [self[i] for i in indices]

    def read_ahead(self, indices: Sequence[int]) -> None:
        """Starts to read examples in the background if the source is in a bucket."""
        del indices

    def labels(self) -> np.ndarray:
        """Returns the label of every example, i[N] or u[N]. By default, reads the examples."""
        return np.array([self[i].label for i in range(len(self))], np.int64)


class SourceView(Source):
    """A source that is made of another one, with its name and classes. Subclasses define `read`."""

    def __init__(self, source: Source):
        self._source = source
        self.name, self.class_names = source.name, source.class_names
        self.fingerprint, self.remote = source.fingerprint, source.remote

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Example:
        return self.read([index])[0]

    def read_ahead(self, indices: Sequence[int]) -> None:
        self._source.read_ahead(indices)


def bucket_error(error: OSError) -> DataError:
    """Returns the error of a user for an object that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return DataError(
            f"no object {error.filename}",
            "the objects that existed when the dataset was opened",
            "restore it, or start again",
        )
    return UnreachableError(
        f"cannot read {error.filename}: {error.strerror or error}",
        "a bucket that can be reached and read",
        "check the network and the credentials, then run the same command again",
    )


def hash_of(*parts: Any) -> str:
    """Returns the first 16 hexadecimal digits of a hash of JSON-like values."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def pick_feature(wanted: str | None, default: str, available: Sequence[str], dataset: str) -> str:
    """Returns the image or label feature to read: `wanted`, `default`, or the only such feature."""
    chosen = wanted or default
    if chosen in available:
        return chosen
    if wanted is None and len(available) == 1:
        return available[0]
    kind = {"image": "image", "label": "class"}[default]
    if not available:
        raise DataError(
            f"{dataset} has no {kind} feature",
            "an 'image' and a class 'label'",
            "use an image-classification dataset",
        )
    raise DataError(
        f"{dataset} has no {kind} feature {chosen!r}",
        f"one of {', '.join(sorted(available))}",
        f"set data.{default}_key",
    )


def without_label(features: Sequence[str]) -> tuple[str, ...]:
    """Returns the features other than the label."""
    return tuple(name for name in features if name != "label")


def check_features(features: Sequence[str], available: Sequence[str], dataset: str) -> None:
    """Raises DataError if the dataset lacks a feature, other than "label", that the task reads."""
    missing = [name for name in features if name not in available]
    if missing:
        raise DataError(
            f"{dataset} has no feature {missing[0]!r}, which the task reads",
            f"a dataset with {', '.join(features)}",
            "choose another dataset or task",
        )
