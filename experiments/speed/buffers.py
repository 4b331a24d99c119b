"""Finds the arrays that are alive when a compiled step needs the most device memory.

It walks the instructions in scheduled order. An array is alive from the instruction that creates it
to the last instruction that reads it. Arrays created in the body of a loop add to those alive
outside it. Results that overwrite a donated argument do not count, because arguments are counted
separately.

The sum is close to XLA's own figure but not equal: XLA shares memory between arrays with different
lifetimes, and leaves gaps.
"""

import dataclasses
import re

from vit_jax.plan.hlo import Computation, Instruction, Program, step_part

_FORWARDED = {
    "bitcast", "copy-done", "slice-done", "all-reduce-done", "all-gather-done",
    "reduce-scatter-done", "collective-permute-done", "async-done", "optimization-barrier",
    "opt-barrier", "domain",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Arrays of one shape from one part of the step that are alive at the memory peak."""

    shape: str  # e.g. "bf16[24,32,197,1024]"
    part: str  # part of the step that creates them
    count: int  # number of arrays
    bytes: int  # total size, including tile padding


@dataclasses.dataclass
class _Value:
    size: int
    shape: str
    part: str


# The values of a result's elements; None: an argument, or not in device memory.
_Values = list[_Value | None]


def find_buffers(program: Program, text: str) -> list[Buffer]:
    """Returns the arrays that are alive at the memory peak, the largest first.

    The first line of the program's text lists the results that overwrite an argument.
    """
    kept = _donated_results(text.partition("\n")[0])
    _, live = _peak_memory(program, program.entry, None, kept)
    together: dict[tuple[str, str], list[int]] = {}
    for value in live:
        together.setdefault((value.shape, value.part), []).append(value.size)
    buffers = [Buffer(*key, len(sizes), sum(sizes)) for key, sizes in together.items()]
    return sorted(buffers, key=lambda b: -b.bytes)


def _donated_results(header: str) -> set[int]:
    """Returns the indices of the results that overwrite an argument."""
    match = re.search(r"input_output_alias=\{(.*?)\}\s*(?:,\s*\w+=|$)", header)
    return {int(i) for i in re.findall(r"\{(\d+)\}: \(", match[1])} if match else set()


def _peak_memory(
    program: Program, name: str, arguments: _Values | None, kept: set[int]
) -> tuple[int, list[_Value]]:
    """Returns the peak memory of a computation's arrays in bytes, and the arrays alive at the peak.

    The caller counts the values of the `arguments`. Results in `kept`, given by their indices,
    overwrite an argument and need no memory.
    """
    computation = program.computations.get(name, {})
    held: dict[str, _Values] = {}
    last_read: dict[int, int] = {}
    results: _Values = []
    for step, instruction in enumerate(computation.values()):
        held[instruction.name] = _values(instruction, held, computation, arguments)
        # Extracting a tuple element does not read the other elements.
        takes = instruction.opcode == "get-tuple-element"
        for used in (instruction.name, *(() if takes else instruction.operands)):
            last_read.update({id(v): step for v in held.get(used, ()) if v is not None})
        if instruction.root:
            results = held[instruction.name]
    last_read.update({id(v): len(computation) for v in results if v is not None})
    ignored = {id(v) for v in arguments or ()} | {id(results[k]) for k in kept if k < len(results)}

    alive: dict[int, _Value] = {}
    peak, alive_at_peak = 0, []
    for step, instruction in enumerate(computation.values()):
        values = held[instruction.name]
        alive.update({id(v): v for v in values if v is not None and id(v) not in ignored})
        inner, alive_inside = 0, []
        if instruction.opcode == "while" and (body := dict(instruction.called).get("body")):
            inner, alive_inside = _peak_memory(program, body, values, set(range(len(values))))
        size = sum(v.size for v in alive.values()) + inner
        if size > peak:
            peak, alive_at_peak = size, [*alive.values(), *alive_inside]
        alive = {key: v for key, v in alive.items() if last_read.get(key, -1) > step}
    return peak, alive_at_peak


def _values(
    instruction: Instruction,
    held: dict[str, _Values],
    computation: Computation,
    arguments: _Values | None,
) -> _Values:
    kind, count = instruction.opcode, len(instruction.arrays)
    given = [held.get(name, []) for name in instruction.operands]
    if kind == "parameter":
        return list(arguments) if arguments is not None else [None] * count
    if kind == "tuple":
        return [value for values in given for value in values]
    if kind == "get-tuple-element":
        index = re.search(r"index=(\d+)", instruction.text)
        source = computation.get(instruction.operands[0])
        if index and source is not None and len(source.arrays) == len(given[0]):
            return given[0][int(index[1]) : int(index[1]) + count]
        return [None] * count
    if kind == "while" or (kind in _FORWARDED and given and len(given[0]) == count):
        return list(given[0])
    start = computation.get(instruction.operands[0]) if kind.endswith("-done") else None
    if start is not None and _repeats_operands(start):
        return given[0][len(start.operands) : len(start.operands) + count]
    if kind in _FORWARDED:  # The end of an asynchronous operation: operand and result.
        fitting = [v for v in (given[0] if given else []) if v is not None]
        return ([*fitting[:count], *[None] * count])[:count]
    if kind == "constant":
        return [None] * count
    made: _Values = [
        _Value(a.padded_bytes, str(a), _instruction_part(instruction)) if a.space == 0 else None
        for a in instruction.arrays
    ]
    if kind in ("copy-start", "slice-start"):
        return [
            v if k == (0 if kind == "copy-start" else count - 2) else None
            for k, v in enumerate(made)
        ]
    if _repeats_operands(instruction):
        read = [value for values in given for value in values]
        return [*read, *made[len(read) :]] if len(read) == len(given) else made
    return [_in_place_result(instruction, k, v, given) for k, v in enumerate(made)]


def _repeats_operands(instruction: Instruction) -> bool:
    """Returns whether the results are the operands, then the real results: all-gather-start."""
    names = ("all-gather-start", "reduce-scatter-start", "collective-permute-start")
    return instruction.opcode in names and len(instruction.arrays) >= 2 * len(instruction.operands)


def _in_place_result(
    instruction: Instruction, index: int, value: _Value | None, given: list[_Values]
) -> _Value | None:
    """Returns the operand's value if the result updates it in place, else the new value."""
    if value is None:
        return None
    name = instruction.name
    updates = instruction.opcode == "dynamic-update-slice" or "dynamic-update-slice" in name
    for values in given if updates and index == 0 else ():
        for other in values:
            if other is not None and (other.shape, other.size) == (value.shape, value.size):
                other.part = value.part  # The part that writes the array.
                return other
    return value


def _instruction_part(instruction: Instruction) -> str:
    """Returns the part of the step that creates an array, or the opcode of copies that XLA adds."""
    if instruction.op_name:
        return step_part(instruction.op_name)
    return instruction.opcode.removesuffix("-start")
