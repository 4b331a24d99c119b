"""Images with captions: a CSV or JSONL file, or tar files in the layout of WebDataset.

Layouts of `data.data_dir`:

- A CSV, TSV or JSONL file, or a folder with `metadata.csv` or `metadata.jsonl`. A column names the
  image, relative to the file: `file_name`, `filepath`, `path` or `image`. Another has the caption;
  in JSONL it may be a list of captions. Several lines may have the same image. A column `split` is
  optional.
- A folder of tar files. KEY.jpg (or another image) belongs to KEY.txt, or to KEY.json, of which one
  key is the caption. Folders inside it, such as `train`, are splits if `train` is one of them.
  The tar files are read in place: listing them finds the place of each caption, and it is read
  together with its image.

Both are read as those with labels are, with the same columns and keys of splits
(`image_table.py`, `tar_files.py`). The order of a split is that of the hashes of the names of its
images, so that each slice of it is a random sample.
"""

import dataclasses
import hashlib
import logging
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data.image_formats import HOW_TO_CONVERT, counted
from vit_jax.data.progress import track
from vit_jax.data.sources.base import Example, hash_of
from vit_jax.data.sources.folder import FolderSource
from vit_jax.data.sources.folder_layout import check_names, list_children
from vit_jax.data.sources.image_files import ImageEntry
from vit_jax.data.sources.image_table import read_rows
from vit_jax.data.sources.listing import (
    Listing,
    files_in,
    list_named,
    listing_errors,
    make_listing,
)
from vit_jax.data.sources.tar_files import Member, pair, read_shard
from vit_jax.errors import DataError, first_few
from vit_jax.storage.block_cache import BlockCache
from vit_jax.storage.files import parse_json
from vit_jax.storage.paths import user_path

log = logging.getLogger(__name__)

_FILE_COLUMNS = ("file_name", "filepath", "path", "image")
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.tsv")
_TABLES = (".csv", ".tsv", ".jsonl")
# Captions that programs write in place of a text: a missing value, a list.
_NO_CAPTION = re.compile(
    r"(?:nan|none|null|<na>)?|\[\s*(['\"]).*\1\s*\]", re.DOTALL | re.IGNORECASE
)
_LAYOUTS = "a CSV or JSONL file of images and captions, or a folder of tar files"


class _Place(NamedTuple):
    """Where a caption is in a tar file. `key` is None if it is the whole member, else of JSON."""

    name: str
    offset: int
    size: int
    key: str | None


@dataclasses.dataclass(frozen=True, eq=False)
class CaptionedListing:
    """Images with captions."""

    images: Listing
    captions: list[list[str] | _Place]  # Those of each image, or their place in a tar file.
    feature: str  # Column or key of the captions.


def list_captioned(
    path: Path, features: Sequence[str], cache: BlockCache | None = None
) -> CaptionedListing:
    """Lists images with captions in one of the layouts at the top of this file, also in a bucket.

    `features` must be one name: the column or key of the captions.
    """
    if len(features) != 1 or features[0] == "label":
        raise DataError(
            f"{path} has captions, no labels",
            "a task of images and captions, with data.captions.tokenizer",
            "set data.captions.tokenizer, or choose a dataset with labels",
        )
    path, feature = user_path(path), features[0]
    with listing_errors(path):
        if path.is_dir():
            table = next((path / name for name in _METADATA if (path / name).is_file()), None)
            if table is None:
                return CaptionedListing(*_list_tars(path, feature, cache), feature)
            path = table
        if path.is_file() and path.suffix in _TABLES:
            return CaptionedListing(*_list_table(path, feature, cache), feature)
    raise DataError(
        f"{path} as images with captions" if path.exists() else f"no file or folder {path}",
        _LAYOUTS,
        "set data.data_dir",
    )


class CaptionedSource(FolderSource):
    """A split of images with captions. An example has them in its feature, as a list of texts."""

    def __init__(
        self, listing: CaptionedListing, split: str, name: str, empty_files: str = "error"
    ):
        super().__init__(listing.images, split, name, empty_files, ())
        self.class_names = ()
        self._captions, self._feature = listing.captions, listing.feature
        shown = hashlib.sha256()
        for row in self._rows:
            shown.update(repr(self._captions[row]).encode(errors="surrogatepass"))
        self.fingerprint = hash_of(self.fingerprint, self._feature, shown.hexdigest())

    def __getitem__(self, index: int) -> Example:
        row, listing = int(self._rows[index]), self._listing
        found = {self._feature: self._texts(row)}
        return Example(listing.read(row), -1, listing.names[row], found)

    def _texts(self, row: int) -> list[Any]:
        """Returns the captions of an image; those in tar files are read now."""
        place = self._captions[row]
        if not isinstance(place, _Place):
            return place
        content = self._listing.files.read(place.name, place.offset, place.size)
        if place.key is None:
            return [content]
        shown = f"{self._listing.names[row].rpartition('.')[0]}.json"
        try:
            found = parse_json(content)
        except ValueError as error:
            raise DataError(f"{shown}: {error}", "JSON", "repair it") from None
        if not isinstance(found, dict) or place.key not in found:
            keys = ", ".join(sorted(found)) if isinstance(found, dict) else type(found).__name__
            raise DataError(
                f"{shown} with {keys}", f"the key {place.key!r}", "set data.captions.feature"
            )
        value = found[place.key]
        return value if isinstance(value, list) else [value]


