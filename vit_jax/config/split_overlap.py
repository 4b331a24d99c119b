"""Tests whether two split strings share examples."""

import re

_PART = re.compile(r"(?P<name>[^\[\]]+)(\[(?P<from>[^:]*):(?P<to>[^\]]*)\])?")
_SLICES = {"train800": "train[:800]", "train800val200": "train[:800]+val200"}


def overlap(one: str, other: str) -> bool | None:
    """Returns whether two splits of a dataset share examples; None: unknown.

    A split is a TFDS split string, or a preset. For example, a percentage and a number of examples
    cannot be compared without the size of the dataset. Presets have the same meaning as in
    `vit_jax.data.sources.splits`. The position of some VTAB presets depends on the dataset.

    >>> overlap("train[90%:]", "test"), overlap("train", "train[90%:]"), overlap("all", "test")
    (False, True, True)
    >>> overlap("train800", "val200")
    False
    >>> overlap("train[90%:]", "train[:1000]") is None, overlap("train[:95%]", "train[-20%:]")
    (True, True)
    """
    found = [_shared(a, b) for a in _parts(one) for b in _parts(other)]
    if True in found:
        return True
    return None if None in found else False


def may_overlap(one: str, other: str) -> bool:
    """Returns whether two splits share examples or might share some.

    >>> may_overlap("train[90%:]", "test"), may_overlap("test[:50%]", "test")
    (False, True)
    >>> may_overlap("train[80%:90%]", "train[90%:]"), may_overlap("train[:100]", "train[50:]")
    (False, True)
    """
    return overlap(one, other) is not False


def _parts(split: str) -> list[str]:
    """Returns the parts of a sum of splits, with presets as slices where possible."""
    parts = [part.strip() for part in split.split("+")]
    return "+".join(_SLICES.get(part, part) for part in parts).split("+")


def _shared(one: str, other: str) -> bool | None:
    if one == other or "all" in (one, other):
        return True
    a, b = _PART.fullmatch(one), _PART.fullmatch(other)
    if a is None or b is None:
        return None
    if a["name"] != b["name"]:
        is_vtab = "vtab_test" in (one, other) and "test" in (a["name"], b["name"])
        return None if is_vtab else False
    if one == a["name"] or other == b["name"]:
        return True  # One of them is the whole split.
    answers = _is_before(a["from"], b["to"]), _is_before(b["from"], a["to"])
    if False in answers:
        return False
    return None if None in answers else True


def _is_before(begin: str, end: str) -> bool | None:
    """Returns whether the begin of a slice lies before the end of one; None: unknown.

    Percentages, examples and examples counted from the end cannot be compared with each other.
    """
    first, last = _position(begin), _position(end)
    if first is None or last is None:
        return None
    if first[1] == 0 or not end.strip():
        return True
    return first[1] < last[1] if first[0] == last[0] else None


def _position(text: str) -> tuple[str, int] | None:
    """Returns unit and number of one end of a slice; None: it is not such a number."""
    match = re.fullmatch(r"(-?)(\d+)(%?)", text.strip() or "0")
    if match is None:
        return None
    sign, number, unit = match[1], int(match[2]), match[3]
    if unit:
        return unit, 100 - number if sign else number
    return sign, -number if sign else number
