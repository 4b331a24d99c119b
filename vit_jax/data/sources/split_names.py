"""Which split a folder, a cell or a line of a table belongs to.

Folders and cells: `split_of` understands train, val, valid, validation, dev, eval and test, and
variants such as Training, test_set, 01_val, train2017 and seg_train.

Lines of a table: the column `split` says which split an image is in. Another column says it if

- its name does: one of its words is split, fold, partition and the like, or train, test, phase and
  the like. Not if its cells are numbers with fractions, such as those of
  training_time_s, or, for words such as test, more than ten different texts, such as those of
  test_id;
- or its values do: half of them name splits, or two name different splits, one of them train, or
  there are a few values with names of two splits in them, such as web_train and web_val.

Such a column is read if each cell names a split, or if its name asks a question (is_valid) and each
cell is an answer (0 or 1, False or True, no or yes). An image is then in the split of which the
answer is yes; without a yes it is in "train", or in "val" if is_train has been answered by no. What
is_unseen holds out is in "test", and what is to be left out by `exclude` in "excluded".
Otherwise it is an error, because all images would be trained on, and so are columns that contradict
each other. Beside a column `split`, columns that cannot be read are passed over.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vit_jax.errors import DataError, first_few

_WORDS = r"train|val|valid|validat(?:ion|e)|dev|eval|test"
# Name of a folder in small letters that is a split, such as seg_train, test_set or 1-val2017.
_SPLIT = re.compile(
    rf"(\d+[ _.-]?)?((seg|data|images?)[ _-]?)?({_WORDS})(ing|s)?"
    r"([ _-]?(set|split|data|images?|\d{4}))?"
)
_RENAMED = {"validate": "validation"}
# Values of tables that are not names of folders; FER2013 has a public and a private test split.
_CELLS = {
    "publictest": "val", "privatetest": "test", "evaluation": "eval", "holdout": "test",
    "heldout": "test", "trn": "train", "tst": "test",
}  # fmt: skip
# Values that also mean other things, such as languages.
_SHORT = {"tr": "train", "va": "val", "te": "test"}
# Splits of retrieval, if they are the whole name and beside other splits.
_RETRIEVAL = ("query", "queries", "gallery", "probe", "distractors")
_MAIN = {"valid": "val", "validation": "val", "dev": "val"}
_ASKED = (
    "train(?:ing)?|val(?:id(?:ation)?)?|dev|eval(?:uation)?|test(?:ing)?|holdout|heldout|unseen"
    "|excluded?"
)
# Words of a question that are no names of splits -> the split after which they ask.
_EXCLUDED = "excluded"
_ASKED_SPLITS = {"unseen": "test", "exclude": _EXCLUDED, "excluded": _EXCLUDED}
_SHORT_QUESTIONS = {f"is{short}": split for short, split in _SHORT.items()}
# Words around a split in a question, such as is_in_test_set.
_AROUND = (
    "belongs|is|in|for|used?|to|the|a|or|and|set|dataset|data|images?|img|samples?|examples?|rows?"
    "|flag|mask"
)
_QUESTION = re.compile(f"(?:{_AROUND}|{_ASKED})+")
# Without "is", valid and val may also mean intact and value.
_UNCLEAR = re.compile("val|valid|dev|eval|.*valid(?!ation|$).*")
# Anywhere in the name of a column; a word of it; all that it consists of, without signs between.
_STRONG = re.compile("split|subset|partition|kfold|crossval|xval|holdout|heldout")
_WORD = re.compile(f"{_ASKED}|folds?|cv|phase|usage|tvt")
_ALL_WORDS = re.compile(f"(?:{_AROUND}|{_WORD.pattern})+")
_SET = re.compile("(?:image|img)?set(?:name|id|type)?")  # not data_set
_YES = ("1", "1.0", "true", "t", "yes", "y")
_NO = ("0", "0.0", "false", "f", "no", "n")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII)
_MAX_NAMED = 5
# Different values of a column that may say what is held out; more are names of files, or numbers.
_FEW = 10
_LONGEST = 40  # name of a split


def split_of(name: str) -> str | None:
    """Returns the split that a folder or a cell of a table names; None: it names none."""
    match = _SPLIT.fullmatch(name.strip().lower())
    return None if match is None else _RENAMED.get(match[4], match[4])


def says_split(name: str) -> bool:
    """Whether a name stands for a split, also as an abbreviation such as tr."""
    return (_split_of_cell(name) or _SHORT.get(_letters(name))) is not None


def splits_within(name: str) -> set[str]:
    """Returns the splits among the words of a name, such as test for cat_test."""
    words = _words(name)
    whole = {*words} & {*_RETRIEVAL} if len(words) == 1 else set[str]()
    return whole | set(filter(None, map(_split_of_cell, words)))


def without_splits(name: str) -> str:
    """Returns the words of a name with a sign for those such as train and test."""
    return " ".join("#" if _split_of_cell(word) else word for word in _words(name))


def read_splits(
    path: Path, lines: Sequence[int], columns: Mapping[str, Sequence[str]]
) -> tuple[list[str] | None, list[str]]:
    """Returns the split of each line of a table and the columns that say it; None, []: none does.

    `columns` are those without another meaning: name -> text of each line. Raises DataError for a
    column that says split but cannot be read, and for columns that contradict each other.
    """
    named: dict[str, list[tuple[str, bool]]] = {}  # Whether each line is in some split.
    asked: dict[str, list[tuple[str, bool]]] = {}
    own = next((column for column in columns if column.strip().casefold() == "split"), None)
    for column in sorted(columns, key=lambda column: column != own):
        values = {text: text.strip().casefold() for text in set(columns[column])}
        by_name = _says_by_name(column, {value for value in values.values() if value})
        if column == own:
            splits = {text: split_of(text) or text.strip() for text in values}
        elif own is not None and not by_name:
            continue
        else:
            short = _SHORT if by_name else {}
            splits = {text: _split_of_cell(text) or short.get(values[text]) for text in values}
        question = _asked_split(column)
        if None not in splits.values():
            named[column] = [(splits[text] or "", True) for text in columns[column]]
        elif question and set(values.values()) <= {*_YES, *_NO}:
            asked[column] = [(question, values[text] in _YES) for text in columns[column]]
        elif own is None and any(values.values()) and (by_name or _says_by_values(splits)):
            raise _unreadable_column(path, column, sorted(set(values.values())))
    read = named | asked
    rest = "val" if any(_asked_split(column) == "train" for column in asked) else "train"
    rows = [*zip(*read.values(), strict=True)]
    found = [
        _EXCLUDED if (_EXCLUDED, True) in row else next((s for s, is_in in row if is_in), rest)
        for row in rows
    ]
    _check_capitals(path, {*found})
    usual = {split: _MAIN.get(split, split) for split in set(found) if split_of(split)}
    for split, row in dict.fromkeys(zip(found, rows, strict=True)):
        # Names of one's own contradict nothing.
        if split in usual and any(
            is_in != (usual[split] == _MAIN.get(other, other)) for other, is_in in row
        ):
            number = rows.index(row)
            cells = ", ".join(f"{column} is {columns[column][number]!r}" for column in read)
            raise DataError(
                f"line {lines[number]} of {path} contradicts itself about its split: {cells}",
                "one split for each image",
                "fix the line, or rename or remove the wrong column",
            )
    return found or None, list(read)


def _check_capitals(path: Path, splits: set[str]) -> None:
    """Raises DataError if names of splits differ only by capitals: one of them is a mistake."""
    alike: dict[str, list[str]] = {}
    for split in sorted(splits):
        alike.setdefault(split.casefold(), []).append(split)
    for names in alike.values():
        if len(names) > 1:
            raise DataError(
                f"{path} has the splits {' and '.join(names)}",
                "names of splits that differ by more than capitals",
                "write all of them alike",
            )


@functools.lru_cache(1000)
def may_say_split(name: str) -> bool:
    """Whether the name of a column says which split an image is in."""
    return name not in ("cls", "label") and _says_by_name(name, set())


def check_split(path: Path, split: str, key: str, texts: Sequence[str]) -> None:
    """Raises DataError if the different values of a key in a tar file name another split."""
    found, _ = read_splits(path, range(len(texts)), {key: texts})
    others = [name for name in found or () if _MAIN.get(name, name) != _MAIN.get(split, split)]
    if others:
        raise DataError(
            f"{path} has .json files with {key} {', '.join(texts)}, and is read as {split}",
            "the tar files of each split in a folder of its own, such as train, val or test",
            f"move the images, or leave {key} out of the files",
        )


def splits_in_paths(names: Sequence[str]) -> list[str]:
    """Returns the splits among the folders of paths, if all of them are in such a folder."""
    found = dict[str, None]()
    for name in names:
        split = next(filter(None, map(split_of, name.split("/")[:-1])), None)
        if split is None:
            return []
        found[split] = None
    return list(found)


def splits_in_file_names(names: Iterable[str]) -> list[str]:
    """Returns the splits that all file names say, if train is one of several.

    >>> splits_in_file_names(["a/train_01.jpg", "b/PublicTest_7.png"])
    ['test', 'train']
    """
    found = set[str]()
    for name in names:
        said = splits_within(name.rpartition("/")[2].partition(".")[0])
        if len(said) != 1:
            return []
        found |= said
    return sorted(found) if len(found) > 1 and "train" in found else []


def _says_by_name(column: str, values: set[str]) -> bool:
    words, letters = set(_words(column)), _letters(column)
    strong = _STRONG.search(letters) or words & {"fold", "folds", "cv"}
    says = any(map(_WORD.fullmatch, words)) or _SET.fullmatch(letters)
    together = _ALL_WORDS.fullmatch(letters) and _WORD.search(letters)
    together = together or letters in _SHORT_QUESTIONS
    if not strong and (not (says or together) or len(values) > _FEW):
        return False
    numbers = all(map(_NUMBER.fullmatch, values))
    return not numbers or all(float(value) % 1 == 0 for value in values)


def _says_by_values(splits: Mapping[str, str | None]) -> bool:
    texts = [text for text in splits if text.strip()]
    named = [split for split in splits.values() if split]
    if 2 * len(named) >= max(len(texts), 1) or (len(set(named)) > 1 and "train" in named):
        return True
    if len(texts) > _FEW:
        return False
    within = list(map(splits_within, texts))
    short = len(texts) > 1 and all(text.strip().casefold() in _SHORT for text in texts)
    return short or (all(within) and len(set[str]().union(*within)) > 1)


def _split_of_cell(text: str) -> str | None:
    if len(text) > _LONGEST:  # Taking long texts apart takes time.
        return None
    return split_of(text) or _CELLS.get(_letters(text))


def _asked_split(column: str) -> str | None:
    """Returns the split after which the name of a column asks, such as val for is_valid."""
    letters = _letters(column)
    if letters in _SHORT_QUESTIONS:
        return _SHORT_QUESTIONS[letters]
    words = re.findall(_ASKED, letters)
    asked = {_ASKED_SPLITS.get(word) or _split_of_cell(word) for word in words}
    if not _QUESTION.fullmatch(letters) or _UNCLEAR.fullmatch(letters) or len(asked) != 1:
        return None
    split = asked.pop()
    return "val" if split in ("valid", "validation") else split


def _unreadable_column(path: Path, column: str, values: list[str]) -> DataError:
    shown = first_few([repr(value) for value in values], _MAX_NAMED)
    return DataError(
        f"{path} has the column {column!r} with {shown}, which may say which images are held out",
        "names of splits, such as train, val and test, in a column split; or 0 and 1 in a column"
        " such as is_valid",
        "add a column split, or rename the column and its values, or remove it to train on all"
        " images",
    )


def _words(name: str) -> list[str]:
    """Returns the words of a name: dataSplit_1 has data and split."""
    apart = re.sub(r"([a-z])([A-Z])|([A-Z])([A-Z][a-z])", r"\1\3 \2\4", name)
    return re.findall("[a-z]+", apart.casefold())


def _letters(name: str) -> str:
    return "".join(_words(name))
