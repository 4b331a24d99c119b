"""Source for images in a folder, in tar files, or listed in a CSV file."""

import re
from collections.abc import Sequence

import numpy as np

from vit_jax.data.sources.base import (
    LABEL_ONLY,
    Example,
    Source,
    check_features,
    hash_of,
    without_label,
)
from vit_jax.data.sources.image_files import UNREADABLE
from vit_jax.data.sources.listing import Listing
from vit_jax.data.sources.splits import expand_presets, read_split
from vit_jax.errors import DataError


class FolderSource(Source):
    """A split of a `Listing` of image files. `features` may have only the label.

    With `empty_files` "error", files of zero bytes and broken links raise DataError; with "keep",
    the loader skips them.
    """

    def __init__(
        self,
        listing: Listing,
        split: str,
        name: str,
        empty_files: str = "error",
        features: Sequence[str] = LABEL_ONLY,
    ):
        check_features(without_label(features), (), str(listing.root))
        for name, reason in listing.left_out.items():
            if re.search(rf"\b{name}\b", split):
                raise DataError(
                    f"split {name!r} of {listing.root} is left out: {reason}",
                    "the class folders of train in each split",
                    "sort its images into class folders, or list them in a CSV file of"
                    " path,label,split",
                )
        sizes = {split: len(rows) for split, rows in listing.splits.items()}
        expanded = expand_presets(split, sizes, name)
        try:
            self.spans = read_split(expanded, {s: [n] for s, n in sizes.items()}, str(listing.root))
        except DataError as error:
            if not (split.isidentifier() and listing.root.is_dir()):
                raise
            fix = f"{error.fix}, or make the folder {listing.root / split}"
            raise DataError(error.got, error.expected, fix) from None
        parts = [listing.splits[span.split][span.start : span.stop] for span in self.spans]
        self._listing, self._rows = listing, np.concatenate(parts)
        self.name = f"{name} {split}"
        self.class_names = listing.class_names
        self.remote, self.quick_labels = listing.files.remote, True
        self.fingerprint = hash_of(expanded, listing.identity(self._rows))
        if empty_files == "error":
            _check_sizes(listing, self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Example:
        row = int(self._rows[index])
        listing = self._listing
        return Example(listing.read(row), int(listing.labels[row]), listing.names[row])

    def read_ahead(self, indices: Sequence[int]) -> None:
        self._listing.read_ahead(int(self._rows[i]) for i in indices)

    def labels(self) -> np.ndarray:
        return self._listing.labels[self._rows]


def _check_sizes(listing: Listing, rows: np.ndarray) -> None:
    """Raises DataError if there are empty files or broken links among some rows."""
    sizes = listing.sizes[rows]
    for wrong, what in (
        (sizes == 0, "empty files"),
        (sizes == UNREADABLE, "broken links, pipes or devices"),
    ):
        if wrong.any():
            raise DataError(
                f"{wrong.sum()} {what} in {listing.root}, such as {listing.names[rows[wrong][0]]}",
                "images",
                "remove them (python -m vit_jax data check lists all bad images), or set"
                " data.on_bad_example=skip",
            )
