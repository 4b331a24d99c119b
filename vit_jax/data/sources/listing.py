"""Lists the images in a folder, a folder of tar files, or a CSV file, without decoding them.

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
- A CSV file with the columns path, label and optionally split, or another column that says which
  images are held out, such as is_valid (`split_names.py`). Paths are relative to the CSV file.
  Labels are class names: integers are sorted as numbers, others as text.

Files without an image suffix are skipped and counted, and so are images beside the class folders;
hidden files and __MACOSX are skipped silently. A class
folder or tar file without images is an error in "train" and allowed in other splits. Empty files
are listed with size 0; the caller decides whether to refuse them.

The order of a split spreads every class evenly. Examples are sorted by (rank + 1/2) / n, where n is
the size of the class and rank is the example's index in its class when sorted by the hash of the
path. So every slice, such as train[90%:], is class-balanced and the same on every machine.
"""

import dataclasses
import hashlib
import io
import logging
import re
import tarfile
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from vit_jax.data.progress import track
from vit_jax.data.sources.base import bucket_error
from vit_jax.data.sources.image_files import UNREADABLE, BucketFiles, LocalFiles
from vit_jax.data.sources.image_table import read_csv, split_cells
from vit_jax.data.sources.split_names import split_of
from vit_jax.errors import DataError, first_few
from vit_jax.storage.block_cache import BlockCache
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import parse_json
from vit_jax.storage.paths import user_path

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff",
    ".ppm", ".pgm",
)  # fmt: skip
# A shard of a split, such as imagenet-val-000001, and a shard of any kind.
_SPLIT_SHARD = re.compile(r"(?:^|.*[ _.-])(train|val|valid|validation|dev|eval|test)(?![a-z]).*")
_SHARD = re.compile(r".*\d{3,}")
# Labels that are the same if they are equal as numbers, and texts for a label that is not there.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII)
_MISSING = ("nan", "none", "null", "n/a", "#n/a", "na", "<na>", "nat")
_MAX_NAMED = 5
# The most folders whose subfolders are compared, to find splits with other names.
_FEW = 4
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
    num_skipped: int  # Files that are not images.
    files: LocalFiles | BucketFiles

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
            self.files.read_ahead([self._place(row) for row in rows])

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
    """Lists the images of a folder or CSV file, also in a bucket."""
    path = user_path(path)
    try:
        if path.is_file():
            return _list_csv(path, cache)
        if path.is_dir():
            is_remote = isinstance(path, BucketPath)
            return _list_folder(path, BucketFiles(path, cache) if is_remote else LocalFiles(path))
    except OSError as error:
        if isinstance(path, BucketPath):
            raise bucket_error(error) from None
        raise DataError(
            f"{error.filename or path}: {error.strerror}",
            "readable folders and files",
            "change their permissions",
        ) from None
    raise DataError(
        f"no folder {path}", "a folder of images, one subfolder per class", "set data_dir"
    )


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


@dataclasses.dataclass(frozen=True)
class ImageEntry:
    """One image file or tar member."""

    split: str
    group: str
    name: str
    size: int
    offset: int


