"""Errors that a user can fix. Each is one line: the problem, what was expected, how to fix it."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

E = TypeVar("E", bound="UserError")

KEY = "{key}"
"""Placeholder in error texts for the full dotted config key."""
PARENT = "{parent}"
"""Placeholder for that key without its last name, e.g. "optimizer."; empty for a top-level key."""
ARGUMENT = "{argument}"
"""Placeholder for the name of the function argument that would fix the error."""

# sysexits.h EX_TEMPFAIL, "try again later": the command was stopped by a signal and has saved its
# state. Schedulers requeue on this exit code.
EXIT_STOPPED = 75
# The shell's exit code for a program that Ctrl-C (SIGINT) has ended.
EXIT_INTERRUPTED = 130


class UserError(ValueError):
    """Base of every error that ends a command with exit code 2 and one line on stderr.

    Args:
        got: the problem, e.g. "no file at a.npz". With a `key`, it can start with a verb, e.g.
            "is 3"; the key is then put in front of it.
        expected: what would be valid, e.g. "a divisor of 128".
        fix: what the user can do, e.g. "change one of the two".
        key: the wrong config key, relative to the section that was checked ("" for the section
            itself). `under` adds the section's path.
        argument: function argument that would fix the error; it replaces ARGUMENT in the texts.
            `renamed` replaces it by a config key or flag.
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
        """Returns the same error with `path` in front of its key, or unchanged if it has no key."""
        if self.key is None or not path:
            return self
        key = f"{path}.{self.key}" if self.key else path
        return type(self)(*self.parts, key=key, argument=self.argument)

    def renamed(self: E, names: Mapping[str, str]) -> E:
        """Returns the same error with its argument renamed by `names`, if `names` contains it."""
        argument = None if self.argument is None else names.get(self.argument, self.argument)
        return type(self)(*self.parts, key=self.key, argument=argument)

    def __reduce__(self):
        """Pickles the parts, so that the error of a worker process can be raised in its parent."""
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


class OtherDataError(DataError):
    """A problem of a dataset beside the run's own, such as one for few-shot evaluation."""


@contextlib.contextmanager
def other_data(name: str) -> Iterator[None]:
    """Puts the name of a dataset beside the run's own in front of errors of its data."""
    try:
        yield
    except DataError as error:
        raise OtherDataError(f"{name}: {error.got}", error.expected, error.fix) from None


class UnreachableError(DataError):
    """Data in a bucket that cannot be read now. Unlike a bad example, it is never skipped."""


class MemoryLimitError(UserError):
    """Something that needs more memory than there is."""


class FileError(UserError):
    """A file that is missing, unreadable, or not in the expected format."""


class LockedError(UserError):
    """A lock that another process holds."""


class RunFolderError(UserError):
    """A run folder that cannot be used: unwritable, full, in use, or with another config."""


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged or from another architecture."""


class DamagedError(CheckpointError):
    """A checkpoint whose files are not as they were saved."""


class WeightsError(UserError):
    """Published weights that cannot be read, recognised or adapted to the model."""


class DivergenceError(UserError):
    """A training run whose loss or gradient is no longer finite."""


class NonFiniteError(UserError):
    """Weights, outputs or figures that are NaN or infinite."""


class SweepError(UserError):
    """A sweep that asks for something impossible, or a folder that holds another sweep."""


class PluginError(UserError):
    """A module, class or function from outside the package that cannot be used."""


class HostsError(UserError):
    """Another process of the run is missing or lost; running the command again may work."""

    # EX_PROTOCOL of sysexits.h. Not 2: the command is right, so a scheduler may retry it.
    exit_code = 76


def first_few(
    items: Sequence[str], most: int, separator: str = ", ", total: int | None = None
) -> str:
    """Returns a string of the first items and the number of the others, of all `total`.

    >>> first_few(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    shown = items[:most]
    more = (len(items) if total is None else total) - len(shown)
    return separator.join(shown) + (f" and {more} more" if more else "")


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns the member of `names` most similar to `name`, for a "did you mean" hint.

    Returns "" only if `names` is empty: a poor hint is better than a list of hundreds of names.
    """
    names = sorted(names)
    if not names:
        return ""
    return max(names, key=lambda n: similarity(name, n))


def similarity(one: str, other: str) -> float:
    """Returns how similar two words are, from 0 to 1.

    >>> similarity("Adam", "adam"), similarity("lr", "seed")
    (1.0, 0.0)
    """
    return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio()
