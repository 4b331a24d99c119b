"""Parses the text of a compiled program: computations, instructions, shapes and loop counts.

XLA's own cost analysis counts the body of a loop once. This module counts how often every
computation runs.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

_BITS = {
    "pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16,
    "f16": 16, "bf16": 16, "s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64,
    "c64": 64, "c128": 128,
}  # fmt: skip
_ARRAY = re.compile(r"([a-z]+[0-9a-z]*)\[([^\]]*)\](?:\{([^}]*)\})?")
_HEADER = re.compile(r"(ENTRY\s+)?%?([\w.\-]+)\s*\(.*\)\s*->.*\{$")
_NAME = re.compile(r"(ROOT\s+)?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_CALLED = re.compile(
    r"\b(body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclasses.dataclass(frozen=True)
class Array:
    """Shape and memory space of one array."""

    dtype: str  # XLA's name of the type, e.g. "bf16"
    dims: tuple[int, ...]
    space: int  # 0 is device memory (HBM), others are on the chip
    bytes: int  # of all elements
    padded_bytes: int  # in memory, including the padding of the layout's tiles

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str  # without "%"
    opcode: str  # e.g. "fusion"
    arrays: tuple[Array, ...]  # its results; a nested tuple is flattened
    operands: tuple[str, ...]  # their names
    text: str  # the attributes after the operands
    called: tuple[tuple[str, str], ...]  # (role, computation)
    root: bool  # whether it is the result of its computation

    @property
    def op_name(self) -> str:
        """JAX's name of the operation that the instruction comes from."""
        found = re.search(r'op_name="([^"]*)"', self.text)
        return found[1] if found else ""

    @property
    def custom_call_target(self) -> str:
        """Name of the library function of a custom call; "" for other instructions."""
        found = re.search(r'custom_call_target="([^"]*)"', self.text)
        return found[1] if found else ""


Computation = dict[str, Instruction]
"""Instructions by name, in the order of execution."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program.

    Computations inside fusions, and reducers, run as often as their caller.
    """

    computations: dict[str, Computation]  # by name
    entry: str  # name of the entry computation
    runs: dict[str, int]  # of each computation in one execution of the program
    unknown_loops: tuple[str, ...]  # with an unknown number of iterations; they count once

    def executed(self) -> Iterator[tuple[Instruction, Computation, int]]:
        """Yields (instruction, its computation, runs) for all instructions outside fusions."""
        inner = {
            name
            for computation in self.computations.values()
            for instruction in computation.values()
            if instruction.opcode not in ("while", "conditional", "call", "async-start")
            for _, name in instruction.called
        }
        for name, computation in self.computations.items():
            if name not in inner and self.runs.get(name):
                for instruction in computation.values():
                    yield instruction, computation, self.runs[name]


def parse(text: str) -> Program:
    """Parses the text of a program, from `Compiled.as_text`."""
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for raw in text.splitlines():
        line = raw.strip()
        if current is None:
            header = _HEADER.match(line)
            if header:
                current = computations.setdefault(header[2], {})
                entry = header[2] if header[1] else entry
        elif line == "}":
            current = None
        else:
            instruction = _parse_instruction(line)
            if instruction is not None:
                current[instruction.name] = instruction
    runs, unknown = _count_runs(computations, entry)
    return Program(computations, entry, runs, tuple(unknown))


def parse_arrays(text: str) -> tuple[Array, ...]:
    """Returns the arrays of a shape; a tuple is flattened.

    >>> [str(a) for a in parse_arrays("(f32[2,3]{1,0:T(8,128)}, s32[]{:S(2)})")]
    ['f32[2,3]', 's32[]']
    """
    return tuple(
        _parse_array(*m.groups()) for m in _ARRAY.finditer(text) if m[1] in _BITS or "8" in m[1]
    )


def _parse_array(dtype: str, dims_text: str, layout: str | None) -> Array:
    dims = tuple(int(d.lstrip("<=")) for d in dims_text.split(",") if d.strip())
    layout = layout or ""
    space = re.search(r"S\((\d+)\)", layout)
    bits = _BITS.get(dtype, 8)
    return Array(
        dtype,
        dims,
        int(space[1]) if space else 0,
        math.ceil(math.prod(dims) * bits / 8),
        math.ceil(math.prod(_padded_dims(dims, layout)) * bits / 8),
    )