def _list_folder(root: Path, files: LocalFiles | BucketFiles) -> Listing:
    groups: list[tuple[str, str, str]] = []
    for split, base in _split_folders(root, files):
        subfolders, subtars = list_children(root, files, base.rstrip("/"))
        if subfolders and subtars:
            raise DataError(
                f"{root / base} holds both folders and tar files",
                "only one of the two",
                "move one kind elsewhere",
            )
        groups += [(split, name, f"{base}{name}") for name in subfolders]
        groups += [(split, name.removesuffix(".tar"), f"{base}{name}") for name in subtars]
    if not groups:
        raise DataError(
            f"no folders in {root}",
            "one subfolder (or tar file) of images per class",
            "sort the images into folders, or list them in a CSV file of path,label",
        )
    packed = groups[0][2].endswith(".tar") and not files.is_folder(groups[0][2])
    _check_groups(root, files, [place for _, _, place in groups], packed)
    found, num_skipped, labels = [], 0, dict[str, dict[str, str]]()
    groups = [(split, unicodedata.normalize("NFC", name), place) for split, name, place in groups]
    # Several tar files of a bucket at a time.
    with ThreadPoolExecutor(_THREADS if files.remote else 1) as pool:
        listed = pool.map(lambda group: _images_in(root, files, *group), groups)
        rows = list(track(zip(groups, listed, strict=True), f"listing {root}", len(groups)))
    for (split, _, place), (images, others, of_tar) in rows:
        if not images and split == "train":
            kind = "tar file" if packed else "folder"
            raise DataError(
                f"class {kind} {root / place} holds no image",
                f"files ending in {', '.join(IMAGE_SUFFIXES[:3])}, ...",
                f"remove the {kind}, or put images there",
            )
        found += images
        num_skipped += others
        for suffix, of_images in of_tar.items():
            labels.setdefault(suffix, {}).update(of_images)
    labelled = _labelled(root, found, labels) if labels else None
    if labelled is not None:
        num_skipped += len(found) - 2 * len(labelled)  # A file of each label is no other file.
        found = labelled
    bases = {place.rpartition("/")[0] for _, _, place in groups}
    loose = [name for base in bases for name in files.children(base)[1] if _is_image(name)]
    num_skipped += len(loose)
    if loose:
        log.warning("%s: images beside the classes are left out, such as %s", root, loose[0])
    if num_skipped:
        log.info("%s: other files that are left out: %d", root, num_skipped)
    named = {image.group for image in found}
    classes = sorted(named) if labelled is None else _sorted_classes(named)
    if packed and labelled is None and all(map(_SHARD.fullmatch, classes)):
        log.warning(
            "%s: there are no labels in .cls or .json files, so each tar file is one class", root
        )
    return make_listing(root, files, found, classes, num_skipped, packed=packed)


def _check_groups(
    root: Path, files: LocalFiles | BucketFiles, places: list[str], packed: bool
) -> None:
    """Raises DataError if what would be read as classes looks like splits."""
    if packed:
        stems = [place.rpartition("/")[2].removesuffix(".tar").lower() for place in places]
        found = [match and match[1] for match in map(_SPLIT_SHARD.fullmatch, stems)]
        splits = {split for split in found if split}
        looks = len(splits) > 1 and None not in found
    else:
        below = [files.children(place) for place in places] if len(places) <= _FEW else []
        holds = {(*folders,) for folders, names in below if not any(map(_is_image, names))}
        # The same classes in each split; or the splits are one level deeper.
        splits = {place.rpartition("/")[2] for place in places}
        same = len(below) > 1 and len(holds) == 1 and len(*holds) > 1
        same = same and not any(_is_image(name) for _, names in below for name in names)
        deeper = len(below) == 1 and any(split_of(name) == "train" for name in below[0][0])
        looks = same or deeper
    if looks:
        raise DataError(
            f"{root} has {', '.join(sorted(splits))}, which look like splits or hold them, and not"
            " like classes",
            "the folders train and, e.g., val and test, each with one subfolder or tar file a class"
            if not packed
            else "the tar files of each split in a folder of its own, train, val or test",
            "rename or move them, set data_dir to the folder with the splits, or list the images in"
            " a CSV file of path,label,split",
        )


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)


def _labelled(
    root: Path, images: list[ImageEntry], labels: Mapping[str, Mapping[str, str]]
) -> list[ImageEntry] | None:
    """Returns the images of tar files with the labels of the .cls or .json files beside them.

    None: these files do not tell the classes, so each tar file is one. This is so if there are
    .json files only, and not all images have a label or each tar file has its own.

    The group of an image is its tar file. `labels` maps a suffix to paths without their suffix and
    their labels.
    """
    suffix = ".cls" if ".cls" in labels else ".json"
    by_file, chosen, alone = labels[suffix], dict[str, ImageEntry](), list[str]()
    for image in images:
        stem = image.name.rpartition(".")[0]
        file = stem if stem in by_file else key_of(image.name)
        if file not in by_file:
            alone.append(image.name)
        elif file == stem or file not in chosen:  # One image of a key: not KEY.mask.png.
            chosen[file] = image
    pairs = {(image.group, by_file[file]) for file, image in chosen.items()}
    tars = len({tar for tar, _ in pairs})
    one_each = len(pairs) == tars
    if suffix == ".json" and one_each and (alone or tars == len({label for _, label in pairs})):
        return None
    if alone:
        raise DataError(
            f"{root / alone[0]} has no label",
            f"a {suffix} file of the same name, as other images there have",
            "add it, or remove the image",
        )
    log.info("%s: the classes are those in the %s files of the tar files", root, suffix)
    return [dataclasses.replace(image, group=by_file[file]) for file, image in chosen.items()]


