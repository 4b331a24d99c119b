"""Finds the most expensive operations in a profiler trace.

A trace gives the time of each XLA operation. The text of the compiled program says what the
operation computes and which line of Python made it.
"""

import collections
import csv
import dataclasses
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jax.profiler import ProfileData
from rich.console import Console

from vit_jax.storage.files import write_atomically

SHOWN_OPERATIONS = 10
_WIDEST_NAME = 34
_COLUMNS = (
    "operation", "ms per step", "share", "runs per step", "part of the step", "JAX operation",
    "source",
)  # fmt: skip

_INSTRUCTION = re.compile(
    r'^\s*(?:ROOT )?%?([\w.-]+) = .*metadata=\{.*?op_name="([^"]*)"(?:.*?stack_frame_id=(\d+))?',
    re.MULTILINE,
)
_FILE = re.compile(r'^(\d+) "(.*)"$', re.MULTILINE)
_LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", re.MULTILINE)
_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+) parent_frame_id=(\d+)", re.MULTILINE)
# Where the paths of our own sources begin.
_PACKAGE = re.compile(r".*/(vit_jax/.*)")
# Lines of a plane that repeat the operations of its other lines, or that hold none.
_OPERATIONS_LINE, _STREAM = "XLA Ops", "Stream"


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of a compiled program.

    Attributes:
        name: XLA's name of it; the name of the kernel if XLA gave none.
        ms: its time per step on a device, without the operations inside it, in milliseconds.
        share: its part of the time of all operations.
        runs: how often it runs per step on a device.
        part: part of the training step, e.g. "backward, in the layers".
        op_name: last part of JAX's name, e.g. "dot_general"; "" if XLA added the operation.
        source: line of this package that made it, e.g. "vit_jax/models/mlp.py:52"; "" if unknown.
    """

    name: str
    ms: float
    share: float
    runs: float
    part: str
    op_name: str
    source: str

    def cells(self) -> tuple[str, ...]:
        """Returns the texts of its row in a table."""
        figures = (f"{self.ms:.3f}", f"{self.share:.1%}", f"{self.runs:g}")
        return (self.name, *figures, self.part, self.op_name, self.source)


@dataclasses.dataclass(frozen=True)
class Operations:
    """The most expensive operations of a step.

    Attributes:
        what: what was traced, e.g. "steps 100 to 110".
        shown: the most expensive operations, the first takes longest.
        count: number of all operations.
        ms: time of all operations per step on a device, in milliseconds.
    """

    what: str
    shown: tuple[Operation, ...]
    count: int
    ms: float

    @property
    def title(self) -> str:
        """One line about the whole table."""
        share = sum(operation.share for operation in self.shown)
        return (
            f"{self.what}: {len(self.shown)} of {self.count} operations take {share:.0%} of the"
            f" time of all operations ({self.ms:.2f} ms per step)"
        )

    def markdown(self) -> str:
        """Returns the table as Markdown."""
        rows = [_COLUMNS, ["---", *["---:"] * 3, *["---"] * 3]]
        rows += [operation.cells() for operation in self.shown]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([f"# {self.title}", "", *lines]) + "\n"

    def csv(self) -> str:
        """Returns the table as CSV, with all digits."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([field.name for field in dataclasses.fields(Operation)])
        writer.writerows(dataclasses.astuple(operation) for operation in self.shown)
        return text.getvalue()

    def show(self, console: Console) -> None:
        """Prints the table. Its lines are not cut, however narrow the terminal is."""
        lines = [self.title]
        for row in [_COLUMNS, *(operation.cells() for operation in self.shown)]:
            name, ms, share, runs, *made_by = row
            name = name if len(name) <= _WIDEST_NAME else f"{name[: _WIDEST_NAME - 3]}..."
            made_by = ", ".join(filter(None, made_by))
            lines.append(f"  {name:{_WIDEST_NAME}} {ms:>12} {share:>6} {runs:>14}  {made_by}")
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)

    def write(self, folder: Path, name: str) -> None:
        """Writes the table to NAME.csv and NAME.md in a folder."""
        write_atomically(folder / f"{name}.csv", self.csv())
        write_atomically(folder / f"{name}.md", self.markdown())