def _list_table(
    path: Path, feature: str, cache: BlockCache | None
) -> tuple[Listing, list[list[str] | _Place]]:
    captions: dict[str, list[str]] = {}
    splits: dict[str, str] = {}
    fix = "rename a column, or set data.captions.feature"
    for row in read_rows(path, _FILE_COLUMNS, feature, fix):
        splits[row.image] = row.split
        try:
            captions.setdefault(row.image, []).extend(read_texts(row.value))
        except DataError as error:
            fix = "fix the line, or remove it; several captions are several lines or JSONL"
            raise DataError(f"{row.where}: {feature}: {error.got}", error.expected, fix) from None
    listing = list_named(path, cache, [(name, "", splits[name]) for name in captions], [""])
    return listing, [captions[name] for name in listing.names]


def _list_tars(
    root: Path, feature: str, cache: BlockCache | None
) -> tuple[Listing, list[list[str] | _Place]]:
    files = files_in(root, cache)
    folders, tars = list_children(root, files, "")
    groups = [("train", name) for name in tars]
    if not tars and "train" in folders:
        groups = [(f, f"{f}/{name}") for f in folders for name in list_children(root, files, f)[1]]
    if not groups:
        raise DataError(f"no tar files in {root}", _LAYOUTS, "set data.data_dir")
    check_names(root, groups)
    found: list[ImageEntry] = []
    places: dict[str, _Place] = {}
    others, unread = list[str](), Counter[str]()
    kinds = {"json": "json", feature.lower() if feature != "caption" else "txt": "text"}
    for split, tar in track(groups, f"listing {root}", len(groups)):

        def place(member: Member, tar: str = tar) -> _Place:
            is_json = member.name.lower().endswith(".json")
            return _Place(tar, member.offset, member.size, feature if is_json else None)

        shard = read_shard(root, files, tar, split=split, group="", kinds=kinds, keep=place)
        captions = shard.texts.get("json", {}) | shard.texts.get("text", {})
        chosen, alone = pair(shard.images, captions)
        if alone:
            raise DataError(
                f"{root / alone[0].name.rpartition('.')[0]} has an image and no {feature}"
                f" ({len(alone)} such images in {tar})",
                "KEY.txt or KEY.json for each image",
                "leave the image out, or set data.captions.feature",
            )
        found += chosen.values()
        places |= {image.name: captions[key] for key, image in chosen.items()}
        unread += shard.unread
        used = {image.name for image in chosen.values()}
        others += shard.others + [i.name for i in shard.images if i.name not in used]
    shown = f"; images of formats that are not read: {counted(unread)}" if unread else ""
    if not found:
        raise DataError(
            f"the tar files in {root} hold no image with a {feature} of the same name{shown}",
            "KEY.jpg and KEY.txt, with one KEY",
            HOW_TO_CONVERT if unread else "rename the files",
        )
    if unread:
        log.warning("%s%s; %s", root, shown, HOW_TO_CONVERT)
    if others:
        shown = first_few(others, 3)
        log.info("%s: other files that are left out: %d (%s)", root, len(others), shown)
    listing = make_listing(root, files, found, [""], len(others), packed=True)
    return listing, [places[name] for name in listing.names]


def read_texts(value: Any, inner: Sequence[str] = ()) -> list[str]:
    """Returns the captions in a feature's value. DataError: none, or one is empty or not UTF-8.

    The value is one or several texts, or a sequence of features; `inner` names the text in these.
    """
    for name in inner:
        if isinstance(value, dict):
            value = value.get(name, [])
        elif isinstance(value, list | tuple | np.ndarray):
            value = [one[name] for one in value if isinstance(one, dict) and name in one]
    found = list(map(_text, value if isinstance(value, list | tuple | np.ndarray) else [value]))
    if not found:
        raise DataError("no caption", "one or more", "leave the image out")
    return found


def _text(value: Any) -> str:
    try:
        text = value.decode() if isinstance(value, bytes | np.bytes_) else value
        if isinstance(text, str):
            text.encode()
    except UnicodeError:
        raise DataError(f"caption {value[:60]!r}", "a text in UTF-8", "repair it") from None
    if not isinstance(text, str):
        raise DataError(
            f"a caption of type {type(text).__name__}", "a text", "set data.captions.feature"
        )
    if _NO_CAPTION.fullmatch(text.strip()):
        got = f"the caption {text[:60]!r}" if text.strip() else "an empty caption"
        raise DataError(
            got, "a text, no missing value and no list as text", "leave it out, or write one"
        )
    return str(text)
