"""Lists labelled images in a folder, in tar files or in a table, without decoding them.

Layouts:

- FOLDER/CLASS/**/IMAGE: each subfolder is a class; classes are sorted by name. There is one split,
  "train".
- FOLDER/SPLIT/CLASS/**/IMAGE: the subfolders are splits if one is named train and another val,
  valid, validation, dev, eval or test, or if there is train alone. Variants such as Training,
  test_set, 01_val, train2017 and seg_train/seg_train are understood too. Other folders beside them
  are left out. The classes are the union over all splits.
- FOLDER/CLASS.tar, or FOLDER/SPLIT/CLASS.tar: one plain tar file per class. It is read in place.
- FOLDER/*.tar or FOLDER/SPLIT/*.tar in WebDataset's layout: KEY.jpg and KEY.cls with the class, a
  name or a number, or KEY.json with the class as "cls" or "label". There is one image for a KEY.
- A CSV, TSV or JSONL file with the columns path, label and optionally split, or another column
  that says which images are held out, such as is_valid (`split_names.py`). Paths are relative to
  the file. Labels are class names: integers are sorted as numbers, others as text.

`folder_layout.py` says which folders are splits, which are classes, and what is refused. Files
without an image suffix are skipped and counted, and so are images beside the class folders; images
of formats that are not read are named. Hidden files and folders of systems, such as __MACOSX and
@eaDir, are skipped silently. A class folder or tar file without images is an error in "train" and
allowed in other splits. Empty files are listed with size 0; the caller decides whether to refuse
them.

The order of a split spreads every class evenly. Examples are sorted by (rank + 1/2) / n, where n is
the size of the class and rank is the example's index in its class when sorted by the hash of the
path. So every slice, such as train[90%:], is class-balanced and the same on every machine.
"""

import contextlib
import dataclasses
import hashlib
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vit_jax.data.image_formats import (
    HOW_TO_CONVERT,
    counted,
    is_image,
    no_images_error,
    unread_formats,
)
from vit_jax.data.progress import track
from vit_jax.data.sources.base import bucket_error
from vit_jax.data.sources.folder_layout import (
    check_classes,
    check_names,
    list_children,
    split_folders,
    splits_without_classes,
    warn_of_lists,
)
from vit_jax.data.sources.image_files import UNREADABLE, BucketFiles, ImageEntry, LocalFiles
from vit_jax.data.sources.image_table import MISSING, label_text, read_rows
from vit_jax.data.sources.split_names import split_of, splits_in_file_names
from vit_jax.data.sources.tar_files import Contents, Member, labelled, read_shard
from vit_jax.errors import DataError, first_few
from vit_jax.storage.block_cache import BlockCache
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.paths import user_path

