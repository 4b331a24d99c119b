"""Several sources combined into one, in given proportions."""

import bisect
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil

from vit_jax.data.sources.base import Example, Source, hash_of, is_remote, read_ahead
from vit_jax.errors import DataError

# Grain shuffles 32-bit positions.
_MAX_LENGTH = 2**32


class MixtureSource:
    """A source whose positions are divided among its members.

    Each member has a block of `slots` positions; blocks follow the order of the members' names.
    Position p of a block that starts at s is the member's example (p - s) modulo its size. The
    loader shuffles positions, so an epoch has the exact proportions and a part of an epoch has them
    approximately. Memory does not grow with the number of positions.

    Members with the same class names share labels. Otherwise labels are numbered member by member,
    and class names become "MEMBER/CLASS".
    """

    def __init__(self, members: Mapping[str, Source], slots: Mapping[str, int]):
        names = sorted(members)
        self._names, self._members = names, [members[name] for name in names]
        self._ends = list(itertools.accumulate(slots[name] for name in names))
        if len(self) > _MAX_LENGTH:
            raise DataError(
                f"an epoch of the mixture has {len(self):,} examples",
                f"at most {_MAX_LENGTH:,}",
                "raise the smallest weights",
            )
        self._offsets, self.class_names = _join_labels(dict(zip(names, self._members, strict=True)))
        shares = [f"{slots[n] / len(self):.1%} {members[n].name}" for n in names]
        self.name = f"mixture of {', '.join(shares)}"
        self.remote = any(is_remote(member) for member in self._members)
        self.fingerprint = hash_of([(n, members[n].fingerprint, slots[n]) for n in names])

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Example:
        return self.read([index])[0]

    def locate(self, index: int) -> tuple[int, int]:
        """Returns the member's number and the index of its example at a position."""
        member = bisect.bisect_right(self._ends, index)
        start = self._ends[member - 1] if member else 0
        return member, (index - start) % len(self._members[member])

    def read(self, indices: Sequence[int]) -> list[Example]:
        places = [self.locate(i) for i in indices]
        found: dict[int, Example] = {}
        for number, member in enumerate(self._members):
            mine = [i for i, (owner, _) in enumerate(places) if owner == number]
            if mine:
                for i, example in zip(mine, member.read([places[i][1] for i in mine]), strict=True):
                    found[i] = self._relabel(number, example)
        return [found[i] for i in range(len(places))]

    def read_ahead(self, indices: Sequence[int]) -> None:
        places = [self.locate(i) for i in indices]
        for number, member in enumerate(self._members):
            read_ahead(member, [index for owner, index in places if owner == number])

    def _relabel(self, number: int, example: Example) -> Example:
        """Returns the example with its label in the mixture, or -1 if it is out of range."""
        within = 0 <= example.label < len(self._members[number].class_names)
        label = example.label + self._offsets[number] if within else -1
        return dataclasses.replace(example, label=label, id=f"{self._names[number]}: {example.id}")


class MixtureMember:
    """One of all members of a mixture, with the mixture's labels, for evaluation."""

    def __init__(self, members: Mapping[str, Source], name: str):
        self._mixture = MixtureSource(members, {n: len(m) for n, m in members.items()})
        number = sorted(members).index(name)
        self._start = sum(len(members[n]) for n in sorted(members)[:number])
        self._length = len(members[name])
        self.name = members[name].name
        self.class_names = self._mixture.class_names
        self.remote = is_remote(members[name])
        self.fingerprint = hash_of(self._mixture.fingerprint, name)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Example:
        return self.read([index])[0]

    def read(self, indices: Sequence[int]) -> list[Example]:
        return self._mixture.read([self._start + i for i in indices])

    def read_ahead(self, indices: Sequence[int]) -> None:
        self._mixture.read_ahead([self._start + i for i in indices])


def slots_by_weight(sizes: Mapping[str, int], weights: Mapping[str, float]) -> dict[str, int]:
    """Returns each member's number of positions in the shortest epoch with every example.

    >>> slots_by_weight({"a": 100, "b": 10}, {"a": 1.0, "b": 1.0})
    {'a': 100, 'b': 100}
    >>> slots_by_weight({"a": 100, "b": 10}, {"a": 19.0, "b": 1.0})
    {'a': 190, 'b': 10}
    """
    exact = {name: Fraction(str(weights[name])) for name in sizes}
    scale = max(Fraction(sizes[name]) / exact[name] for name in sizes)
    return {name: ceil(scale * exact[name]) for name in sizes}


def _join_labels(members: Mapping[str, Source]) -> tuple[list[int], tuple[str, ...]]:
    """Returns the offset of each member's labels and the names of all classes."""
    spaces: dict[tuple[str, ...], tuple[int, str]] = {}
    total = 0
    for name, member in members.items():
        if member.class_names not in spaces:
            spaces[member.class_names] = (total, name)
            total += len(member.class_names)
    offsets = [spaces[member.class_names][0] for member in members.values()]
    if len(spaces) == 1:
        return offsets, next(iter(spaces))
    return offsets, tuple(f"{first}/{c}" for names, (_, first) in spaces.items() for c in names)
