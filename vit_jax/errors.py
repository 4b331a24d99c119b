"""Errors that a user can fix, in one line: what was got, what was expected, how to fix it."""

import difflib
from collections.abc import Iterable, Sequence

# sysexits.h EX_TEMPFAIL, "try again later": the command was stopped by a signal and has saved its
# state. Schedulers requeue on this exit code.
EXIT_STOPPED = 75


class UserError(ValueError):
    """Base of every error that ends a command with exit code 2 and one line on stderr.

    Args:
        got: what was found, e.g. "unknown key 'modle.name'".
        expected: what would have been right, e.g. "one of data, model".
        fix: what to do about it, e.g. "did you mean 'model.name'?".
    """

    exit_code = 2

    def __init__(self, got: str, expected: str, fix: str):
        self.got, self.expected, self.fix = got, expected, fix
        super().__init__(" ".join(f"{got}; expected {expected}; {fix}".split()))

    def __reduce__(self):
        """Pickles by the three parts, so that an error raised in a worker process survives."""
        return type(self), (self.got, self.expected, self.fix)


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
    """A run folder that cannot be used: unwritable, full, in use, or of another config."""


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged, or of another architecture."""


class WeightsError(UserError):
    """Published weights that cannot be read, understood, or made to fit."""


class DivergenceError(UserError):
    """A training run whose loss or gradient is no longer finite.

    Attributes:
        step: the first step whose figures were not.
        leave_out: batches to leave out when going on from the last checkpoint.
    """

    step = 0
    leave_out = 0


class SweepError(UserError):
    """A sweep that asks for something impossible, or a folder that holds another."""


class HostsError(UserError):
    """Another process of the run is late or lost. Running the same command again may succeed."""

    # sysexits.h EX_PROTOCOL. Not 2, because the command need not change: a scheduler may retry.
    exit_code = 76


def first_few(items: Sequence[str], most: int, separator: str = ", ") -> str:
    """Returns the first items, and how many more there are.

    >>> first_few(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return separator.join(items[:most]) + more


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns the member of `names` most like `name`, for a "did you mean" hint.

    Always answers when `names` is not empty: a poor hint is better than a list of hundreds.
    """
    names = sorted(names)
    if not names:
        return ""
    return max(names, key=lambda n: difflib.SequenceMatcher(None, name.lower(), n.lower()).ratio())
