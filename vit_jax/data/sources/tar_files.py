"""Reads tar files: images, and in the layout of WebDataset the labels or captions beside them.

KEY.cls, KEY.txt or KEY.json belongs to the image KEY.jpg or, without such an image, to the first
one whose name is KEY up to its first dot.

Links in a tar file are followed inside it, also through linked folders, as on a disk. A link that
leads to no file in it has the size UNREADABLE.
"""

import dataclasses
import io
import logging
import posixpath
import tarfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.data.image_formats import described, is_image, unread_formats
from vit_jax.data.sources.base import bucket_error
from vit_jax.data.sources.image_files import (
    UNREADABLE,
    BucketFiles,
    ImageEntry,
    LocalFiles,
    is_hidden,
)
from vit_jax.data.sources.image_table import label_text
from vit_jax.data.sources.split_names import check_split, may_say_split, split_of
from vit_jax.errors import DataError
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import parse_json

log = logging.getLogger(__name__)

# Ends of the names of files that are read while a tar file is listed.
_LABELS = (".cls", ".cls.txt", ".json")
_NONE: Mapping[str, str] = {}  # One for all members.
# A link that leads further than this is a circle.
_MOST_LINKS = 40


class Member(NamedTuple):
    """A file or link in a tar file."""

    name: str
    size: int  # In bytes, or UNREADABLE.
    offset: int
    label: str | None  # The text of a .cls file, or the label in a .json file.
    splits: Mapping[str, str]  # What a .json file says about its split: dotted key -> text.


@dataclasses.dataclass(frozen=True)
class Contents:
    """What is in a folder or a tar file. Paths are relative to the root of the dataset."""

    images: list[ImageEntry]  # Sorted by name.
    texts: dict[str, dict[str, Any]]  # Kind -> path without suffix -> what is kept of the file.
    others: list[str]  # Files that are not read, sorted.
    unread: Counter[str]  # Images among them: format -> number.


def read_shard(
    root: Path,
    files: LocalFiles | BucketFiles,
    place: str,
    *,
    split: str,
    group: str,
    kinds: Mapping[str, str],
    keep: Callable[[Member], Any],
) -> Contents:
    """Lists a tar file. `kinds` are those of texts that belong to images, by their suffixes.

    `keep` returns what is kept of a text; None: it is not read. Raises DataError if .json files say
    that images are in another split than `split`, and if an image has two texts of one kind.
    """
    images, texts, others = [], dict[str, dict[str, Any]](), []
    said: dict[str, set[str]] = {}
    for member in _members(root, files, place):
        name, lower = f"{place}/{member.name}", member.name.lower()
        suffix = next((suffix for suffix in kinds if lower.endswith(f".{suffix}")), None)
        kept = None if suffix is None or member.size == UNREADABLE else keep(member)
        if is_image(member.name):
            images.append(ImageEntry(split, group, name, member.size, member.offset))
        elif suffix is None or kept is None:
            others.append(name)
        else:
            key = name[: -len(suffix) - 1]
            known = texts.setdefault(kinds[suffix], {}).setdefault(key, kept)
            if known != kept:
                raise DataError(
                    f"{root / place} has {member.name} and another such file for the same image",
                    "one file of a kind for each image, or equal ones",
                    "remove one",
                )
        for key, text in member.splits.items():
            said.setdefault(key, set()).add(text)
    for key, found in said.items():
        check_split(root / place, split, key, sorted(found))
    images.sort(key=lambda image: image.name)
    return Contents(images, texts, sorted(others), unread_formats(others))


def pair(
    images: Iterable[ImageEntry], keys: Collection[str]
) -> tuple[dict[str, ImageEntry], list[ImageEntry]]:
    """Returns key -> the image that a text with this key belongs to, and images without a text."""
    chosen, alone = dict[str, ImageEntry](), list[ImageEntry]()
    for image in images:
        stem = image.name.rpartition(".")[0]
        folder, slash, file = image.name.rpartition("/")
        key = stem if stem in keys else f"{folder}{slash}{file.partition('.')[0]}"
        if key not in keys:
            alone.append(image)
        elif key == stem or key not in chosen:  # One image of a key: not KEY.mask.png.
            chosen[key] = image
    return chosen, alone


def _members(root: Path, files: LocalFiles | BucketFiles, place: str) -> Iterable[Member]:
    """Returns the files and links in a tar file.

    Listing a tar file means reading all of it, so the list of one in a bucket is cached.
    """
    if not isinstance(files, BucketFiles):
        return _read_tar(root / place, files.open(place))
    listed = files.cache.remembered(
        f"tar-{files.key(place)}", lambda: list(_read_tar(root / place, files.open(place)))
    )
    return (Member(*member) for member in listed)


