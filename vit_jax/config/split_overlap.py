"""Whether two split strings name some of the same examples, as far as the strings tell."""

import math
import re

_PART = re.compile(r"(?P<name>[^\[\]]+)(\[(?P<from>[^:]*):(?P<to>[^\]]*)\])?")
_MINIVAL = re.compile(r"mini(train|val)_(1|2|10)_percent")


def shares(one: str, other: str) -> bool | None:
    """Returns whether two splits of a dataset share examples; None: the strings do not tell.

    Presets are read as `vit_jax.data.sources.splits` does; where VTAB's lie depends on the dataset.

    Args:
        one: in TFDS's grammar, or a preset.
        other: the same.

    >>> shares("train[90%:]", "test"), shares("train", "train[90%:]"), shares("all", "test")
    (False, True, True)
    >>> shares("train", "minival_2_percent"), shares("train800", "val200")
    (True, False)
    >>> shares("train[90%:]", "train[:1000]") is None
    True
    """
    found = [_shared(a, b) for a in _parts(one) for b in _parts(other)]
    if True in found:
        return True
    return None if None in found else False


def may_share(one: str, other: str) -> bool:
    """Whether two split strings may name the same examples.

    >>> may_share("train[90%:]", "test"), may_share("test[:50%]", "test")
    (False, True)
    >>> may_share("train[80%:90%]", "train[90%:]"), may_share("train[:100]", "train[50:]")
    (False, True)
    """
    return shares(one, other) is not False


def _parts(split: str) -> list[str]:
    written_out: list[str] = []
    for part in (part.strip() for part in split.split("+")):
        minival = _MINIVAL.fullmatch(part)
        if part == "train800val200":
            written_out += ["train[:800]", "val200"]
        elif part == "train800":
            written_out.append("train[:800]")
        elif minival:
            before = 100 - int(minival[2])
            written_out.append(
                f"train[:{before}%]" if minival[1] == "train" else f"train[{before}%:]"
            )
        else:
            written_out.append(part)
    return written_out


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
    first, second = _span(a), _span(b)
    if first is None or second is None or first[0] != second[0]:
        return None
    return first[1] < second[2] and second[1] < first[2]


def _span(part: re.Match[str]) -> tuple[str, float, float] | None:
    """Returns the unit, begin and end of a part; None: not to be compared with others."""
    ends = [(part[end] or "").strip() for end in ("from", "to")]
    units = {"%" if end.endswith("%") else "examples" for end in ends if end}
    numbers = [end.removesuffix("%") for end in ends]
    if len(units) != 1 or any(n and not n.isdecimal() for n in numbers):
        return None
    begin, end = numbers
    return units.pop(), float(begin or 0), float(end or math.inf)
