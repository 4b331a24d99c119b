"""Lists the images in a folder, a folder of tar files, or a CSV file, without decoding them.

Layouts:

- FOLDER/CLASS/**/IMAGE: each subfolder is a class; classes are sorted by name. There is one split,
  "train".
- FOLDER/{train,val,valid,validation,test}/CLASS/**/IMAGE: the subfolders are splits if "train" is
  one of them and there are no other folders. The classes are the union over all splits.
- FOLDER/CLASS.tar, or FOLDER/SPLIT/CLASS.tar: one plain tar file per class. It is read in place.
- A CSV file with the columns path, label and optionally split. Paths are relative to the CSV file.
  Labels are class names: integers are sorted as numbers, others as text.

Files without an image suffix are skipped and counted; hidden files are skipped silently. A class
folder or tar file without images is an error in "train" and allowed in other splits. Empty files
are listed with size 0; the caller decides whether to refuse them.

The order of a split spreads every class evenly. Examples are sorted by (rank + 1/2) / n, where n is
the size of the class and rank is the example's index in its class when sorted by the hash of the
path. So every slice, such as train[90%:], is class-balanced and the same on every machine.
"""

import csv
import dataclasses
import hashlib
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vit_jax.data.progress import track
from vit_jax.errors import DataError

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm",
)  # fmt: skip
SPLIT_FOLDERS = ("train", "val", "valid", "validation", "test")


@dataclasses.dataclass(frozen=True, eq=False)
class Listing:
    """A list of image files.

    Attributes:
        root: folder that names are relative to.
        names: paths of the images, e.g. "cats/1.jpg"; in a tar file "cats.tar/1.jpg".
        labels: i32[N], class indices.
        sizes: i64[N] in bytes.
        offsets: i64[N], position of the bytes in the tar file; None: images are separate files.
        class_names: in label order.
        splits: split -> rows in reading order.
        num_skipped: number of files that are not images.
    """

    root: Path
    names: list[str]
    labels: np.ndarray
    sizes: np.ndarray
    offsets: np.ndarray | None
    class_names: tuple[str, ...]
    splits: dict[str, np.ndarray]
    num_skipped: int

    def read(self, row: int) -> bytes:
        """Returns the encoded bytes of an image.

        Raises:
            DataError: the file is missing or cannot be read.
        """
        name = self.names[row]
        try:
            if self.offsets is None:
                return (self.root / name).read_bytes()
            with (self.root / f"{name.partition('.tar/')[0]}.tar").open("rb") as file:
                return os.pread(file.fileno(), int(self.sizes[row]), int(self.offsets[row]))
        except OSError as error:
            raise DataError(
                f"{self.root / name}: {error.strerror}",
                "a file that existed when the folder was listed",
                "restore it, or start again",
            ) from None

    def identity(self, rows: np.ndarray) -> str:
        """Returns a hash of the class names and of each row's name, size and label, in order."""
        digest = hashlib.sha256(_encode_name("\0".join(self.class_names)))
        for row in rows:
            line = f"\n{self.names[row]}\0{self.sizes[row]}\0{self.labels[row]}"
            digest.update(_encode_name(line))
        return digest.hexdigest()[:16]