def _split_folders(root: Path, files: LocalFiles | BucketFiles) -> list[tuple[str, str]]:
    """Returns (split, folder with a slash) of each split; ("train", ""): there are no splits."""
    folders, tars = list_children(root, files, "")
    named = {folder: split_of(folder) for folder in folders}
    rest = [folder for folder, split in named.items() if split is None]
    known = [split for split in named.values() if split]
    if tars or "train" not in known or (rest and len(known) == 1):
        return [("train", "")]
    found: dict[str, str] = {}
    for folder, split in named.items():
        if split is None:
            continue
        if split in found:
            raise DataError(
                f"{root} has the folders {found[split].rstrip('/')} and {folder}, which are both"
                f" the split {split}",
                "one folder for each split",
                "rename one, or list the images in a CSV file of path,label,split",
            )
        found[split] = f"{folder}/"
        children, packed = files.children(folder)
        if not packed and [child.lower() for child in children] == [folder.lower()]:
            below = f"{folder}/{children[0]}"  # seg_train/seg_train, unless it has images itself.
            if any(files.children(below)[0]) or list_children(root, files, below)[1]:
                found[split] = f"{below}/"
    if rest or any(base != f"{split}/" for split, base in found.items()):
        shown = ", ".join(f"{base.rstrip('/')} ({split})" for split, base in found.items())
        log.info("%s: folders that are read as splits: %s", root, shown)
    if rest:
        log.info(
            "%s: folders that are left out: %s; to use them, list the images in a CSV file of"
            " path,label,split",
            root,
            ", ".join(rest),
        )
    return list(found.items())


def list_children(
    root: Path, files: LocalFiles | BucketFiles, folder: str
) -> tuple[list[str], list[str]]:
    """Returns the names of subfolders and of tar files, sorted."""
    folders, others = files.children(folder)
    compressed = [name for name in others if name.endswith((".tar.gz", ".tgz", ".tar.xz"))]
    if compressed:
        raise DataError(
            f"{root / folder / compressed[0]} is compressed",
            "plain tar files",
            "uncompress it, e.g. with gunzip",
        )
    kept = [name for name in folders if name != "__MACOSX"]
    return kept, [name for name in others if name.endswith(".tar")]


def _images_in(
    root: Path, files: LocalFiles | BucketFiles, split: str, group: str, place: str
) -> tuple[list[ImageEntry], int, dict[str, dict[str, str]]]:
    """Returns the images of a folder or tar file, the number of other files, and `_labels_in`."""
    images, others = [], []
    is_folder = files.is_folder(place)
    if is_folder:
        members = ((name, size, 0) for name, size in files.walk(place))
    else:
        members = tar_members(root, files, place)
    for name, size, offset in members:
        # A broken link counts whatever its name is: a folder of images may be missing.
        if size == UNREADABLE or _is_image(name):
            images.append(ImageEntry(split, group, f"{place}/{name}", size, offset))
        else:
            others.append((name, size, offset))
    images.sort(key=lambda image: image.name)
    labels = {} if is_folder else _labels_in(root, files, place, others)
    return images, len(others), labels


def _labels_in(
    root: Path, files: LocalFiles | BucketFiles, place: str, others: Iterable[tuple[str, int, int]]
) -> dict[str, dict[str, str]]:
    """Returns suffix -> path without it -> label, of the .cls and .json files of a tar file."""
    found: dict[str, dict[str, str]] = {}
    for name, size, offset in others:
        stem, dot, suffix = re.sub(r"\.cls\.txt$", ".cls", name).rpartition(".")
        suffix = dot + suffix.lower()
        if suffix not in (".cls", ".json"):
            continue
        content = files.read(place, offset, size)
        label = _label_of_json(content) if suffix == ".json" else content.decode(errors="replace")
        if label is None:
            continue
        label = unicodedata.normalize("NFC", label.strip())
        if suffix == ".cls" and not (label and label.isprintable()):
            raise DataError(f"{root / place}/{name} holds {label!r}", "a class", "repair it")
        known = found.setdefault(suffix, {}).setdefault(f"{place}/{stem}", label)
        if known != label:
            raise DataError(
                f"{root / place} has {stem}{suffix} twice, with the labels {known} and {label}",
                "one label for each image",
                "repair it",
            )
    return found