def _padded_dims(dims: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Returns the dimensions, rounded up to whole tiles of the layout."""
    order, _, rest = layout.partition(":")
    tile = re.search(r"T\(([\d,]+)\)", rest)
    if not tile or not dims or not order:
        return dims
    sizes = list(dims)
    minor_to_major = [int(i) for i in order.split(",")]
    tiles = [int(t) for t in tile[1].split(",")]
    # The last tile dimension belongs to the most minor dimension.
    for axis, size in zip(minor_to_major, reversed(tiles), strict=False):
        sizes[axis] = math.ceil(sizes[axis] / size) * size
    return tuple(sizes)


def _parse_instruction(line: str) -> Instruction | None:
    match = _NAME.match(line)
    if match is None:
        return None
    start = match.end()
    end = _closing_parenthesis(line, start) + 1 if line[start] == "(" else line.find(" ", start)
    opcode = _OPCODE.match(line, end)
    if end <= 0 or opcode is None:
        return None
    close = _closing_parenthesis(line, opcode.end() - 1)
    inside, text = line[opcode.end() : close], line[close + 1 :]
    constant = opcode[1] in ("constant", "parameter")
    operands = () if constant else tuple(re.findall(r"%([\w.\-]+)", inside))
    if not constant and not operands and inside:  # Newer XLA versions omit the "%".
        operands = tuple(w.split()[-1] for w in re.sub(r"/\*.*?\*/", "", inside).split(", "))
    called = [(m[1], m[2]) for m in _CALLED.finditer(text)]
    branches = _BRANCHES.search(text)
    if branches:
        called += [("branch", b.strip().lstrip("%")) for b in branches[1].split(",")]
    if constant:
        text = f"({inside}){text}"
    return Instruction(
        match[2],
        opcode[1],
        parse_arrays(line[start:end]),
        operands,
        text,
        tuple(called),
        bool(match[1]),
    )


def _closing_parenthesis(line: str, start: int) -> int:
    """Returns the position of the parenthesis that closes the one at `start`."""
    depth = 0
    for position in range(start, len(line)):
        depth += (line[position] == "(") - (line[position] == ")")
        if not depth:
            return position
    return len(line)


def _count_runs(
    computations: dict[str, Computation], entry: str
) -> tuple[dict[str, int], list[str]]:
    runs: dict[str, int] = {}
    unknown: list[str] = []

    def visit(name: str, times: int) -> None:
        runs[name] = runs.get(name, 0) + times
        computation = computations.get(name, {})
        for instruction in computation.values():
            iterations = 1
            if instruction.opcode == "while":
                iterations = loop_iterations(instruction, computation, computations)
                if iterations is None:
                    unknown.append(instruction.name)
                    iterations = 1
            for _, called in instruction.called:
                visit(called, times * iterations)

    visit(entry, 1)
    return runs, unknown


def loop_iterations(
    loop: Instruction, computation: Computation, computations: dict[str, Computation]
) -> int | None:
    """Returns the number of iterations of a while loop of a computation; None: unknown.

    If XLA does not state it, it follows from the loop's counter, which rises from its first value
    to a constant. The loops of JAX's scans count from 0 by 1, loops that XLA has unrolled by 2, and
    those whose first iteration it has taken out from 1.
    """
    known = _TRIPS.search(loop.text)
    if known:
        return int(known[1])
    called = dict(loop.called)
    condition, body = (computations.get(called.get(n, ""), {}) for n in ("condition", "body"))
    bounds = [i for i in condition.values() if i.opcode == "constant" and not i.arrays[0].dims]
    compares = [
        i for i in condition.values() if i.opcode == "compare" and "direction=LT" in i.text
    ] + [i for i in condition.values() if i.opcode == "fusion"]
    values = {int(m[1]) for b in bounds if (m := re.match(r"\((\d+)\)", b.text))}
    counters = {_tuple_index(i) for i in condition.values() if i.opcode == "get-tuple-element"}
    root = next((i for i in body.values() if i.root), None)
    if not compares or len(values) != 1 or len(counters) != 1 or root is None:
        return None
    (bound,), (counter,) = values, counters
    at_zero = {
        i.name: 0
        for i in body.values()
        if i.opcode == "get-tuple-element" and _tuple_index(i) == counter
    }
    step = _integer(root.name, body, computations, at_zero, counter)
    first = _integer(loop.operands[0], computation, computations, {}, counter)
    return math.ceil((bound - (first or 0)) / step) if step is not None and step > 0 else None


def _tuple_index(instruction: Instruction) -> int:
    found = re.search(r"index=(\d+)", instruction.text)
    return int(found[1]) if found else 0


def _integer(
    name: str,
    computation: Computation,
    computations: dict[str, Computation],
    known: Mapping[str, int | None],
    element: int = 0,
) -> int | None:
    """Returns the value of an integer, or of an element of a tuple, if it follows from constants.

    `known` has values of instructions of the computation.
    """
    if name in known or name not in computation:
        return known.get(name)
    one = computation[name]

    def operand(index: int, element: int = 0) -> int | None:
        return _integer(one.operands[index], computation, computations, known, element)

    if one.opcode == "constant":
        found = re.match(r"\((-?\d+)\)", one.text)
        return int(found[1]) if found else None
    if one.opcode == "tuple":
        return operand(element)
    if one.opcode == "get-tuple-element":
        return operand(0, _tuple_index(one))
    if one.opcode in ("copy", "bitcast", "convert", "copy-start", "copy-done"):
        return operand(0)
    if one.opcode == "add":
        values = [operand(i) for i in range(len(one.operands))]
        return None if None in values else sum(v for v in values if v is not None)
    if one.opcode == "fusion":
        inside = computations.get(dict(one.called).get("calls", ""), {})
        parameters = [i for i in inside.values() if i.opcode == "parameter"]
        arguments = {i.name: operand(int(i.text[1 : i.text.index(")")])) for i in parameters}
        root = next((i for i in inside.values() if i.root), None)
        return root and _integer(root.name, inside, computations, arguments, element)
    return None


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
