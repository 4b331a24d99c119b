"""Which split a folder, a cell or a line of a table belongs to.

Folders and cells: `split_of` understands train, val, valid, validation, dev, eval and test, and
variants such as Training, test_set, 01_val, train2017 and seg_train.

Lines of a table: a column says which split an image is in if

- its name does: one of the words split, subset, partition and fold; or set, phase, usage or
  train_test; or a split alone or after is, in, for or use, such as is_valid or isTrainingImage;
- or its values do: all of them name splits, or two different splits, or one of two names train, or
  a few values have such names in them, such as web_train and web_val.

Such a column is read if each value names a split, or if its name asks a question (is_valid) and
each value is an answer (0 or 1, False or True, no or yes). An image is then in the split of which
the answer is yes; without a yes it is in "train", or in "val" if is_train has been answered by no.
A column that says split and cannot be read is an error, because its images would all be trained on.
"""

import re
from collections.abc import Mapping, Sequence
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
# Names of columns: words that always say split, and whole names without signs.
_SPLIT_WORDS = {"split", "splits", "subset", "subsets", "partition", "fold", "folds", "kfold"}
_SPLIT_NAMES = re.compile(
    r"(image)?(set|phase|usage)(name|id|type)?|(train|val|valid|dev|or)*test(set|phase)?"
)
_ASKED = r"(train|training|val|valid|validation|dev|eval|evaluation|test|testing|holdout|heldout)"
_WHAT = r"(set|data|dataset|images?|img|samples?|examples?|rows?|flag|mask)*"
_QUESTION = re.compile(rf"(?:is|in|for|use|used|usefor|usedfor|usedin)(?:the|a)?{_ASKED}{_WHAT}")
# Without "is", valid and val may also mean intact and value.
_BARE = re.compile(rf"{_ASKED}{_WHAT}")
_UNCLEAR = ("val", "valid", "dev", "eval")
_YES = ("1", "1.0", "true", "t", "yes", "y")
_NO = ("0", "0.0", "false", "f", "no", "n")
_MAX_NAMED = 5
# Values of a column that may have names of splits in them; more are names of files.
_FEW = 10


def split_of(name: str) -> str | None:
    """Returns the split that a folder or a cell of a table names; None: it names none."""
    match = _SPLIT.fullmatch(name.strip().lower())
    return None if match is None else _RENAMED.get(match[4], match[4])


def read_splits(
    path: Path, columns: Mapping[str, Sequence[str]]
) -> tuple[list[str] | None, list[str]]:
    """Returns the split of each line of a table and the columns that say it; None, []: none does.

    `columns` are those without another meaning: name -> text of each line. Raises DataError for a
    column that says split but cannot be read, and for columns that contradict each other.
    """
    named: dict[tuple[str, ...], list[str]] = {}
    answers: dict[str, tuple[str, list[bool]]] = {}
    for column, cells in columns.items():
        values = {text: text.strip().casefold() for text in set(cells)}
        splits = {text: _split_of_cell(text) for text in values}
        asked = _asked_split(column)
        if None not in splits.values() and (asked or _says_split(column, splits)):
            named[(column,)] = [splits[text] or "" for text in cells]
        elif asked and all(value in _YES + _NO for value in values.values()):
            answers[column] = asked, [values[text] in _YES for text in cells]
        elif asked or _is_question(column) or _says_split(column, splits):
            raise _unreadable_column(path, column, sorted(values))
    if answers:
        named[(*answers,)] = _answered(path, list(answers.values()), list(answers))
    read = [column for columns in named for column in columns]
    if len({tuple(splits) for splits in named.values()}) > 1:
        raise DataError(
            f"{path} has the columns {' and '.join(read)}, which name different splits",
            "one column of splits",
            "rename the right one to split",
        )
    return next(iter(named.values()), None), read


def _says_split(column: str, splits: Mapping[str, str | None]) -> bool:
    """Whether the name or the values of a column are about splits."""
    if set(_words(column)) & _SPLIT_WORDS or _SPLIT_NAMES.fullmatch(_letters(column)):
        return True
    found = {split for split in splits.values() if split}
    if None not in splits.values():
        return bool(found)
    if "train" in found and (len(found) > 1 or len(splits) == 2):
        return True
    within = [{split_of(word) for word in _words(text)} - {None} for text in splits]
    within_all = set[str | None]().union(*within)
    return len(splits) <= _FEW and all(within) and len(within_all) > 1 and "train" in within_all


def _split_of_cell(text: str) -> str | None:
    return split_of(text) or _CELLS.get(_letters(text))


def _asked_split(column: str) -> str | None:
    """Returns the split after which the name of a column asks, such as val for is_valid."""
    letters = _letters(column)
    match = _QUESTION.fullmatch(letters) or _BARE.fullmatch(letters)
    if match is None or letters in _UNCLEAR or re.search("valid(?!ation|$)", letters):
        return None  # is_valid_image may also ask whether an image is intact.
    split = _split_of_cell(match[1])
    return "val" if split in ("valid", "validation") else split


def _is_question(column: str) -> bool:
    letters = _letters(column)
    return bool(_QUESTION.fullmatch(letters) or _BARE.fullmatch(letters))


def _answered(path: Path, answers: list[tuple[str, list[bool]]], columns: list[str]) -> list[str]:
    """Returns the split of each line from the answers to questions such as is_valid."""
    rest = "val" if "train" in {split for split, _ in answers} else "train"
    found = []
    for number, row in enumerate(zip(*(yes for _, yes in answers), strict=True), start=2):
        yes = {split for (split, _), answer in zip(answers, row, strict=True) if answer}
        if len(yes) > 1:
            raise DataError(
                f"line {number} of {path} is in {' and '.join(sorted(yes))} by the columns"
                f" {', '.join(columns)}",
                "one split for each image",
                "fix the line",
            )
        found.append(next(iter(yes), rest))
    return found


def _unreadable_column(path: Path, column: str, values: list[str]) -> DataError:
    shown = first_few([repr(value) for value in values], _MAX_NAMED)
    return DataError(
        f"{path} has the column {column!r} with {shown}, which may say which images are held out",
        "names of splits, such as train, val and test, in a column split; or 0 and 1 in a column"
        " such as is_valid",
        "rename the column and its values, or remove it to train on all images",
    )


def _words(name: str) -> list[str]:
    """Returns the words of a name: dataSplit_1 has data and split."""
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return re.findall("[a-z]+", apart.casefold())


def _letters(name: str) -> str:
    return "".join(_words(name))