# Labels that are the same if they are equal as numbers.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII)
# Several labels as Python and PostgreSQL write them.
_LIST = re.compile(r"\[.*\]|\{.*\}|\(.*,.*\)|\d+([\s|;,]+\d+)+|[^|;]+([|;][^|;]+)+")
_MOST_TAGS = 1000  # More are not compared with each other.
_MAX_NAMED = 5
# Ratings from 0.5 to 5 in halves have five of them.
_MOST_FRACTIONS = 10
# A shard of any kind. Short numbers, such as 0 to 9, may be classes.
_SHARD = re.compile(r".*(\d{3,}|\D\d+)")
# Labels that stand for none, beside MISSING.
_UNLABELLED = re.compile(
    r"\?|-|-1(\.0)?|missing|un(known|labell?ed|annotated|classified|sorted|sup(ervised)?)"
    r"([ _-]*(data|images?|imgs?|photos?|examples?|samples?|set))?"
)
# What is added to the name of a copy, by file managers or people.
_COPY = re.compile(
    r"(?<=\w)[ _.-]+(copy( ?\(?\d+\)?)?|\(copy\)|\(\d+\)|aug(mented)?|bak|backup|duplicates?)$"
    r"|^aug(mented)?[ _-]+"
)
# Beside class folders; `list_children` refuses compressed tar files.
_ARCHIVES = (".zip", ".rar", ".7z")
_SORT = "sort the images into folders, or list them in a CSV file of path,label"
# Files of tar files that have labels: suffix -> kind.
_LABELS = {"cls": "cls", "cls.txt": "cls", "json": "json"}
log = logging.getLogger(__name__)
_THREADS = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Listing:
    """A list of N image files."""

    root: Path  # Names are relative to it.
    names: list[str]  # Such as "cats/1.jpg"; in a tar file "cats.tar/1.jpg".
    labels: np.ndarray  # i32[N].
    sizes: np.ndarray  # i64[N] in bytes; UNREADABLE: not a file.
    offsets: np.ndarray | None  # i64[N] in the tar file; None: separate files.
    class_names: tuple[str, ...]  # In label order.
    splits: dict[str, np.ndarray]  # Split -> rows in reading order.
    num_skipped: int  # Files that are not images, and images of splits that are left out.
    files: LocalFiles | BucketFiles
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)  # Split -> reason.

    def read(self, row: int) -> bytes:
        """Returns the encoded bytes of an image."""
        if self.sizes[row] == UNREADABLE:
            raise DataError(
                f"{self.root / self.names[row]} is a link that leads nowhere or in a circle, a pipe"
                " or a device",
                "an image file",
                "remove it",
            )
        return self.files.read(*self._place(row))

    def read_ahead(self, rows: Iterable[int]) -> None:
        """Starts to read images in the background if they are in a bucket."""
        if self.files.remote:
            known = [row for row in rows if self.sizes[row] != UNREADABLE]
            self.files.read_ahead([self._place(row) for row in known])

    def _place(self, row: int) -> tuple[str, int | None, int]:
        """Returns file, start and size of an image; the start is None if the file is the image."""
        name, size = self.names[row], int(self.sizes[row])
        if self.offsets is None:
            return name, None, size
        return f"{name.partition('.tar/')[0]}.tar", int(self.offsets[row]), size

    def identity(self, rows: np.ndarray) -> str:
        """Returns a hash of the class names and of each row's name, size and label, in order."""
        digest = hashlib.sha256(_encode_name("\0".join(self.class_names)))
        for row in rows:
            line = f"\n{self.names[row]}\0{self.sizes[row]}\0{self.labels[row]}"
            digest.update(_encode_name(line))
        return digest.hexdigest()[:16]


def list_images(path: Path, cache: BlockCache | None = None) -> Listing:
    """Lists the images of a folder, or of a CSV, TSV or JSONL file, also in a bucket."""
    path = user_path(path)
    with listing_errors(path):
        if path.is_file():
            return _list_table(path, cache)
        if path.is_dir():
            return _list_folder(path, files_in(path, cache))
    raise DataError(
        f"no folder {path}", "a folder of images, one subfolder per class", "set data_dir"
    )


def files_in(root: Path, cache: BlockCache | None) -> LocalFiles | BucketFiles:
    """Returns the files of a folder on a disk or in a bucket."""
    return BucketFiles(root, cache) if isinstance(root, BucketPath) else LocalFiles(root)


@contextlib.contextmanager
def listing_errors(path: Path) -> Iterator[None]:
    """Converts errors of reading what lists images, or their folders, to a DataError."""
    try:
        yield
    except OSError as error:
        if isinstance(path, BucketPath):
            raise bucket_error(error) from None
        raise DataError(
            f"{error.filename or path}: {error.strerror}",
            "readable folders and files",
            "change their permissions",
        ) from None


