"""Lists the members of tar files, and labels in the layout of WebDataset.

Links in a tar file are followed inside it, also through linked folders, as on a disk. A link that
leads to no file in it has the size UNREADABLE.
"""

import dataclasses
import io
import logging
import posixpath
import re
import tarfile
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vit_jax.data.image_formats import described
from vit_jax.data.sources.base import bucket_error
from vit_jax.data.sources.image_files import (
    UNREADABLE,
    BucketFiles,
    ImageEntry,
    LocalFiles,
    is_hidden,
)
from vit_jax.data.sources.split_names import check_split, may_say_split
from vit_jax.errors import DataError
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import parse_json

log = logging.getLogger(__name__)

Members = Iterable[tuple[str, int, int]]  # (name, size or UNREADABLE, offset)
# A link that leads further than this is a circle.
_MOST_LINKS = 40


def key_of(name: str) -> str:
    """Returns the name of a tar member up to the first dot of the file name, as WebDataset does."""
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}{file.partition('.')[0]}"


def tar_members(root: Path, files: LocalFiles | BucketFiles, name: str) -> Members:
    """Returns the files and links in a tar file.

    Listing a tar file means reading all of it, so the list of one in a bucket is cached.
    """
    if not isinstance(files, BucketFiles):
        return _read_tar(root / name, files.open(name))
    listed = files.cache.remembered(
        f"members-{files.key(name)}", lambda: list(_read_tar(root / name, files.open(name)))
    )
    return map(tuple, listed)


def _read_tar(path: Path, file: io.BufferedReader) -> Iterator[tuple[str, int, int]]:
    places: dict[str, tuple[int, int]] = {}
    links: dict[str, str] = {}
    names: dict[str, str] = {}  # As written. Of several members with a name, the last counts.
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
                names[name] = member.name
                # tarfile keeps every member in memory otherwise.
                archive.members = []  # pyright: ignore[reportAttributeAccessIssue]
    except (tarfile.TarError, OSError) as error:
        if isinstance(error, OSError) and isinstance(path, BucketPath):
            raise bucket_error(error) from None
        raise _damaged_error(path, error) from None
    for own, name in names.items():
        if _is_hidden(own):
            continue
        if own in places:
            yield name, *places[own]
        else:
            yield from _linked(name, places, links)


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


def _linked(
    name: str, places: Mapping[str, tuple[int, int]], links: Mapping[str, str]
) -> Iterator[tuple[str, int, int]]:
    """Yields what a link leads to: a file, or the files of a folder."""
    own = posixpath.normpath(name)
    target = _follow(links[own], links)
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


def labels_in(
    root: Path, files: LocalFiles | BucketFiles, place: str, split: str, others: Members
) -> dict[str, dict[str, str]]:
    """Returns suffix -> path without it -> label, of the .cls and .json files of a tar file.

    Raises DataError if the .json files say that images are in another split than `split`.
    """
    found: dict[str, dict[str, str]] = {}
    said: dict[str, set[str]] = {}
    for name, size, offset in others:
        stem, dot, suffix = re.sub(r"\.cls\.txt$", ".cls", name).rpartition(".")
        suffix = dot + suffix.lower()
        if suffix not in (".cls", ".json") or size == UNREADABLE:
            continue
        content = files.read(place, offset, size)
        if suffix == ".json":
            values = _object_in(content)
            for key in filter(may_say_split, values):
                said.setdefault(key, set()).add(str(values[key]))
            label = values.get("cls", values.get("label"))
            if isinstance(label, float) and label.is_integer():  # As pandas writes them.
                label = int(label)
            label = str(label) if type(label) in (str, int) else None
        else:
            label = content.decode(errors="replace")
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
    for key, texts in said.items():
        check_split(root / place, split, key, sorted(texts))
    return found


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
