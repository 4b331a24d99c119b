"""The report of loading weights: the status of every tensor and parameter."""

import enum
import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vit_jax.errors import ARGUMENT, WeightsError, first_few
from vit_jax.interop.normalization import Normalization

if TYPE_CHECKING:
    from rich.console import Console


class Status(enum.Enum):
    """Whether and how a parameter or tensor was loaded."""

    TAKEN = "taken"
    RESIZED = "resized"
    REINITIALISED = "re-initialised"
    LEFT_OUT = "left out"
    MISSING = "missing"
    UNEXPECTED = "unexpected"


class LoadReport:
    """The table of what was loaded.

    Attributes:
        file_names: parameter name -> name of its tensors in the file.
        entries: (status, name, detail) in the order found.
        seconds: time that loading took.
        normalization: normalisation that was folded into the patch embedding; None: none.
        assumed: what is assumed, because neither the file nor the caller says it.
    """

    def __init__(
        self,
        path: str,
        format: str,
        model: str,
        size_bytes: int,
        file_names: Mapping[str, str] | None = None,
    ):
        self.path, self.format, self.model, self.size_bytes = path, format, model, size_bytes
        self.file_names = dict(file_names or {})
        self.entries: list[tuple[Status, str, str]] = []
        self.seconds = 0.0
        self.normalization: Normalization | None = None
        self.assumed: tuple[str, ...] = ()

    def add(self, status: Status, *names: str, detail: str = "") -> None:
        """Records the status of some names; only RESIZED keeps the detail."""
        shown = detail if status is Status.RESIZED else ""
        self.entries += [(status, name, shown) for name in names]

    def add_prefix(self, prefix: str) -> None:
        """Adds a prefix to the names of parameters: the weights become a part of a larger model."""
        self.entries = [
            (status, name if status is Status.UNEXPECTED else f"{prefix}{name}", detail)
            for status, name, detail in self.entries
        ]

    def names(self, status: Status) -> list[str]:
        return [name for found, name, _ in self.entries if found is status]

    def label(self, name: str) -> str:
        """Returns the name of a parameter in the file, and its name here if that differs."""
        theirs = self.file_names.get(name, name)
        return name if theirs == name else f"{theirs} ({name} here)"

    def check(self, allow_unexpected: Sequence[str]) -> None:
        """Raises WeightsError if a parameter is missing, or an unused tensor is not allowed."""
        unexpected = [
            name
            for name in self.names(Status.UNEXPECTED)
            if not any(re.fullmatch(pattern, name) for pattern in allow_unexpected)
        ]
        for names, problem, argument in (
            (self.names(Status.MISSING), "lacks", "allow_missing"),
            (unexpected, "contains tensors that the model does not use:", "allow_unexpected"),
        ):
            if names:
                labels = [self.label(name) for name in names]
                raise WeightsError(
                    f"{self.path} ({self.format}, as {self.model}) {problem}"
                    f" {first_few(labels, 3)}",
                    "the model's parameters and no others",
                    f"correct the options, or allow it with a pattern in {ARGUMENT}=",
                    argument=argument,
                )

    def to_mapping(self) -> dict[str, Any]:
        """Returns the report as a mapping for JSON."""
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

    def print(self, *, brief: bool = False) -> None:
        """Prints the table to stderr; with `brief`, one line if all parameters are TAKEN."""
        from rich.console import Console

        self._print(Console(stderr=True), brief)

    def text(self) -> str:
        """Returns what `print` prints, for the log."""
        from rich.console import Console

        file = io.StringIO()
        self._print(Console(file=file, width=100), brief=False)
        return file.getvalue().rstrip()

    def _print(self, console: "Console", brief: bool) -> None:
        from rich.table import Table
        from rich.text import Text

        if brief and self._is_plain:
            console.print(self.line(), highlight=False, markup=False, soft_wrap=True)
            return
        title = Text(f"{self.model} from {self.path}")  # Not a str: Rich reads brackets as markup.
        table = Table(title=title, title_justify="left")
        table.add_column("status")
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
        console.print(table)
        if self.normalization is not None:
            mean, std = self.normalization
            console.print(
                f"The weights expect images normalised by mean {mean} and standard deviation {std}."
                " This was folded into the patch embedding, which now takes images in [-1, 1].",
                highlight=False,
            )
        console.print(self._origin(), highlight=False, markup=False, soft_wrap=True)

    def line(self) -> str:
        """Returns one line: what was loaded, and the number of names of each status."""
        counts = {status: len(self.names(status)) for status in Status}
        if self._is_plain:
            found = f"{counts[Status.TAKEN]} tensors"
        else:
            found = ", ".join(f"{n} {status.value}" for status, n in counts.items() if n)
        return f"{self.model} from {self.path}: {found}, {self._origin()}"

    @property
    def _is_plain(self) -> bool:
        """Whether all parameters were taken as they are."""
        return len(self.names(Status.TAKEN)) == len(self.entries)

    def _origin(self) -> str:
        size = f"{self.size_bytes / 1e6:,.1f} MB"
        assumed = ""
        if self.assumed:
            assumed = f". The files do not say it, so this is assumed: {', '.join(self.assumed)}"
        return f"{self.format}, {size}, loaded in {self.seconds:.1f} s{assumed}"
