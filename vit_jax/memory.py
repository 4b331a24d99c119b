"""The memory of this machine, and errors for what does not fit it, before it is allocated."""

import math
from pathlib import Path

import psutil

from vit_jax.errors import MemoryLimitError

# Limits of the container that this process runs in: version 2 and version 1 of cgroups.
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def machine_bytes() -> int:
    """Returns the memory that this process can have: of the machine, or the container's limit."""
    limits = [psutil.virtual_memory().total]
    for path in _CGROUP_LIMITS:
        try:
            limits.append(int(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):  # Not there, or "max".
            continue
    return min(limits)


def shown_bytes(count: float) -> str:
    """Returns a number of bytes with a unit.

    >>> shown_bytes(24_900_000_000), shown_bytes(10_240_000_000_000), shown_bytes(7)
    ('24.9 GB', '10.2 TB', '7 B')
    """
    power = min(len(_UNITS) - 1, int(math.log10(max(1, count)) / 3 + 1e-9))
    if not power:
        return f"{count:.0f} B"
    value = count / 1000**power
    return f"{value:.3g} {_UNITS[power]}" if value >= 1000 else f"{value:.1f} {_UNITS[power]}"


def check_fits(
    needed: int, what: str, fix: str, *, limit: float | None = None, place: str = "this machine"
) -> None:
    """Raises MemoryLimitError if something needs more memory than there is.

    `needed` is a lower bound in bytes. `what` needs it, e.g. "a batch of images", and `place` has
    the `limit`.
    """
    limit = machine_bytes() if limit is None else limit
    if needed > limit:
        raise MemoryLimitError(
            f"{shown_bytes(needed)} for {what}; {place} has {shown_bytes(limit)}",
            "a size that fits the memory",
            fix,
        )