def list_images(path: Path) -> Listing:
    """Lists the images of a folder or CSV file.

    Raises:
        DataError: the path does not exist or has none of the layouts, a class has no images, a file
            named in the CSV is missing, or a tar file is damaged.
    """
    path = path.expanduser()
    try:
        if path.is_file():
            return _list_csv(path)
        if path.is_dir():
            return _list_folder(path)
    except OSError as error:
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

    Args:
        labels: i[N].
        keys: u64[N]; examples of a class are ranked by key.
    """
    by_class = np.lexsort((keys, labels))
    counts = np.bincount(labels) if len(labels) else np.zeros(0, int)
    starts = np.concatenate([[0], np.cumsum(counts)])[:-1].astype(np.int64)
    sorted_labels = labels[by_class]
    ranks = np.arange(len(labels)) - starts[sorted_labels]
    place = (ranks + 0.5) / counts[sorted_labels]
    return by_class[np.lexsort((keys[by_class], place))]


@dataclasses.dataclass(frozen=True)
class _ImageEntry:
    """One image file or tar member."""

    split: str
    group: str
    name: str
    size: int
    offset: int


def _list_folder(root: Path) -> Listing:
    folders, tars = _list_children(root)
    split_names = [f for f in folders if f in SPLIT_FOLDERS]
    has_splits = "train" in split_names and split_names == folders and not tars
    groups: list[tuple[str, str, Path]] = []
    for split, base in [(s, root / s) for s in folders] if has_splits else [("train", root)]:
        subfolders, subtars = _list_children(base)
        if subfolders and subtars:
            raise DataError(
                f"{base} holds both folders and tar files",
                "only one of the two",
                "move one kind elsewhere",
            )
        groups += [(split, name, base / name) for name in subfolders]
        groups += [(split, name.removesuffix(".tar"), base / name) for name in subtars]
    if not groups:
        raise DataError(
            f"no folders in {root}",
            "one subfolder (or tar file) of images per class",
            "sort the images into folders, or list them in a CSV file of path,label",
        )
    packed = groups[0][2].suffix == ".tar" and groups[0][2].is_file()
    found, num_skipped = [], 0
    for split, group, place in track(groups, f"listing {root}", len(groups)):
        images, others = _images_in(root, split, group, place)
        if not images and split == "train":
            kind = "tar file" if packed else "folder"
            raise DataError(
                f"class {kind} {place} holds no image",
                f"files ending in {', '.join(IMAGE_SUFFIXES[:3])}, ...",
                f"remove the {kind}, or put images there",
            )
        found += images
        num_skipped += others
    classes = sorted({group for _, group, _ in groups})
    return _make_listing(root, found, classes, num_skipped, packed=packed)


def _list_children(folder: Path) -> tuple[list[str], list[str]]:
    """Returns the names of subfolders and of tar files, sorted."""
    with os.scandir(folder) as entries:
        entries = [e for e in entries if not e.name.startswith(".")]
    compressed = [e.name for e in entries if e.name.endswith((".tar.gz", ".tgz", ".tar.xz"))]
    if compressed:
        raise DataError(
            f"{folder / compressed[0]} is compressed",
            "plain tar files",
            "uncompress it, e.g. with gunzip",
        )
    tars = sorted(e.name for e in entries if e.name.endswith(".tar") and e.is_file())
    return sorted(e.name for e in entries if e.is_dir()), tars


def _images_in(root: Path, split: str, group: str, place: Path) -> tuple[list[_ImageEntry], int]:
    """Returns the images of a class sorted by name, and the number of other files."""
    images, others = [], 0
    files = _walk_folder(place) if place.is_dir() else _tar_members(place)
    prefix = place.relative_to(root).as_posix()
    for name, size, offset in files:
        if name.lower().endswith(IMAGE_SUFFIXES):
            images.append(_ImageEntry(split, group, f"{prefix}/{name}", size, offset))
        else:
            others += 1
    return sorted(images, key=lambda image: image.name), others


def _walk_folder(folder: Path, prefix: str = "") -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        entries = [e for e in entries if not e.name.startswith(".")]
    for entry in entries:
        if entry.is_dir():
            _check_cycle(folder, entry)
            yield from _walk_folder(folder / entry.name, f"{prefix}{entry.name}/")
        else:
            try:
                yield f"{prefix}{entry.name}", entry.stat().st_size, 0
            except OSError as error:  # A dangling link.
                raise DataError(
                    f"{entry.path}: {error.strerror}", "a file", "remove the link"
                ) from None


def _check_cycle(folder: Path, entry: "os.DirEntry[str]") -> None:
    """Raises DataError for a link to a folder that contains the link, which is an endless loop."""
    if entry.is_symlink() and folder.resolve().is_relative_to(Path(entry.path).resolve()):
        raise DataError(
            f"{entry.path} is a link to a folder that contains it",
            "no cycles of links",
            "remove the link",
        )


def _tar_members(path: Path) -> Iterator[tuple[str, int, int]]:
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.isreg() and not Path(member.name).name.startswith("."):
                    yield member.name, member.size, member.offset_data
                # tarfile keeps every member in memory otherwise.
                archive.members = []  # pyright: ignore[reportAttributeAccessIssue]
    except (tarfile.TarError, OSError) as error:
        raise DataError(
            f"{path} cannot be read: {error}", "an intact tar file", "download it again"
        ) from None


def _list_csv(path: Path) -> Listing:
    rows = _csv_rows(path)
    labels = {label for _, label, _ in rows}
    numbers = all(label.isascii() and label.isdecimal() for label in labels)
    found, missing = [], []
    for name, label, split in track(rows, f"listing {path}", len(rows)):
        try:
            found.append(_ImageEntry(split, label, name, (path.parent / name).stat().st_size, 0))
        except (OSError, ValueError):  # A zero byte in the name is a ValueError.
            missing.append(name.replace("\0", r"\0"))
    if missing:
        raise DataError(
            f"{len(missing)} of {len(rows)} files listed in {path} do not exist, such as"
            f" {missing[0]}",
            f"files relative to {path.parent}",
            "correct the paths",
        )
    classes = sorted(labels, key=(lambda text: (int(text), text)) if numbers else str)
    return _make_listing(path.parent, found, classes, 0, packed=False)


def _csv_rows(path: Path) -> list[tuple[str, str, str]]:
    """Returns (path, label, split) of every line."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            if not {"path", "label"} <= set(columns):
                raise DataError(
                    f"the first line of {path} is {','.join(columns)!r}",
                    "path,label or path,label,split",
                    "add this line",
                )
            rows = [(r["path"], r["label"], r.get("split", "train")) for r in reader]
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}: {error}", "a CSV file in UTF-8", "fix the file") from None
    for number, row in enumerate(rows, start=2):
        if not all(row):
            raise DataError(
                f"line {number} of {path} has an empty value",
                ",".join(columns),
                "fix the line",
            )
    if not rows:
        raise DataError(f"{path} lists no image", "one line per image", "add them")
    return rows


def _make_listing(
    root: Path, found: list[_ImageEntry], classes: list[str], num_skipped: int, *, packed: bool
) -> Listing:
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
    )


def _hash_name(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(_encode_name(name), digest_size=8).digest(), "little")


def _encode_name(name: str) -> bytes:
    """Returns the bytes of a file name, which need not be UTF-8."""
    return name.encode(errors="surrogateescape")
