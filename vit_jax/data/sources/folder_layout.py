"""Which folders are splits, and which folders are classes.

- Folders named train and val, test, ... are splits; `split_folders`.
- Folders are not classes if they all hold the same subfolders of images: they are splits with other
  names, folds, domains, sites or years, or each class has its own splits. As many folders without
  subfolders may lie beside them. Neither is a folder train, or tr beside te, whose images are in
  subfolders, nor one whose subfolders have the names of the folders beside it. Single folders in
  between do not count, and neither does what is added to each name, such as _aug. Folders that
  differ in their subfolders, but share what these hold, are domains or sites too. Other subfolders
  of most folders are named in a line of the log, since they may be the classes.
- Nor are they classes if their names differ only by a number and say part, fold, images and so on,
  or only by train and test, or if they are images beside masks. Years are classes, with a warning,
  and so are a few folders whose files have the same names, such as copies.
- A split whose images are in none of the folders of the training classes has no labels. It is left
  out. If most of its folders are no training classes, it is an error.
"""

import itertools
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vit_jax.data.image_formats import is_image
from vit_jax.data.sources.image_files import UNREADABLE, BucketFiles, ImageEntry, LocalFiles
from vit_jax.data.sources.split_names import says_split, split_of, splits_within, without_splits
from vit_jax.errors import DataError, first_few

log = logging.getLogger(__name__)

_MAX_NAMED = 5
_COMPRESSED = re.compile(r"(?i).*\.(?:tar\.(?:gz|bz2|xz|zst|lz4?|lzma|z)|t(?:gz|bz2?|xz|zst|lz))")
# Folders that are parts of a dataset: a word beside the number by which their names differ.
_PART = re.compile(
    r"(?<![a-z])(?:(?:sub|data)?sets?|parts?|folds?|batch(?:es)?|chunks?|shards?|images?|imgs?"
    r"|folders?|sessions?|splits?|data)[ _.-]*#|#[ _.-]*(?:parts?|folds?|images?|imgs?)(?![a-z])"
)
# Where images come from rather than what they show, beside the number by which names differ.
_ORIGIN = re.compile(
    r"(?:patient|subject|participant|person|case|slide|scan|study|hospital|site|cent(?:er|re)"
    r"|camera|cam|device|user)s?[ _.-]*#"
)
_TABLE = re.compile(r"(?i).*(?:label|annotation|metadata|target).*\.(?:csv|tsv|jsonl|xlsx|parquet)")
_YEAR = re.compile(r"(?:19|20)\d\d(?:[ _.-]?\d\d){0,2}")
# Folders of what belongs to images that are in a folder beside them.
_IMAGES = re.compile(
    r"(?:jpe?g|png|rgb|raw|input|original)?(?:images?|imgs?|photos?|pictures?)|leftimgbit"
)
_TARGETS = re.compile(
    "(masks?|labels?|annotations?|trimaps?|gts?|gtfine|gtcoarse|groundtruths?|segment.*|thumb.*)"
)
# End of the name of an image that belongs to another one, such as cat_mask_1 to cat.
_OF_ANOTHER = re.compile(rf"(?i)[ _.-]+{_TARGETS.pattern}([ _.-]*\d+|_[a-z]+ids|_color)?$")
# Folders are compared by the names of their files if there are at most this many.
_FEW_FOLDERS = 5
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
    compressed = [name for name in others if _COMPRESSED.fullmatch(name)]
    if compressed:
        raise DataError(
            f"{root / folder / compressed[0]} is compressed",
            "plain tar files",
            "uncompress it, e.g. with gunzip, or move it",
        )
    return folders, [name for name in others if name.endswith(".tar")]


def check_names(root: Path, places: Iterable[tuple[str, str]]) -> None:
    """Raises DataError if folders or tar files of a split are named like splits.

    Shards of splits are, such as imagenet-val-000001, and so are cat_train and cat_test. `places`
    are (split, path).
    """
    by_split: dict[str, list[str]] = {}
    for split, place in places:
        by_split.setdefault(split, []).append(_name(place))
    for names in by_split.values():
        found = list(map(splits_within, names))
        splits = sorted(set[str]().union(*found))
        # Others, such as query, may lie beside bounding_box_train and bounding_box_test.
        training = {without_splits(name) for name in names if splits_within(name) == {"train"}}
        others = {without_splits(name) for name in names if splits_within(name) - {"train"}}
        if len(splits) > 1 and (training & others or all(found)):
            raise DataError(
                f"{root} has folders or tar files of {', '.join(splits)}, which look like splits,"
                " and not like classes",
                "those of each split in a folder of its own, train, val or test",
                "move them, or list the images in a CSV file of path,label,split",
            )