def _read_tar(path: Path, file: io.BufferedReader) -> Iterator[Member]:
    places: dict[str, tuple[int, int]] = {}
    links: dict[str, str] = {}
    names: dict[str, str] = {}  # As written. Of several members with a name, the last counts.
    replaced = 0
    try:
        with file, tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as archive:
            for member in archive:
                name = posixpath.normpath(member.name)
                if member.isreg():
                    places[name] = member.size, member.offset_data
                    links.pop(name, None)
                elif member.islnk() or member.issym():
                    base = posixpath.dirname(name) if member.issym() else ""
                    target = posixpath.normpath(posixpath.join(base, member.linkname))
                    if member.islnk() and target == name:
                        continue  # GNU tar, if it is given a file twice.
                    links[name] = target
                    places.pop(name, None)
                else:
                    continue
                replaced += name in names
                names[name] = member.name
                # tarfile keeps every member in memory otherwise.
                archive.members = []  # pyright: ignore[reportAttributeAccessIssue]
            if replaced:
                log.warning(
                    "%s: %d members are left out, because later ones have their names",
                    *(path, replaced),
                )
            for own, name in names.items():
                if not _is_hidden(own):
                    yield from (_member(file, *found) for found in _find(name, places, links))
    except (tarfile.TarError, OSError) as error:
        if isinstance(error, OSError) and isinstance(path, BucketPath):
            raise bucket_error(error) from None
        raise _damaged_error(path, error) from None


def _member(file: io.BufferedReader, name: str, size: int, offset: int) -> Member:
    """Returns a file with the label and the splits in it."""
    if size == UNREADABLE or not name.lower().endswith(_LABELS):
        return Member(name, size, offset, None, _NONE)
    file.seek(offset)
    content = file.read(size)
    if not name.lower().endswith(".json"):
        return Member(name, size, offset, label_text(content.decode(errors="replace")), _NONE)
    values = _object_in(content)
    label = label_text(values.get("cls", values.get("label")))
    splits = {key: str(value) for key, value in values.items() if may_say_split(key)}
    # Inside, only what names a split: other such keys describe other things.
    for key, value in _flat(values):
        if may_say_split(key.rpartition(".")[2]) and split_of(str(value)):
            splits[key] = str(value)
    return Member(name, size, offset, label, splits or _NONE)


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of a JSON object and of those inside it, by their dotted keys."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _damaged_error(path: Path, error: Exception) -> DataError:
    try:
        with path.open("rb") as file:
            known = described(file.read(512))
    except OSError:
        known = None
    reason, fix = known or (str(error), "download it again")
    return DataError(f"{path} cannot be read: {reason}", "an intact tar file", fix)


def _is_hidden(name: str) -> bool:
    parts = posixpath.normpath(name).split("/")
    return any(is_hidden(part) for part in parts if part != "..")


def _find(
    name: str, places: Mapping[str, tuple[int, int]], links: Mapping[str, str]
) -> Iterator[tuple[str, int, int]]:
    """Yields a file, or what a link leads to: a file, or the files of a folder."""
    own = posixpath.normpath(name)
    target = own if own in places else _follow(links[own], links)
    if target in places:
        yield name, *places[target]
        return
    is_above = target == "." or f"{own}/".startswith(f"{target}/")
    inside = [] if is_above else [n for n in places if n.startswith(f"{target}/")]
    for below in inside:
        if not _is_hidden(below):
            yield f"{name}{below.removeprefix(target)}", *places[below]
    if not inside:
        yield name, UNREADABLE, 0


def _follow(name: str, links: Mapping[str, str]) -> str:
    """Returns a name without links among its folders and itself, or "." for a circle."""
    for _ in range(_MOST_LINKS):
        parts = name.split("/")
        prefixes = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        link = next((prefix for prefix in prefixes if prefix in links), None)
        if link is None:
            return name
        name = posixpath.normpath(links[link] + name.removeprefix(link))
    return "."


def _object_in(content: bytes) -> dict[str, Any]:
    try:
        found = parse_json(content)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def labelled(
    root: Path, images: list[ImageEntry], labels: Mapping[str, Mapping[str, str]]
) -> list[ImageEntry] | None:
    """Returns the images of tar files with the labels of the .cls or .json files beside them.

    None: these files do not tell the classes, so each tar file is one. This is so if there are
    .json files only, and not all images have a label or each tar file has its own.

    The group of an image is its tar file. `labels` maps "cls" or "json" to paths without their
    suffix and their labels.
    """
    suffix = "cls" if "cls" in labels else "json"
    by_file = labels[suffix]
    chosen, alone = pair(images, by_file)
    pairs = {(image.group, by_file[file]) for file, image in chosen.items()}
    tars = len({tar for tar, _ in pairs})
    one_each = len(pairs) == tars
    if suffix == "json" and one_each and (alone or tars == len({label for _, label in pairs})):
        return None
    if alone:
        raise DataError(
            f"{root / alone[0].name} has no label",
            f"a .{suffix} file of the same name, as other images there have",
            "add it, or remove the image",
        )
    log.info("%s: the classes are those in the .%s files of the tar files", root, suffix)
    return [dataclasses.replace(image, group=by_file[file]) for file, image in chosen.items()]
