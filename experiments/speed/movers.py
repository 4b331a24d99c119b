"""Lists the instructions of a compiled step that move the most bytes of device memory."""

import dataclasses
from collections.abc import Iterable

from vit_jax.plan.hlo import Array, Computation, Instruction, Program
from vit_jax.plan.traffic import bytes_moved, results_written

_SHOWN_ARRAYS = 3


@dataclasses.dataclass(frozen=True)
class Mover:
    """All instructions of a step that do the same: opcode, JAX operation and shapes are equal.

    Attributes:
        opcode: XLA's opcode; of a custom call, also its target, e.g. "custom-call __cublas$gemm".
        op_name: JAX's name of the operation; "" if XLA added the instruction.
        shapes: its results, then "<-" and its operands, e.g. "bf16[8,4] <- f32[8,4]". The largest
            arrays come first; "+2" stands for two more.
        runs: how often these instructions run in a step.
        bytes: bytes that all these runs read and write together, as in `traffic.count_bytes`.
    """

    opcode: str
    op_name: str
    shapes: str
    runs: int
    bytes: int


def find_movers(program: Program) -> list[Mover]:
    """Returns what moves bytes in a step, the largest first. The bytes add up to `count_bytes`."""
    found: dict[tuple[str, str, str], tuple[int, int]] = {}
    for instruction, computation, runs in program.executed():
        size = runs * bytes_moved(instruction, computation, program.computations)
        if size:
            shapes = _shapes(instruction, computation)
            key = (_opcode(instruction), instruction.op_name, shapes)
            runs_before, size_before = found.get(key, (0, 0))
            found[key] = (runs_before + runs, size_before + size)
    movers = [Mover(*key, runs, size) for key, (runs, size) in found.items()]
    return sorted(movers, key=lambda mover: -mover.bytes)


def _opcode(instruction: Instruction) -> str:
    target = instruction.custom_call_target
    return f"{instruction.opcode} {target}" if target else instruction.opcode


def _shapes(instruction: Instruction, computation: Computation) -> str:
    operands = [computation[name] for name in instruction.operands if name in computation]
    read = _largest(array for operand in operands for array in operand.arrays)
    made = _largest(results_written(instruction))
    return f"{made} <- {read}" if read else made


def _largest(arrays: Iterable[Array]) -> str:
    ordered = sorted(arrays, key=lambda array: -array.padded_bytes)
    rest = len(ordered) - _SHOWN_ARRAYS
    shown = ", ".join(map(str, ordered[:_SHOWN_ARRAYS]))
    return f"{shown} +{rest}" if rest > 0 else shown
