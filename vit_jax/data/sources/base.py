"""The interface between datasets and the rest of the package."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

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


@runtime_checkable
class Source(Protocol):
    """A dataset split with fast random access, safe to read from many threads."""

    name: str  # For messages.
    class_names: tuple[str, ...]  # In label order.
    fingerprint: str  # Changes when the examples do.

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...

    def read(self, indices: Sequence[int]) -> list[Example]:
        """Returns several examples; faster than one by one."""
        ...


@runtime_checkable
class LabelledSource(Source, Protocol):
    """A source that lists all labels without decoding images. Subsets need this."""

    def labels(self) -> np.ndarray:
        """Returns the label of every example: i[N], or u[N]."""
        ...


@runtime_checkable
class QuickLabels(LabelledSource, Protocol):
    """A source that may list its labels at once."""

    quick_labels: bool  # Whether `labels` takes less than about a second.


def has_quick_labels(source: Source) -> bool:
    """Whether a source lists its labels at once."""
    return isinstance(source, QuickLabels) and source.quick_labels


@runtime_checkable
class SplitSource(Source, Protocol):
    """A source that consists of parts of a dataset's splits."""

    spans: list[Span]


@runtime_checkable
class RemoteSource(Source, Protocol):
    """A source that may be in a bucket."""

    remote: bool  # If so, callers should announce what they will read.

    def read_ahead(self, indices: Sequence[int]) -> None:
        """Starts to read examples in the background."""
        ...


def is_remote(source: Source) -> bool:
    """Whether a source is in a bucket."""
    return isinstance(source, RemoteSource) and source.remote


def read_ahead(source: Source, indices: Sequence[int]) -> None:
    """Starts to read examples in the background if the source is in a bucket."""
    if isinstance(source, RemoteSource) and source.remote:
        source.read_ahead(indices)


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
