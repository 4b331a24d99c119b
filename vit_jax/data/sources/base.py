"""The interface between datasets and the rest of the package."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from vit_jax.errors import DataError

# Features that are read beside the image unless a task asks for others.
LABEL_ONLY = ("label",)


@dataclasses.dataclass(frozen=True)
class Example:
    """One example as stored.

    Attributes:
        image: encoded bytes (PNG, JPEG, ...).
        label: class index; -1 where no label was asked for.
        id: identifies the example within its source in error messages.
        features: other features that the task asked for, by their names in the dataset; images
            still encoded.
    """

    image: bytes
    label: int
    id: str
    features: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@runtime_checkable
class Source(Protocol):
    """A dataset split as the loader sees it: cheap to read at random and from many threads.

    Attributes:
        name: for messages.
        class_names: names of the classes, in label order.
        fingerprint: hash that changes when the examples do.
    """

    name: str
    class_names: tuple[str, ...]
    fingerprint: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...

    def read(self, indices: Sequence[int]) -> list[Example]:
        """Returns several examples; faster than one by one."""
        ...


@runtime_checkable
class LabelledSource(Source, Protocol):
    """A source that knows all its labels without decoding images. Subsets need that."""

    def labels(self) -> np.ndarray:
        """Returns the label of every example: i[N], or u[N]."""
        ...


def hash_of(*parts: Any) -> str:
    """Returns the first 16 hexadecimal digits of a hash of JSON-like values."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def pick_feature(wanted: str | None, usual: str, available: Sequence[str], dataset: str) -> str:
    """Returns the name of the image or label feature to read.

    Args:
        wanted: `data.image_key` or `data.label_key`; None: the usual name, or the only feature.
        usual: "image" or "label".
        available: names of the features of that kind.
        dataset: for the error message.

    Raises:
        DataError: there is no such feature, or there are several to choose from.
    """
    chosen = wanted or usual
    if chosen in available:
        return chosen
    if wanted is None and len(available) == 1:
        return available[0]
    kind = {"image": "image", "label": "class"}[usual]
    if not available:
        raise DataError(
            f"{dataset} has no {kind} feature",
            "an 'image' and a class 'label'",
            "use an image-classification dataset",
        )
    raise DataError(
        f"{dataset} has no {kind} feature {chosen!r}",
        f"one of {', '.join(sorted(available))}",
        f"set data.{usual}_key",
    )


def without_label(features: Sequence[str]) -> tuple[str, ...]:
    """Returns the features other than the label."""
    return tuple(name for name in features if name != "label")


def check_features(features: Sequence[str], available: Sequence[str], dataset: str) -> None:
    """Raises DataError if the dataset lacks a feature that the task reads.

    Args:
        features: names in the dataset, without "label".
        available: all feature names of the dataset.
        dataset: for the error message.
    """
    missing = [name for name in features if name not in available]
    if missing:
        raise DataError(
            f"{dataset} has no feature {missing[0]!r}, which the task reads",
            f"a dataset with {', '.join(features)}",
            "choose another dataset or task",
        )