def _label_of_json(content: bytes) -> str | None:
    """Returns the label of an image's JSON, a name or a number; None: it has none."""
    try:
        value = parse_json(content)
    except ValueError:
        return None
    value = value if isinstance(value, dict) else {}
    label = value.get("cls", value.get("label"))
    return str(label) if isinstance(label, str | int) and not isinstance(label, bool) else None


def key_of(name: str) -> str:
    """Returns the name of a tar member up to the first dot of the file name, as WebDataset does."""
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}{file.partition('.')[0]}"


def tar_members(
    root: Path, files: LocalFiles | BucketFiles, name: str
) -> Iterable[tuple[str, int, int]]:
    """Returns (name, size, offset) of the files in a tar file.

    Listing a tar file means reading all of it, so the list of one in a bucket is cached.
    """
    if not isinstance(files, BucketFiles):
        return _read_tar(root / name, files.open(name))
    listed = files.cache.remembered(
        f"tar-{files.key(name)}", lambda: list(_read_tar(root / name, files.open(name)))
    )
    return map(tuple, listed)


def _read_tar(path: Path, file: io.BufferedReader) -> Iterator[tuple[str, int, int]]:
    try:
        with file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if member.isreg() and not member.name.rpartition("/")[2].startswith("."):
                    yield member.name, member.size, member.offset_data
                # tarfile keeps every member in memory otherwise.
                archive.members = []  # pyright: ignore[reportAttributeAccessIssue]
    except (tarfile.TarError, OSError) as error:
        if isinstance(error, OSError) and isinstance(path, BucketPath):
            raise bucket_error(error) from None
        raise DataError(
            f"{path} cannot be read: {error}", "an intact tar file", "download it again"
        ) from None


def _list_csv(path: Path, cache: BlockCache | None) -> Listing:
    rows = _csv_rows(path)
    return list_named(path, cache, rows, _sorted_classes({label for _, label, _ in rows}))


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
        plain = name.strip().casefold()
        number = _NUMBER.fullmatch(plain)
        alike.setdefault(float(plain) if number else plain, []).append(name)
    twice = [" = ".join(map(repr, names)) for names in alike.values() if len(names) > 1]
    missing = [repr(name) for name in classes if name.strip().casefold() in _MISSING]
    warnings = []
    if twice:
        warnings.append(
            "classes that differ only by capitals, spaces or how a number is written:"
            f" {first_few(twice, _MAX_NAMED)}"
        )
    if missing:
        warnings.append(f"classes that may be missing labels: {', '.join(missing)}")
    if warnings:
        log.warning("%s: %s", root, "; ".join(warnings))


def _sorted_classes(names: set[str]) -> list[str]:
    """Returns names of classes as text, or as numbers if all are."""
    numbers = all(name.isascii() and name.isdecimal() for name in names)
    return sorted(names, key=(lambda text: (int(text), text)) if numbers else str)


def _csv_rows(path: Path) -> list[tuple[str, str, str]]:
    """Returns (path, label, split) of every line."""
    table = read_csv(path, ",")
    used = {name.strip().casefold(): name for name in table.columns}
    if not {"path", "label"} <= set(used):
        raise DataError(
            f"the first line of {path} is {','.join(table.columns)!r}",
            "path,label or path,label,split",
            "add this line",
        )
    if not table.rows:
        raise DataError(f"{path} lists no image", "one line per image", "add them")
    splits = split_cells(path, table, [used["path"], used["label"]])
    rows = [
        (
            row[used["path"]].strip(),
            unicodedata.normalize("NFC", row[used["label"]].strip()),
            split_of(split) or split.strip(),
        )
        for row, split in zip(table.rows, splits, strict=True)
    ]
    for number, row in zip(table.lines, rows, strict=True):
        if not all(row):
            raise DataError(
                f"line {number} of {path} has an empty value",
                ",".join(table.columns),
                "fix the line",
            )
    known = dict[str, str]()
    for name, label, _ in rows:
        if known.setdefault(name, label) != label:
            raise DataError(
                f"{path} lists {name} as {known[name]} and as {label}",
                "one label for each image",
                "remove one of the lines",
            )
    return rows


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
