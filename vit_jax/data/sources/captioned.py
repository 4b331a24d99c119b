"""Images with captions: a CSV or JSONL file, or tar files in the layout of WebDataset.

Layouts of `data.data_dir`:

- A CSV, TSV or JSONL file, or a folder with `metadata.csv` or `metadata.jsonl`. A column names the
  image, relative to the file: `file_name`, `filepath`, `path` or `image`. Another has the caption;
  in JSONL it may be a list of captions. Several lines may have the same image. A column `split` is
  optional.
- A folder of tar files. KEY.jpg (or another image) belongs to KEY.txt, or to KEY.json, of which one
  key is the caption. KEY ends at the first dot of the file's name. Folders inside it, such as
  `train`, are splits if `train` is one of them. The tar files are read in place: listing them finds
  the place of each caption, and it is read together with its image.

The order of a split is that of the hashes of the names of its images, so that each slice of it is a
random sample.
"""

import dataclasses
import hashlib
import logging
import posixpath
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.data.image_formats import HOW_TO_CONVERT, counted, is_image, unread_format
from vit_jax.data.progress import track
from vit_jax.data.sources.base import Example, bucket_error, hash_of
from vit_jax.data.sources.folder import FolderSource
from vit_jax.data.sources.folder_layout import check_names, list_children
from vit_jax.data.sources.image_files import UNREADABLE, BucketFiles, ImageEntry, LocalFiles
from vit_jax.data.sources.image_table import is_caption, read_csv, read_jsonl, split_cells
from vit_jax.data.sources.listing import Listing, list_named, make_listing
from vit_jax.data.sources.tar_files import key_of, tar_members
from vit_jax.errors import DataError
from vit_jax.storage.block_cache import BlockCache
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import parse_json
from vit_jax.storage.paths import user_path

log = logging.getLogger(__name__)

_FILE_COLUMNS = ("file_name", "filepath", "path", "image")
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.tsv")
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
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
    try:
        if path.is_dir():
            table = next((path / name for name in _METADATA if (path / name).is_file()), None)
            if table is None:
                return CaptionedListing(*_list_tars(path, feature, cache), feature)
            path = table
        if path.is_file() and path.suffix in (*_SEPARATORS, ".jsonl"):
            return CaptionedListing(*_list_table(path, feature, cache), feature)
    except OSError as error:
        if isinstance(path, BucketPath):
            raise bucket_error(error) from None
        raise DataError(
            f"{error.filename or path}: {error.strerror}", _LAYOUTS, "check data.data_dir"
        ) from None
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
    separator = _SEPARATORS.get(path.suffix)
    table = read_jsonl(path) if separator is None else read_csv(path, separator)
    if not table.rows:
        raise DataError(f"{path} lists no image", "one line per image", "add them")
    first = table.rows[0]
    column = next((name for name in _FILE_COLUMNS if name in first), None)
    if column is None or feature not in first:
        raise DataError(
            f"{path} with the columns {', '.join(first)}",
            f"{' or '.join(_FILE_COLUMNS)}, and {feature}",
            "rename a column, or set data.captions.feature",
        )
    captions: dict[str, list[str]] = {}
    splits: dict[str, str] = {}
    cells = split_cells(path, table, column, feature)
    for number, row, split in zip(table.lines, table.rows, cells, strict=True):
        where = f"line {number} of {path}"
        name = row.get(column)
        if not isinstance(name, str) or not name:
            raise DataError(f"{where} has no {column}", "the path of an image", "fix the line")
        if (known := splits.setdefault(posixpath.normpath(name), split)) != split:
            raise DataError(
                f"{where}: {name} is in the splits {known} and {split}",
                "one split for an image",
                "fix the line",
            )
        captions.setdefault(name, []).extend(_check_texts(row.get(feature), where, feature))
    listing = list_named(
        path, cache, [(name, "", splits[posixpath.normpath(name)]) for name in captions], [""]
    )
    return listing, [captions[name] for name in listing.names]


def _check_texts(value: Any, where: str, feature: str) -> list[str]:
    """Returns one or several captions as a list."""
    texts = value if isinstance(value, list) else [value]
    for text in texts or [None]:
        if not isinstance(text, str) or not is_caption(text):
            raise DataError(
                f"{where}: {feature} is {text!r}",
                "a caption that is not empty, no missing value and no list written as text",
                "fix the line, or remove it; several captions are several lines or JSONL",
            )
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(f"{where}: {feature} {text!r}", "UTF-8", "fix the line") from None
    return texts


def _list_tars(
    root: Path, feature: str, cache: BlockCache | None
) -> tuple[Listing, list[list[str] | _Place]]:
    files = BucketFiles(root, cache) if isinstance(root, BucketPath) else LocalFiles(root)
    folders, tars = list_children(root, files, "")
    groups = [("train", name) for name in tars]
    if not tars and "train" in folders:
        groups = [(f, f"{f}/{name}") for f in folders for name in list_children(root, files, f)[1]]
    if not groups:
        raise DataError(f"no tar files in {root}", _LAYOUTS, "set data.data_dir")
    check_names(root, groups)
    found: list[ImageEntry] = []
    places: dict[str, _Place] = {}
    others, unread = 0, Counter[str]()
    for split, tar in track(groups, f"listing {root}", len(groups)):
        images, captions, skipped = _pairs(tar, tar_members(root, files, tar), feature)
        unread.update(filter(None, map(unread_format, skipped)))
        missing = [name for name in images if name not in captions]
        if missing:
            key = f"{tar}/{images[missing[0]][0].rpartition('.')[0]}"
            raise DataError(
                f"{root / key} has an image and no {feature} ({len(missing)} such images in {tar})",
                "KEY.txt or KEY.json for each image",
                "leave the image out, or set data.captions.feature",
            )
        found += [ImageEntry(split, "", f"{tar}/{n}", s, o) for n, s, o in images.values()]
        places |= {f"{tar}/{images[key][0]}": captions[key] for key in images}
        others += len(skipped)
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
        log.info("%s: %d other files in the tar files are left out", root, others)
    listing = make_listing(root, files, found, [""], others, packed=True)
    return listing, [places[name] for name in listing.names]


def _pairs(
    tar: str, members: Iterable[tuple[str, int, int]], feature: str
) -> tuple[dict[str, tuple[str, int, int]], dict[str, _Place], list[str]]:
    """Returns key -> (name, size, offset) of images, key -> place of captions, and other files."""
    images: dict[str, tuple[str, int, int]] = {}
    texts: dict[str, _Place] = {}
    objects: dict[str, _Place] = {}
    others: list[str] = []
    text = feature.lower() if feature != "caption" else "txt"
    for name, size, offset in members:
        folder, slash, file = name.rpartition("/")
        stem, _, suffix = file.partition(".")
        kind = suffix.lower()
        if not ("." not in kind and is_image(name)) and kind not in (text, "json"):
            # No suffix of WebDataset: the key has a dot, or the sample has other files.
            stem, _, suffix = file.rpartition(".")
            kind = suffix.lower()
        key = f"{folder}{slash}{stem}"
        if is_image(name) and "." not in kind and key not in images:
            images[key] = (name, size, offset)
        elif size == UNREADABLE:
            others.append(name)
        elif kind == text:
            texts[key] = _Place(tar, offset, size, None)
        elif kind == "json":
            objects[key] = _Place(tar, offset, size, feature)
        else:
            others.append(name)
    captions = objects | texts
    beside = [k for k in images if k not in captions and key_of(k) != k and key_of(k) in images]
    others += [images.pop(key)[0] for key in beside]  # Such as KEY.mask.png beside KEY.jpg.
    return images, captions, others