def warn_of_lists(root: Path, files: Sequence[str]) -> None:
    """Warns of files beside the class folders that may list held-out images, or have the labels."""
    lists = [name for name in files if splits_within(name) - {"train"} and not is_image(name)]
    if lists:
        log.warning(
            "%s: all images are in the split train; %s may list images that are held out: to use"
            " them, write a CSV file of path,label,split",
            root, first_few(lists, _MAX_NAMED),
        )  # fmt: skip
    if tables := [name for name in files if _TABLE.fullmatch(name) and name not in lists]:
        log.warning(
            "%s: %s is not read; if it has the labels, set data.source=csv and data.data_dir to a"
            " CSV file of path,label", root, tables[0],
        )  # fmt: skip


def check_classes(root: Path, images: Mapping[str, Sequence[ImageEntry]]) -> None:
    """Raises DataError if folders or tar files hold what look like classes themselves.

    `images` are those of each folder, relative to the root. Warns if many subfolders are the same,
    and of masks beside their images.
    """
    inside = {place: entries for place, entries in images.items() if entries}
    stems = [image.name.rpartition(".")[0] for entries in inside.values() for image in entries]
    ends = {stem: end for stem in stems if (end := _OF_ANOTHER.search(stem))}
    above = {stem: image for stem in stems if (image := _image_above(stem))}
    # Cityscapes has a_leftImg8bit.png and a_gtFine_labelIds.png.
    known = {*stems, *(s.removesuffix("_leftImg8bit") for s in stems)} if ends or above else set()
    masks = [stem for stem, end in ends.items() if stem[: end.start()] in known]
    if masks := masks + [stem for stem, image in above.items() if image in known]:
        log.warning(
            "%s: read as images, although they may be masks or small copies of others: %s; if they"
            " are, move them", root, _alike(masks),
        )  # fmt: skip
    if len(inside) == 1:
        place, entries = next(iter(inside.items()))
        names = _subfolders(_folders(place, entries))
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
    training = {place: of for place, of in inside.items() if of[0].split == "train"}
    _check_flat(root, list(training))
    _warn_of_same_files(root, training)


def _warn_of_same_files(root: Path, inside: Mapping[str, Sequence[ImageEntry]]) -> None:
    """Warns of a folder whose files are named like those of another one, unless by a number."""
    if len(inside) > _FEW_FOLDERS:
        return
    names = {
        place: {image.name[len(place) + 1 :].rpartition(".")[0] for image in images}
        for place, images in inside.items()
    }
    for one, other in itertools.permutations(names, 2):
        patterns = {re.sub(r"\d+", "#", name) for name in names[one]}
        is_telling = len(patterns) > 1 or patterns.pop().count("#") > 1
        if len(names[one]) > 1 and names[one] <= names[other] and is_telling:
            log.warning(
                "%s: read as classes: %s and %s, although the files of the first are named like"
                " files of the second: are these masks or copies?", root, _stem(one), _stem(other),
            )  # fmt: skip
            return


def _check_flat(root: Path, places: Sequence[str]) -> None:
    """Raises DataError if the names of folders say parts of a dataset, or images and masks."""
    parts: dict[str, list[str]] = {}
    kind = "tar files" if places and places[0].endswith(".tar") else "folders"
    for name in (names := list(map(_name, places))):
        words = _fold(re.sub("(?<=[a-z])(?=[A-Z])", " ", name))
        parts.setdefault(re.sub(r"\d+|(?<=[ _.-])[a-z]$", "#", words), []).append(name)
    for stem, alike in parts.items():
        if len(alike) > 1 and 2 * len(alike) > len(names) and _PART.search(stem):
            raise _layout_error(f"{root} has the {kind} {_alike(alike)}, which", "parts")
    images, masks = (
        [name for name in names if pattern.fullmatch(re.sub("[^a-z]", "", name.casefold()))]
        for pattern in (_IMAGES, _TARGETS)
    )
    if images and masks:
        raise _layout_error(f"{root} has {images[0]} beside {masks[0]}, which", "images and masks")
    if len(names) > 1 and all(map(_YEAR.fullmatch, names)):
        log.warning("%s: read as classes: %s; are these years?", root, _alike(names))
    if len(names) > 1 and len(parts) == 1 and _ORIGIN.fullmatch(next(iter(parts))):
        words = "%s: read as classes: %s; are these where the images come from?"
        log.warning(words, root, _alike(names))


