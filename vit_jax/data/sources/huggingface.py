"""Datasets of the `datasets` package (extra `huggingface`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.data.sources.base import (
    LABEL_ONLY,
    Example,
    check_features,
    hash_of,
    pick_feature,
    without_label,
)
from vit_jax.data.sources.splits import expand_presets, read_split
from vit_jax.errors import DataError
from vit_jax.storage.paths import local_path


class HuggingFaceSource:
    """A split of a Hugging Face dataset, its images still encoded.

    Args:
        name: "OWNER/NAME", or "OWNER/NAME:CONFIG".
        split: TFDS split string over the dataset's splits, e.g. "train[:98%]".
        data_dir: folder written by `save_to_disk`; None: the dataset is loaded by name.
        image_key: by default "image", or the only image column.
        label_key: by default "label", or the only column of type ClassLabel. The classes of a
            column of integers or texts are its values in all splits, sorted. Negative numbers are
            missing labels.
        features: columns to read with the image: "label", and names of other columns.
    """

    def __init__(
        self,
        name: str,
        split: str,
        data_dir: str | None = None,
        *,
        image_key: str | None = None,
        label_key: str | None = None,
        features: Sequence[str] = LABEL_ONLY,
    ):
        datasets = _import_datasets(data_dir)
        splits = _load_splits(datasets, name, data_dir)
        sizes = {key: len(part) for key, part in splits.items()}
        expanded = expand_presets(split, sizes, name)
        self.spans = read_split(expanded, {key: [size] for key, size in sizes.items()}, name)
        parts = [splits[span.split].select(range(span.start, span.stop)) for span in self.spans]
        rows = parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
        described = f"dataset {name} with columns {', '.join(rows.column_names)}"
        images = [k for k, f in rows.features.items() if isinstance(f, datasets.Image)]
        classes = [k for k, f in rows.features.items() if isinstance(f, datasets.ClassLabel)]
        self._image = pick_feature(image_key, "image", images, described)
        self._label = None
        if "label" in features:
            self._label = _label_column(label_key, classes, rows.features, described)
        self._others = without_label(features)
        check_features(self._others, rows.column_names, described)
        columns = [self._image, *([self._label] if self._label else []), *self._others]
        self._rows = rows.select_columns(columns)
        for column in set(columns) & set(images):
            self._rows = self._rows.cast_column(column, datasets.Image(decode=False))
        self.name, self.quick_labels = f"{name} {split}", self._label is not None
        # Value in the label column -> label, for a column of integers or texts.
        self._labels: dict[Any, int] = {}
        self.class_names: tuple[str, ...] = ()
        if self._label in classes:
            self.class_names = tuple(rows.features[self._label].names)
        elif self._label:
            values = {v for part in splits.values() for v in part.unique(self._label)}
            known = sorted(v for v in values if v is not None and (isinstance(v, str) or v >= 0))
            self._labels = {value: label for label, value in enumerate(known)}
            self.class_names = tuple(map(str, self._labels))
        info = next(iter(splits.values())).info
        content = [info.dataset_name, info.config_name, str(info.version), info.dataset_size]
        # save_to_disk writes a hash. A dataset of the hub is identified by its name and version.
        content += [name] if data_dir is None else [p._fingerprint for p in splits.values()]
        self.fingerprint = hash_of(
            content, expanded, sorted(sizes.items()), self.class_names, columns
        )

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Example:
        return self.read([index])[0]

    def read(self, indices: Sequence[int]) -> list[Example]:
        found = self._rows[list(indices)]
        encoded = {
            name: [
                _image_bytes(v) if isinstance(v, dict) and "bytes" in v else v for v in found[name]
            ]
            for name in self._others
        }
        labels = found[self._label] if self._label else [None] * len(indices)
        return [
            Example(
                _image_bytes(image),
                self._number(label),
                str(index),
                {name: values[i] for name, values in encoded.items()},
            )
            for i, (index, image, label) in enumerate(
                zip(indices, found[self._image], labels, strict=True)
            )
        ]

    def _number(self, label: Any) -> int:
        """Returns the number of a class; -1 where it is missing."""
        if label is None:
            return -1
        return self._labels.get(label, -1) if self._labels else int(label)

    def labels(self) -> np.ndarray:
        """Returns the label of every example; -1 where it is missing."""
        if self._label is None:
            return np.full(len(self), -1)
        column = self._rows.select_columns([self._label])
        if self._labels:
            return np.array(list(map(self._number, column[:][self._label])), np.int64)
        labels = np.asarray(column.with_format("numpy")[:][self._label])
        if labels.dtype.kind == "f":  # NumPy shows missing labels as NaN.
            labels = np.where(np.isnan(labels), -1, labels)
        return labels.astype(np.int64)


def open_splits(
    name: str, data_dir: str | None, *, image_key: str | None, label_key: str | None
) -> dict[str, HuggingFaceSource]:
    """Returns all splits of a dataset."""
    return {
        split: HuggingFaceSource(name, split, data_dir, image_key=image_key, label_key=label_key)
        for split in _load_splits(_import_datasets(data_dir), name, data_dir)
    }


def _label_column(wanted: str | None, classes: list[str], features: Any, described: str) -> str:
    """Returns the name of the column with the class; one of integers or texts must be named so."""
    name = wanted or "label"
    kind = getattr(features.get(name), "dtype", "")
    if (name not in classes and (wanted or not classes)) and kind.startswith(("int", "string")):
        return name
    return pick_feature(wanted, "label", classes, described)


def _import_datasets(data_dir: str | None) -> Any:
    """Returns the package. Checks that the data is not in a bucket, which needs no package."""
    if data_dir is not None:
        local_path(data_dir, "data of data.source=huggingface")
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise DataError(
            "data.source is huggingface, but the package `datasets` is not installed",
            "the package `datasets`",
            "run: pip install datasets (the `huggingface` extra)",
        ) from None
    return datasets


def _load_splits(datasets: Any, name: str, data_dir: str | None) -> Any:
    """Returns split -> dataset."""
    if data_dir is None:
        repository, _, config = name.partition(":")
        try:
            return datasets.load_dataset(repository, config or None)
        except Exception as error:  # Network, authentication, name, format: types differ.
            raise DataError(
                f"Hugging Face dataset {name!r}: {(str(error).splitlines() or [''])[0]}",
                "OWNER/NAME or OWNER/NAME:CONFIG on the hub or in its cache",
                "check data.name, or set data_dir to a folder that save_to_disk wrote",
            ) from None
    folder = local_path(data_dir, "data of data.source=huggingface")
    try:
        found = datasets.load_from_disk(str(folder))
    except (FileNotFoundError, ValueError, OSError, IndexError):  # IndexError: no examples.
        raise DataError(
            f"no dataset in {folder}", "a folder written by save_to_disk", "check data_dir"
        ) from None
    return found if hasattr(found, "items") else {str(found.split or "train"): found}


def _image_bytes(image: dict[str, Any] | None) -> bytes:
    if image is None:
        return b""  # Like an empty file, a missing image is a bad example.
    if image["bytes"] is not None:
        return image["bytes"]
    try:
        return Path(image["path"]).read_bytes()
    except OSError as error:
        raise DataError(
            f"{image['path']}: {error.strerror}", "an image file", "restore the dataset"
        ) from None