def spread_evenly(labels: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Returns an order that spreads every class evenly, by (rank + 1/2) / n and then by key.

    Examples of a class are ranked by `keys`, u64[N].
    """
    by_class = np.lexsort((keys, labels))
    counts = np.bincount(labels) if len(labels) else np.zeros(0, int)
    starts = np.concatenate([[0], np.cumsum(counts)])[:-1].astype(np.int64)
    sorted_labels = labels[by_class]
    ranks = np.arange(len(labels)) - starts[sorted_labels]
    place = (ranks + 0.5) / counts[sorted_labels]
    return by_class[np.lexsort((keys[by_class], place))]


def _list_folder(root: Path, files: LocalFiles | BucketFiles) -> Listing:
    bases = split_folders(root, files)
    groups = _groups_in(root, files, bases)
    packed = bool(groups) and not files.is_folder(groups[0].place)
    check_names(root, [(group.split, group.place) for group in groups])
    if len(bases) == 1:
        warn_of_lists(root, files.children("")[1])
    # Several tar files of a bucket at a time.
    with ThreadPoolExecutor(_THREADS if files.remote else 1) as pool:
        listed = pool.map(lambda group: _list_group(root, files, group), groups)
        rows = list(track(zip(groups, listed, strict=True), f"listing {root}", len(groups)))
    found = [image for _, inside in rows for image in inside.images]
    others = [name for _, inside in rows for name in inside.others]
    unread = sum((inside.unread for _, inside in rows), Counter[str]())
    left_out = dict[str, str]()
    for split, base in bases:
        names = files.children(base.rstrip("/"))[1]
        loose = [name for name in names if is_image(name)]
        if archives := [name for name in names if name.lower().endswith(_ARCHIVES)]:
            log.warning("%s: archives are not read: %s", root, first_few(archives, _MAX_NAMED))
        there = any(group.split == split for group in groups)
        formats = unread_formats(names)
        if not there and (not groups or (split == "train" and (loose or formats))):
            formats = Counter() if loose else formats
            raise no_images_error(f"no folders in {root / base}", formats, _SORT)
        unread += formats
        others += [f"{base}{name}" for name in names if is_image(name) or unread_formats([name])]
        if loose and there:
            log.warning("%s: images beside the classes are left out, such as %s", root, loose[0])
        elif loose:
            left_out[split] = f"its {len(loose):,} images are in no class folder"
    without = [row for row in rows if not row[1].images and row[0].split == "train"]
    if without:
        kind = ("tar file" if packed else "folder") + "s" * (len(without) > 1)
        places = first_few([str(root / group.place) for group, _ in without], _MAX_NAMED)
        raise no_images_error(
            f"the class {kind} {places} hold{'s' * (len(without) == 1)} no image",
            sum((inside.unread for _, inside in without), Counter[str]()),
            f"delete the {kind}, or put images there",
        )
    labels = dict[str, dict[str, str]]()
    for _, inside in rows:
        for kind, of_images in inside.texts.items():
            labels.setdefault(kind, {}).update(of_images)
    num_unused = sum(map(len, labels.values()))  # Files of labels.
    chosen = labelled(root, found, labels) if labels else None
    if chosen is not None:
        num_unused -= len(chosen)
        kept = {image.name for image in chosen}
        others += [image.name for image in found if image.name not in kept]
        found = chosen
    else:
        check_classes(root, {group.place: inside.images for group, inside in rows})
    unlabelled = splits_without_classes(root, found)
    others += [image.name for image in found if image.split in unlabelled]
    found = [image for image in found if image.split not in unlabelled]
    there = {image.split for image in found}
    empty = {split: "it holds no image that is read" for split, _ in bases if split not in there}
    left_out = empty | left_out | unlabelled
    for split, reason in left_out.items():
        log.warning("%s: the split %s is left out: %s", root, split, reason)
    if unread:
        log.warning(
            "%s: images of formats that are not read: %s; %s", root, counted(unread), HOW_TO_CONVERT
        )
    num_others = len(others) + num_unused
    if num_others:
        names = f" ({first_few(others, 3, total=num_others)})" if others else ""
        log.info("%s: other files that are left out: %d%s", root, num_others, names)
    named = {image.group for image in found}
    classes = sorted(named) if chosen is None else _sorted_classes(named)
    if packed and chosen is None and all(map(_SHARD.fullmatch, classes)):
        log.warning(
            "%s: there are no labels in .cls or .json files, so each tar file is one class", root
        )
    listing = make_listing(root, files, found, classes, num_others, packed=packed)
    return dataclasses.replace(listing, left_out=left_out)


class _Group(NamedTuple):
    """A folder or a tar file of images, which are of one class unless files have labels."""

    split: str
    name: str
    place: str


def _groups_in(
    root: Path, files: LocalFiles | BucketFiles, bases: Iterable[tuple[str, str]]
) -> list[_Group]:
    groups = []
    for split, base in bases:
        folders, tars = list_children(root, files, base.rstrip("/"))
        if folders and tars:
            raise DataError(
                f"{root / base} holds both folders and tar files",
                "only one of the two",
                "move one kind elsewhere",
            )
        for name in folders or tars:
            group = unicodedata.normalize("NFC", name.removesuffix(".tar") if tars else name)
            groups.append(_Group(split, group, f"{base}{name}"))
    return groups


def _list_group(root: Path, files: LocalFiles | BucketFiles, group: _Group) -> Contents:
    split, name, place = group

    def label(member: Member) -> str | None:
        text = member.label
        if not member.name.lower().endswith(".json") and not (text and text.isprintable()):
            raise DataError(f"{root / place}/{member.name} holds {text!r}", "a class", "repair it")
        return text

    if not files.is_folder(place):
        return read_shard(root, files, place, split=split, group=name, kinds=_LABELS, keep=label)
    images, others = [], []
    for file, size in files.walk(place):
        # A broken link counts whatever its name is: a folder of images may be missing.
        if is_image(file) or size == UNREADABLE:
            images.append(ImageEntry(split, name, f"{place}/{file}", size, 0))
        else:
            others.append(file)
    images.sort(key=lambda image: image.name)
    others = sorted(f"{place}/{file}" for file in others)
    return Contents(images, {}, others, unread_formats(others))


def _list_table(path: Path, cache: BlockCache | None) -> Listing:
    known: dict[str, str] = {}
    named = []
    for row in read_rows(path, ("path",), "label", "name the columns in the first line"):
        label = label_text(row.value)
        if not label:
            raise DataError(
                f"{row.where} has the label {row.value!r}", "the name of a class", "fix the line"
            )
        if (first := known.setdefault(row.image, label)) != label:
            raise DataError(
                f"{row.where}: {row.image} has the labels {first} and {label}",
                "one label for each image",
                "remove one of the lines",
            )
        named.append((row.image, label, row.split))
    if twice := len(named) - len(known):
        log.warning("%s: %d lines repeat an image; slices of a split may share it", path, twice)
    return list_named(path, cache, named, _sorted_classes(set(known.values())))


def list_named(
    path: Path, cache: BlockCache | None, rows: list[tuple[str, str, str]], classes: list[str]
) -> Listing:
    """Returns the images that a file lists as (name relative to its folder, label, split)."""
    files = LocalFiles(path.parent)
    if isinstance(path, BucketPath):
        files = BucketFiles(path.parent, cache, [name for name, _, _ in rows])
    found, missing = [], []
    for name, label, split in track(rows, f"listing {path}", len(rows)):
        try:
            found.append(ImageEntry(split, label, name, files.size(name), 0))
        except (OSError, ValueError):  # A zero byte in the name is a ValueError.
            missing.append(name.replace("\0", r"\0"))
    if missing:
        raise DataError(
            f"{len(missing)} of {len(rows)} files listed in {path} do not exist, such as"
            f" {missing[0]}",
            f"files relative to {path.parent}",
            "correct the paths",
        )
    return make_listing(path.parent, files, found, classes, 0, packed=False)


def _warn_of_class_names(root: Path, classes: Sequence[str]) -> None:
    """Warns of classes that may be one, such as 1 and 1.0 or Car and car, and of missing labels."""
    alike: dict[float | str, list[str]] = {}
    for name in classes:
        plain = _plain(name)
        number = _NUMBER.fullmatch(plain)
        words = re.sub(r"(?<=\w)[\s_-]+(?=\w)", " ", _COPY.sub("", plain))
        alike.setdefault(float(plain) if number else words, []).append(name)
    twice = [" = ".join(map(repr, names)) for names in alike.values() if len(names) > 1]
    missing = [
        repr(name)
        for name in classes
        if _plain(name) in MISSING or _UNLABELLED.fullmatch(_plain(name))
    ]
    warnings = []
    if twice:
        warnings.append(
            "classes that differ only by capitals, spaces, hyphens, invisible or wide characters,"
            " by how a number is written, or as a copy does:"
            f" {first_few(twice, _MAX_NAMED)}"
        )
    parts = {name: {*re.split(r"[\s|;,+&]+", name)} - {name} for name in classes}
    lists = [name for name in classes if parts[name] and parts[name] <= parts.keys()]
    if lists := list(dict.fromkeys(lists + _tags(classes))):
        warnings.append(f"classes that may be several labels: {first_few(lists, _MAX_NAMED)}")
    if missing and set(classes) != {"-1", "1"}:
        warnings.append(f"classes that may be missing labels: {', '.join(missing)}")
    if splits := [name for name in classes if split_of(name) not in (None, "train")]:
        warnings.append(f"classes that are named like splits: {first_few(splits, _MAX_NAMED)}")
    fractions = [
        name
        for name in classes
        if _NUMBER.fullmatch(_plain(name)) and not float(_plain(name)).is_integer()
    ]
    if len(fractions) > _MOST_FRACTIONS:
        warnings.append(
            f"{len(fractions)} classes that may be measurements, such as {fractions[0]!r}: each"
            " number is a class"
        )
    if warnings:
        log.warning("%s: %s", root, "; ".join(warnings))


def _tags(classes: Sequence[str]) -> list[str]:
    """Returns the classes that are lists of tags by their form, or have the words of others."""
    lists = [name for name in classes if _LIST.fullmatch(name)]
    words = {name: {*name.split()} for name in classes if len(name.split()) > 1}
    if len(words) > _MOST_TAGS:
        return lists
    inside = [name for name, own in words.items() if any(own < more for more in words.values())]
    # A few names may lie in others, as water bottle in plastic water bottle.
    return lists + (inside if 10 * len(inside) >= len(classes) else [])


def _plain(name: str) -> str:
    """Returns a name without capitals, forms of characters and invisible ones such as a BOM."""
    shown = (c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    return "".join(shown).strip().casefold()


def _sorted_classes(names: set[str]) -> list[str]:
    """Returns names of classes as text, or as numbers if all are."""
    numbers = all(name.isascii() and name.isdecimal() for name in names)
    return sorted(names, key=(lambda text: (int(text), text)) if numbers else str)


def make_listing(
    root: Path,
    files: LocalFiles | BucketFiles,
    found: list[ImageEntry],
    classes: list[str],
    num_skipped: int,
    *,
    packed: bool,
) -> Listing:
    """Returns the listing of some images, with their order in each split.

    `classes` are the names of the images' groups, in label order. `packed` images are in tar files.
    """
    _warn_of_class_names(root, classes)
    inside = {
        folder
        for image in found
        for folder in image.name.split("/")[1:-1]
        if split_of(folder) not in (None, split_of(image.split)) and folder != image.group
    }
    if inside:
        log.warning(
            "%s: folders that are named like splits, and whose images are not in these splits: %s",
            root, first_few(sorted(inside), _MAX_NAMED),
        )  # fmt: skip
    if {image.split for image in found} == {"train"} and (
        said := splits_in_file_names(image.name for image in found)
    ):
        log.warning(
            "%s: all images are in the split train, but the names of the files say %s: to hold some"
            " out, list them in a CSV file of path,label,split", root, " and ".join(said),
        )  # fmt: skip
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers[image.group] for image in found], np.int32)
    keys = np.array([_hash_name(image.name) for image in found], np.uint64)
    splits = {}
    for split in dict.fromkeys(image.split for image in found):
        rows = np.array([i for i, image in enumerate(found) if image.split == split], np.int64)
        splits[split] = rows[spread_evenly(labels[rows], keys[rows])]
    return Listing(
        root=root,
        names=[image.name for image in found],
        labels=labels,
        sizes=np.array([image.size for image in found], np.int64),
        offsets=np.array([image.offset for image in found], np.int64) if packed else None,
        class_names=tuple(classes),
        splits=splits,
        num_skipped=num_skipped,
        files=files,
    )


def _hash_name(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(_encode_name(name), digest_size=8).digest(), "little")


def _encode_name(name: str) -> bytes:
    """Returns the bytes of a file name, which need not be UTF-8."""
    return name.encode(errors="surrogateescape")
