"""What became of every tensor when weights were loaded."""

import enum
import re
from collections.abc import Sequence
from typing import Any

from vit_jax.errors import WeightsError, first_few
from vit_jax.interop.normalization import Normalization


class Status(enum.Enum):
    """What became of a parameter or tensor."""

    TAKEN = "taken"
    RESIZED = "resized"
    REINITIALISED = "re-initialised"
    LEFT_OUT = "left out"
    MISSING = "missing"
    UNEXPECTED = "unexpected"


class LoadReport:
    """The table that loading prints.

    Args:
        path: where the weights came from.
        format: of the file.
        model: name of the model made.
        size_bytes: of the file.

    Attributes:
        entries: (status, name, detail) in the order found.
        seconds: that loading took.
        normalization: of images, that was folded into the patch embedding; None: nothing to fold.
    """

    def __init__(self, path: str, format: str, model: str, size_bytes: int):
        self.path, self.format, self.model, self.size_bytes = path, format, model, size_bytes
        self.entries: list[tuple[Status, str, str]] = []
        self.seconds = 0.0
        self.normalization: Normalization | None = None

    def add(self, status: Status, *names: str, detail: str = "") -> None:
        """Notes what became of some names."""
        shown = detail if status is Status.RESIZED else ""
        self.entries += [(status, name, shown) for name in names]

    def names(self, status: Status) -> list[str]:
        """Returns the names with a status."""
        return [name for found, name, _ in self.entries if found is status]

    def check(self, allow_unexpected: Sequence[str]) -> None:
        """Raises WeightsError if something is missing, or unexpected and not allowed."""
        unexpected = [
            name
            for name in self.names(Status.UNEXPECTED)
            if not any(re.fullmatch(pattern, name) for pattern in allow_unexpected)
        ]
        for names, what, argument in (
            (self.names(Status.MISSING), "lacks", "allow_missing"),
            (unexpected, "has, unused by the model,", "allow_unexpected"),
        ):
            if names:
                raise WeightsError(
                    f"{self.path} ({self.format}, as {self.model}) {what} {first_few(names, 3)}",
                    "the model's parameters and no others",
                    f"give the right options, or allow it by a pattern in {argument}=",
                )

    def to_mapping(self) -> dict[str, Any]:
        """Returns it ready for JSON."""
        found: dict[str, Any] = {
            "path": self.path,
            "format": self.format,
            "model": self.model,
            "size_bytes": self.size_bytes,
            "normalization": self.normalization,
        }
        for status in Status:
            rows = [(name, detail) for s, name, detail in self.entries if s is status]
            key = status.value.replace("-", "").replace(" ", "_")
            found[key] = dict(rows) if status is Status.RESIZED else [name for name, _ in rows]
        return found

    def print(self) -> None:
        """Prints the table: how many of each, and by name all that were not simply taken."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        title = Text(f"{self.model} from {self.path}")  # Brackets in a path are no markup.
        table = Table(title=title, title_justify="left")
        table.add_column("what")
        table.add_column("count", justify="right")
        table.add_column("parameters", overflow="fold")
        for status in Status:
            found = [(name, detail) for s, name, detail in self.entries if s is status]
            if not found:
                continue
            shown = [f"{name} {detail}".strip() for name, detail in found[:8]]
            more = [f"and {len(found) - 8} more"] if len(found) > 8 else []
            listed = "" if status is Status.TAKEN else "\n".join(shown + more)
            table.add_row(status.value, str(len(found)), listed)
        console = Console(stderr=True)
        console.print(table)
        size = f"{self.size_bytes / 1e6:,.1f} MB"
        if self.normalization is not None:
            mean, std = self.normalization
            console.print(
                f"made for images normalised by mean {mean} and deviation {std}: folded into the"
                " patch embedding, which now takes [-1, 1]",
                highlight=False,
            )
        console.print(f"{self.format}, {size}, loaded in {self.seconds:.1f} s", highlight=False)