def _check_split(root: Path, inside: Mapping[str, Sequence[ImageEntry]]) -> None:
    """Raises DataError if the folders of a split hold the same subfolders, or splits."""
    folders = {place: _folders(place, entries) for place, entries in inside.items()}
    below = {place: _subfolders(names) for place, names in folders.items()}
    nested = {place: names for place, names in below.items() if names}
    counts = Counter(name for names in nested.values() for name in names)
    places, alike = first_few([*map(_stem, nested)], _MAX_NAMED), _alike(counts)
    # The names at each depth that all subfolders have.
    depths = zip(*(_levels(folders[place]) for place in nested), strict=False)
    shared = [deep[0] for deep in depths if len(deep[0]) > 1 and deep.count(deep[0]) == len(deep)]
    least = min(nested.values(), key=lambda names: sum(map(len, names)), default=set[str]())
    # Folders without subfolders, such as docs or unlabeled, may lie beside the others.
    most = 2 * len(nested) >= len(below) and len(counts) > 1
    same = bool(shared) or all(_extends(names, least) for names in nested.values())
    if len(nested) > 1 and most and same and not any("" in folders[place] for place in nested):
        held = _alike(shared[-1]) if shared else alike
        raise _layout_error(f"{root} has {places}; all of them hold the folders {held}; they")
    splits = [place for place in below if says_split(_stem(place))]
    beside = {_fold(_name(place)) for place in below}
    for place, names in nested.items():
        is_split = split_of(_stem(place)) == "train" or (place in splits and len(splits) > 1)
        is_only = len(below) == 1 and place.startswith("train/")
        if len(names) > 1 and (is_split or is_only or names <= beside):
            raise _layout_error(
                f"{root} has {_stem(place)} with the folders {_alike(names)}, which"
            )
    similar = len(nested) > 1 and 2 * counts.total() > len(nested) * len(counts) > len(nested)
    # SUN397 and Places365 have a/abbey.
    likely = similar or len(nested) == 1 or all(len(_name(place)) == 1 for place in nested)
    if similar or most:
        log.log(
            logging.WARNING if likely else logging.INFO,
            "%s: read as classes, although the folders %s are inside: %s; if those are the classes,"
            " or these splits, folds or domains, write a CSV file of path,label,split",
            root, alike, places,
        )  # fmt: skip


def _image_above(stem: str) -> str | None:
    """Returns the image to which one in a folder of masks or thumbnails belongs.

    >>> _image_above("cat/masks/1"), _image_above("masks/1")
    ('cat/1', None)
    """
    folder, _, name = stem.rpartition("/")
    above, _, last = folder.rpartition("/")
    is_target = above and _TARGETS.fullmatch(re.sub("[^a-z]", "", last.casefold()))
    return f"{above}/{name}" if is_target else None


def _stem(place: str) -> str:
    return place.removesuffix(".tar")


def _name(place: str) -> str:
    return _stem(place).rpartition("/")[2]


def _alike(names: Iterable[str]) -> str:
    return first_few(sorted(names), _MAX_NAMED)


def _layout_error(got: str, like: str = "splits, folds or domains") -> DataError:
    return DataError(f"{got} look like {like}, and not like classes", _SPLITS, _MOVE)


def _folders(place: str, images: Iterable[ImageEntry]) -> set[str]:
    """Returns the folders that hold images, relative to a folder; "" is this one."""
    start = len(place) + 1
    return {i.name[start:].rpartition("/")[0] for i in images if i.size != UNREADABLE}


def _levels(folders: Iterable[str]) -> list[set[str]]:
    """Returns the names of folders at each depth that all of them have."""
    return [set(map(_fold, names)) for names in zip(*(f.split("/") for f in folders), strict=False)]


def _extends(names: set[str], base: set[str]) -> bool:
    """Whether names are those of `base`, or each with the same addition, such as cat_aug."""
    pairs = zip(sorted(names), sorted(base), strict=False)
    added = {name.replace(own, "/", 1) for name, own in pairs}
    is_word = re.fullmatch("/|.*[a-z]{2}.*", min(added, default=""))
    return len(names) == len(base) > 1 == len(added) and is_word is not None


def _subfolders(folders: set[str]) -> set[str]:
    """Returns the first subfolders of `_folders`.

    A folder with a single subfolder stands for this one, unless that has no subfolders.
    """
    found: set[str] = set()
    folders = folders - {""}
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
