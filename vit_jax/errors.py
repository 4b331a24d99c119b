"""Errors that a user can fix: one line says what was got, what was expected and how to fix it."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

E = TypeVar("E", bound="UserError")

KEY = "{key}"
"""Stands for the whole dotted key in the text of an error that has a `key`."""
PARENT = "{parent}"
"""Stands for the part of that key before its last name, e.g. "optimizer." or nothing."""
ARGUMENT = "{argument}"
"""Stands for the name of a function's argument that would fix the error."""

# sysexits.h EX_TEMPFAIL, "try again later": the command was stopped by a signal and has saved its
# state. Schedulers requeue on this exit code.
EXIT_STOPPED = 75


class UserError(ValueError):
    """Base of every error that ends a command with exit code 2 and one line on stderr.

    Args:
        got: what was found, e.g. "no file at a.npz"; with a `key` it may leave the key out and
            start with the verb: "is 3".
        expected: what would have been right, e.g. "a divisor of 128".
        fix: what to do about it, e.g. "change one of the two".
        key: the config key at fault, relative to the value that is checked ("" for the value
            itself); `under` completes it.
        argument: name of the argument that would fix the error, for ARGUMENT in the texts;
            `renamed` replaces it by the config key or flag that a user would set.
    """

    exit_code = 2

    def __init__(
        self,
        got: str,
        expected: str,
        fix: str,
        *,
        key: str | None = None,
        argument: str | None = None,
    ):
        self.parts, self.key, self.argument = (got, expected, fix), key, argument
        if key is not None and KEY not in got:
            got = f"'{KEY}' {got}"
        key = key or ""
        parent = "".join(key.rpartition(".")[:2])
        self.got, self.expected, self.fix = (
            text.replace(KEY, key).replace(PARENT, parent).replace(ARGUMENT, argument or "")
            for text in (got, expected, fix)
        )
        line = f"{self.got}; expected {self.expected}; {self.fix}"
        super().__init__(" ".join(line.split()))

    def under(self: E, path: str) -> E:
        """Returns the same error with its key below a path; an error without a key as it is."""
        if self.key is None or not path:
            return self
        key = f"{path}.{self.key}" if self.key else path
        return type(self)(*self.parts, key=key, argument=self.argument)

    def renamed(self: E, names: Mapping[str, str]) -> E:
        """Returns the same error with its argument named as in `names`, if it is there."""
        argument = None if self.argument is None else names.get(self.argument, self.argument)
        return type(self)(*self.parts, key=self.key, argument=argument)

    def __reduce__(self):
        """Pickles by its parts, so that an error raised in a worker process survives."""
        return _rebuild, (type(self), self.parts, self.key, self.argument)


def _rebuild(
    kind: type[E], parts: tuple[str, str, str], key: str | None, argument: str | None
) -> E:
    return kind(*parts, key=key, argument=argument)


class ConfigError(UserError):
    """A config key, type or value that is wrong."""


class ModelError(UserError):
    """A model name, option or input that is wrong."""


class DataError(UserError):
    """A dataset, split or example that is missing or cannot be read."""


class FileError(UserError):
    """A file that is missing, unreadable, or not in the expected format."""


class LockedError(UserError):
    """A lock that another process holds."""


class RunFolderError(UserError):
    """A run folder that cannot be used: unwritable, full, in use, or with another config."""


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged or from another architecture."""


class WeightsError(UserError):
    """Published weights that cannot be read, recognised or made to fit the model."""


class DivergenceError(UserError):
    """A training run whose loss or gradient is no longer finite.

    Attributes:
        step: the first step whose figures were not.
        leave_out: batches to skip when training continues from the last checkpoint.
    """

    step = 0
    leave_out = 0


class SweepError(UserError):
    """A sweep that asks for something impossible, or a folder that holds another sweep."""


class HostsError(UserError):
    """Another process of the run is missing or lost; running the command again may work."""

    # EX_PROTOCOL of sysexits.h. Not 2: the command is right, so a scheduler may retry it.
    exit_code = 76


def first_few(items: Sequence[str], most: int, separator: str = ", ") -> str:
    """Returns the first items and how many more there are.

    >>> first_few(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return separator.join(items[:most]) + more


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns the member of `names` most like `name`, for a "did you mean" hint.

    Returns one whenever `names` is not empty: a poor hint is better than a list of hundreds.
    """
    names = sorted(names)
    if not names:
        return ""
    return max(names, key=lambda n: difflib.SequenceMatcher(None, name.lower(), n.lower()).ratio())
