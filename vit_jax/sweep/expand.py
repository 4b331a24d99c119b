"""Lists of overrides, made from shorter ones.

Overrides are a dict of dotted config keys, as in {"optimizer.learning_rate": 1e-3}.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax.errors import SweepError

Overrides = Mapping[str, Any]


def vary(key: str, values: Iterable[Any]) -> list[dict[str, Any]]:
    """Returns one set of overrides for every value of a key.

    >>> vary("seed", [0, 1])
    [{'seed': 0}, {'seed': 1}]
    """
    return [{key: value} for value in values]


def product(*lists: Iterable[Overrides]) -> list[dict[str, Any]]:
    """Returns every combination of one member of each list; the last list varies fastest.

    >>> product(vary("a", [1, 2]), vary("b", [3, 4]))
    [{'a': 1, 'b': 3}, {'a': 1, 'b': 4}, {'a': 2, 'b': 3}, {'a': 2, 'b': 4}]

    Raises:
        SweepError: two lists set the same key.
    """
    return [_merged(members) for members in itertools.product(*lists)]


def together(*lists: Iterable[Overrides]) -> list[dict[str, Any]]:
    """Returns the first members of all lists as one, the second ones as one, ...: a zip.

    >>> together(vary("a", [1, 2]), vary("b", [3, 4]))
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 4}]

    Raises:
        SweepError: lists of different lengths, or two that set the same key.
    """
    held = [list(members) for members in lists]
    lengths = [len(members) for members in held]
    if len(set(lengths)) > 1:
        raise SweepError(
            f"together() of lists of {', '.join(map(str, lengths))} members",
            "equally many in each", "lengthen the shorter ones, or use product()",
        )  # fmt: skip
    return [_merged(members) for members in zip(*held, strict=True)]


def chain(*lists: Iterable[Overrides]) -> list[dict[str, Any]]:
    """Returns the members of all lists, one list after the other.

    >>> chain(vary("a", [1, 2]), [{"b": 3}])
    [{'a': 1}, {'a': 2}, {'b': 3}]
    """
    return [dict(member) for member in itertools.chain(*lists)]


def _merged(members: Iterable[Overrides]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for member in members:
        twice = merged.keys() & member.keys()
        if twice:
            raise SweepError(
                f"{sorted(twice)[0]!r} set by two of the lists", "every key by one list",
                "take it out of one of them",
            )  # fmt: skip
        merged |= member
    return merged