def find_operations(
    trace: Path, what: str, *, steps: int, devices: int, program: str, module: str
) -> Operations:
    """Finds the most expensive operations of a trace.

    Args:
        trace: the file HOST.xplane.pb of a trace.
        what: what was traced, for the title.
        steps: number of traced steps.
        devices: number of devices of this host.
        program: text of the compiled step, from `Compiled.as_text`.
        module: name of this program. The operations of other programs have no source.
    """
    times: dict[tuple[str, str], float] = collections.defaultdict(float)
    runs: dict[tuple[str, str], int] = collections.defaultdict(int)
    for line in _operation_lines(ProfileData.from_file(str(trace))):
        for key, own_ns in _own_times(line):
            times[key] += own_ns
            runs[key] += 1
    total = sum(times.values()) or 1.0
    origins = _origins(program)
    shown = []
    for (of, name), ns in sorted(times.items(), key=lambda row: -row[1])[:SHOWN_OPERATIONS]:
        known = of in ("", module)
        op_name, source = origins.get(name, ("", "")) if known else ("", "")
        part = step_part(op_name) if op_name else "added by XLA" if known else f"program {of}"
        shown.append(
            Operation(
                name,
                ns / 1e6 / steps / devices,
                ns / total,
                runs[of, name] / steps / devices,
                part,
                op_name.rpartition("/")[2],
                source,
            )
        )
    return Operations(what, tuple(shown), len(times), sum(times.values()) / 1e6 / steps / devices)


def step_part(op_name: str) -> str:
    """Returns the part of a training step that contains an operation.

    >>> step_part("jit(step_fn)/transpose(jvp())/while/body/checkpoint/rematted_computation/add")
    'recomputed forward, in the layers'
    """
    if "rematted_computation" in op_name:
        part = "recomputed forward"
    elif "transpose(" in op_name:
        part = "backward"
    elif "jvp(" in op_name:
        part = "forward"
    else:
        return "outside the gradient" if op_name else "unnamed"
    return f"{part}, in the layers" if "/while/" in op_name else part


class _Event(NamedTuple):
    """An event of a trace: start and end in ns, and (program, operation)."""

    start: float
    end: float
    key: tuple[str, str]


def _operation_lines(data: Any) -> Iterator[list[_Event]]:
    """Yields the operations of each line of a trace."""
    for plane in data.planes:
        on_device = plane.name.startswith("/device:")
        lines = list(plane.lines)
        repeats = any(line.name == _OPERATIONS_LINE for line in lines)
        for line in lines:
            if on_device and not line.name.startswith(_OPERATIONS_LINE if repeats else _STREAM):
                continue
            events = map(_read, line.events)
            # The threads of a host also run other things than operations.
            yield [event for event in events if on_device or event.key[0]]


def _read(event: Any) -> _Event:
    stats = dict(event.stats)
    # A TPU's operation is named by its whole line of XLA's text.
    name = stats.get("hlo_op") or event.name.partition(" = ")[0].lstrip("%")
    key = str(stats.get("hlo_module", "")), str(name)
    return _Event(event.start_ns, event.start_ns + event.duration_ns, key)


def _own_times(events: Iterable[_Event]) -> Iterator[tuple[tuple[str, str], float]]:
    """Yields the time of each event in ns, without the events inside it, such as a loop's body."""
    open_events: list[tuple[float, tuple[str, str]]] = []
    own: list[float] = []
    for start, end, key in sorted(events, key=lambda event: (event.start, -event.end)):
        while open_events and open_events[-1][0] <= start:
            yield open_events.pop()[1], own.pop()
        if own:
            own[-1] -= end - start
        open_events.append((end, key))
        own.append(end - start)
    while open_events:
        yield open_events.pop()[1], own.pop()


def _origins(program: str) -> dict[str, tuple[str, str]]:
    """Returns (JAX's name, line of this package) of each instruction in the text of a program."""
    files = dict(_FILE.findall(_part(program, "FileNames")))
    places = {
        number: (files.get(file, ""), line)
        for number, file, line in _LOCATION.findall(_part(program, "FileLocations"))
    }
    rows = [tuple(map(int, row)) for row in _FRAME.findall(_part(program, "StackFrames"))]
    # XLA prints the number of the parent plus one, so that the first frame is its own parent.
    shift = int(any(number == parent for number, _, parent in rows))
    frames = {number: (place, parent - shift) for number, place, parent in rows}

    def source(frame: int) -> str:
        """Returns the innermost line of this package."""
        while frame in frames:
            place, parent = frames[frame]
            frame = parent if parent < frame else 0
            path, line = places.get(str(place), ("", ""))
            ours = _PACKAGE.match(path)
            if ours:
                return f"{ours[1]}:{line}"
        return ""

    return {
        name: (op_name, source(int(frame or 0)))
        for name, op_name, frame in _INSTRUCTION.findall(program)
    }


def _part(program: str, header: str) -> str:
    """Returns a table at the top of a program's text; it ends at the next empty line."""
    return program.partition(f"\n{header}\n")[2].partition("\n\n")[0]
