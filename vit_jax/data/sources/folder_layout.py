"""Which folders are splits, and which folders are classes.

- Folders named train and val, test, ... are splits; `split_folders`.
- Folders are not classes if they all hold the same subfolders of images: they are splits with other
  names, folds, domains, sites or years, or each class has its own splits. As many folders without
  subfolders may lie beside them. Neither is a folder train, or tr beside te, whose images are in
  subfolders, nor one whose subfolders have the names of the folders beside it. Single folders in
  between do not count.
- A split whose images are in none of the folders of the training classes has no labels. It is left
  out. If most of its folders are no training classes, it is an error.
"""

import logging
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vit_jax.data.image_formats import is_image
from vit_jax.data.sources.image_files import UNREADABLE, BucketFiles, ImageEntry, LocalFiles
from vit_jax.data.sources.split_names import says_split, split_of, splits_within
from vit_jax.errors import DataError, first_few

log = logging.getLogger(__name__)

_MAX_NAMED = 5
_SPLITS = "the folders train and, e.g., val and test, each with one subfolder or tar file a class"
_MOVE = (
    "rename or move them, set data_dir to the folder with the splits or to one of these folders, or"
    " list the images in a CSV file of path,label,split"
)


def split_folders(root: Path, files: LocalFiles | BucketFiles) -> list[tuple[str, str]]:
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


def check_names(root: Path, places: Iterable[tuple[str, str]]) -> None:
    """Raises DataError if folders or tar files of a split are named like splits.

    Shards of splits are, such as imagenet-val-000001, and so are cat_train and cat_test. `places`
    are (split, path).
    """
    by_split: dict[str, list[set[str]]] = {}
    for split, place in places:
        named = splits_within(_stem(place.rpartition("/")[2]))
        by_split.setdefault(split, []).append(named)
    for found in by_split.values():
        splits = sorted(set[str]().union(*found))
        if len(splits) > 1 and all(found):
            raise DataError(
                f"{root} has folders or tar files of {', '.join(splits)}, which look like splits,"
                " and not like classes",
                "those of each split in a folder of its own, train, val or test",
                "move them, or list the images in a CSV file of path,label,split",
            )


def warn_of_lists(root: Path, files: Sequence[str]) -> None:
    """Warns of files beside the class folders whose names say that they list held-out images."""
    lists = [name for name in files if splits_within(name) - {"train"} and not is_image(name)]
    if lists:
        log.warning(
            "%s: all images are in the split train; %s may list images that are held out: to use"
            " them, write a CSV file of path,label,split",
            root, first_few(lists, _MAX_NAMED),
        )  # fmt: skip


def check_classes(root: Path, images: Mapping[str, Sequence[ImageEntry]]) -> None:
    """Raises DataError if folders or tar files hold what look like classes themselves.

    `images` are those of each folder, relative to the root. Warns if many subfolders are the same.
    """
    inside = {place: entries for place, entries in images.items() if entries}
    if len(inside) == 1:
        place, entries = next(iter(inside.items()))
        names = _subfolders(place, entries)
        within = entries[0].name.split("/")[1:-1]
        if any(split_of(name) == "train" for name in (*within, *names)):
            raise _layout_error(f"{root / _stem(place)} holds the folders {_alike(names)}, which")
        if len(names) > 1:
            log.warning(
                "%s: all images are of the one class %s; if %s are the classes, set data_dir to"
                " that folder", root, _stem(place), _alike(names),
            )  # fmt: skip
        return
    for split in dict.fromkeys(entries[0].split for entries in inside.values()):
        _check_split(root, {p: e for p, e in inside.items() if e[0].split == split})


def _check_split(root: Path, inside: Mapping[str, Sequence[ImageEntry]]) -> None:
    below = {place: _subfolders(place, entries) for place, entries in inside.items()}
    nested = {place: names for place, names in below.items() if names}
    counts = Counter(name for names in nested.values() for name in names)
    places, alike = first_few([*map(_stem, nested)], _MAX_NAMED), _alike(counts)
    # Folders without subfolders, such as docs or unlabeled, may lie beside the others.
    most = 2 * len(nested) >= len(below) and len(counts) > 1
    same = len(nested) > 1 and all(len(names) == len(counts) for names in nested.values())
    if most and same and not any(_holds_images(place, inside[place]) for place in nested):
        raise _layout_error(f"{root} has {places}; all of them hold the folders {alike}; they")
    splits = [place for place in below if says_split(_stem(place))]
    beside = {_fold(_stem(place).rpartition("/")[2]) for place in below}
    for place, names in nested.items():
        is_split = split_of(_stem(place)) == "train" or (place in splits and len(splits) > 1)
        is_only = len(below) == 1 and place.startswith("train/")
        if len(names) > 1 and (is_split or is_only or names <= beside):
            raise _layout_error(
                f"{root} has {_stem(place)} with the folders {_alike(names)}, which"
            )
    similar = len(nested) > 1 and 2 * counts.total() > len(nested) * len(counts) > len(nested)
    if similar or (most and len(nested) == 1):
        log.warning(
            "%s: read as classes, although the folders %s are inside: %s; are these splits, folds"
            " or domains?",
            root, alike, places,
        )  # fmt: skip


def _stem(place: str) -> str:
    return place.removesuffix(".tar")


def _alike(names: Iterable[str]) -> str:
    return first_few(sorted(names), _MAX_NAMED)


def _layout_error(got: str) -> DataError:
    return DataError(
        f"{got} look like splits, folds or domains, and not like classes", _SPLITS, _MOVE
    )


def _subfolders(place: str, images: Iterable[ImageEntry]) -> set[str]:
    """Returns the subfolders of a folder that hold images.

    A folder with a single subfolder stands for this one, unless that has no subfolders.
    """
    start = len(place) + 1
    folders = {i.name[start:].rpartition("/")[0] for i in images if i.size != UNREADABLE}
    found: set[str] = set()
    folders -= {""}
    while folders:
        first = {folder.partition("/")[0] for folder in folders}
        if "" in first:
            break
        found = set(map(_fold, first))
        if len(first) > 1:
            break
        folders = {folder.partition("/")[2] for folder in folders}
    return found


def _fold(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _holds_images(place: str, images: Iterable[ImageEntry]) -> bool:
    """Whether images lie beside the subfolders of a folder."""
    start = len(place) + 1
    return any("/" not in image.name[start:] for image in images if image.size != UNREADABLE)


def splits_without_classes(root: Path, images: Iterable[ImageEntry]) -> dict[str, str]:
    """Returns the splits that have no class of the split train, and why they are left out.

    Raises DataError for a split most of whose folders are no such classes; names the others.
    """
    classes: dict[str, Counter[str]] = {}
    for image in images:
        classes.setdefault(image.split, Counter())[image.group] += 1
    known = classes.get("train", {}).keys()
    left_out = {}
    for split, count in classes.items():
        unknown = _alike(count.keys() - known)
        if known and not known & count.keys():
            same = {*map(_fold, known)} & {*map(_fold, count)}
            left_out[split] = (
                f"its {count.total():,} images are in {unknown}, which are no class folders of"
                f" train{' (capitals count)' if same else ''}"
            )
        elif known and 2 * len(count.keys() - known) > len(count):
            raise DataError(
                f"most classes of the split {split} of {root} are none of train: {unknown}",
                _SPLITS,
                _MOVE,
            )
        elif known and unknown:
            log.warning("%s: the split %s has classes that train lacks: %s", root, split, unknown)
    return left_out
