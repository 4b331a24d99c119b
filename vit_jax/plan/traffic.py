"""Counts the bytes that a compiled step moves to and from device memory, and between devices."""

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from vit_jax.plan.hlo import Array, Computation, Instruction, Program, step_part
from vit_jax.plan.replica_groups import replica_groups, source_target_pairs

# Instructions that only name or forward an existing array.
_NO_TRAFFIC = {
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional",
    "call", "after-all", "partition-id", "replica-id", "iota", "opt-barrier",
    "optimization-barrier", "async-start", "async-update", "async-done", "add-dependency", "domain",
}  # fmt: skip
_NO_TRAFFIC_CALLS = ("Bitcast", "AllocateBuffer", "AssumeGatherIndicesInBound", "Sharding", "Pin")
_LIBRARIES = ("__cublas", "__cudnn")
_SLICES = ("dynamic-slice", "slice", "gather")


def count_bytes(program: Program) -> int:
    """Returns the bytes that a step reads from and writes to device memory.

    Each operand and each result of an instruction counts once, at its padded size in memory. If an
    instruction slices an operand, only the slice counts. Memory on the chip does not count, and
    caches are ignored.
    """
    return sum(
        runs * bytes_moved(instruction, computation, program.computations)
        for instruction, computation, runs in program.executed()
    )


def bytes_moved(
    instruction: Instruction, computation: Computation, computations: dict[str, Computation]
) -> int:
    """Returns the bytes that one run of an instruction, outside fusions, reads and writes.

    Only device memory counts.
    """
    if _forwards_only(instruction):
        return 0
    kind = instruction.opcode
    operands = [computation[name] for name in instruction.operands if name in computation]
    if kind in ("copy-start", "slice-start"):
        # The result also contains the operand: after the copy, but before the slice.
        made = instruction.arrays[0] if kind == "copy-start" else instruction.arrays[-2]
        source = operands[0].arrays[0] if operands else made
        return _size_in_memory(made) + (made.padded_bytes if source.space == 0 else 0)
    if kind == "fusion":
        return _fusion_bytes(instruction, operands, computations)
    if kind in _SLICES:
        read = sum(map(_size_in_memory, instruction.arrays)) if _is_in_memory(operands[0]) else 0
        return read + sum(map(_size_in_memory, instruction.arrays))
    if kind == "dynamic-update-slice":
        update = operands[1].arrays[0]
        return _size_in_memory(update) + (update.padded_bytes if _is_in_memory(instruction) else 0)
    made = results_written(instruction) if kind != "send" else ()
    if kind.endswith("-start"):  # The results are: operands, real results, semaphores.
        made = made[len(operands) : 2 * len(operands)] or made
    return sum(map(_size_in_memory, made)) + sum(
        _size_in_memory(array) for operand in operands for array in operand.arrays
    )


def count_kernels(program: Program) -> int:
    """Returns the number of instructions that run in a step.

    A fusion is one, an instruction in a loop is one per iteration, and an asynchronous one counts
    once. Instructions that only name or forward an existing array do not count.
    """
    return sum(runs for one, _, runs in program.executed() if not _forwards_only(one))


def _forwards_only(instruction: Instruction) -> bool:
    kind = instruction.opcode
    if kind in _NO_TRAFFIC or kind.endswith("-done"):
        return True
    return kind == "custom-call" and any(
        f'"{n}' in instruction.text or n + '"' in instruction.text for n in _NO_TRAFFIC_CALLS
    )


def results_written(instruction: Instruction) -> tuple[Array, ...]:
    """Returns the results of an instruction without the workspace of cuBLAS and cuDNN.

    The workspace is the last result of their custom calls, a vector of bytes. It is reserved for
    the kernels that need one, such as matmuls that split the contracted dimension. cuBLAS gets 32
    MiB for every matmul, more than most of them read and write together, and rarely touches it.
    """
    if not instruction.custom_call_target.startswith(_LIBRARIES) or len(instruction.arrays) < 2:
        return instruction.arrays
    last = instruction.arrays[-1]
    scratch = last.dtype in ("s8", "u8") and len(last.dims) == 1
    return instruction.arrays[:-1] if scratch else instruction.arrays


def _size_in_memory(array: Array) -> int:
    return array.padded_bytes if array.space == 0 else 0


def _is_in_memory(instruction: Instruction) -> bool:
    return any(array.space == 0 for array in instruction.arrays)


def _fusion_bytes(
    fusion: Instruction, operands: list[Instruction], computations: dict[str, Computation]
) -> int:
    inside = computations.get(dict(fusion.called).get("calls", ""), {})
    total = 0
    for index, operand in enumerate(operands):
        size = sum(map(_size_in_memory, operand.arrays))
        if size:
            used = _parameter_bytes_read(inside, index, computations)
            total += size if used is None else min(size, used)
    written = _bytes_written(inside, computations)
    for index, array in enumerate(fusion.arrays):
        if array.space == 0:
            update = written[index] if index < len(written) else None
            total += array.padded_bytes if update is None else min(update, array.padded_bytes)
    return total


def _parameter_bytes_read(
    inside: Computation, index: int, computations: dict[str, Computation]
) -> int | None:
    """Returns the number of bytes of a parameter that a fusion reads; None: all of them."""
    for instruction in inside.values():
        if instruction.opcode == "parameter" and instruction.text.startswith(f"({index})"):
            return _bytes_read(instruction.name, inside, computations)
    return None


def _bytes_read(name: str, inside: Computation, computations: dict[str, Computation]) -> int | None:
    total = 0
    for user in inside.values():
        for position, operand in enumerate(user.operands):
            if operand != name:
                continue
            used: int | None
            if user.opcode in _SLICES:
                used = user.arrays[0].padded_bytes if position == 0 else 0
            elif user.opcode == "dynamic-update-slice" and position == 0:
                used = 0
            elif user.opcode == "bitcast":
                used = _bytes_read(user.name, inside, computations)
            elif user.opcode == "fusion":
                called = computations.get(dict(user.called).get("calls", ""), {})
                used = _parameter_bytes_read(called, position, computations)
            else:
                used = None
            if used is None:
                return None
            total += used
    return total


def _bytes_written(inside: Computation, computations: dict[str, Computation]) -> list[int | None]:
    """Returns the number of bytes of each result that a fusion writes; None: all of them."""
    root = next((i for i in inside.values() if i.root), None)
    if root is None:
        return []
    names = root.operands if root.opcode == "tuple" else (root.name,)
    return [_update_bytes(inside.get(name), inside, computations) for name in names]


def _update_bytes(
    made: Instruction | None, inside: Computation, computations: dict[str, Computation]
) -> int | None:
    while made is not None and made.opcode == "bitcast" and made.operands:
        made = inside.get(made.operands[0])
    if made is None:
        return None
    if made.opcode == "get-tuple-element" and made.operands[0] in inside:
        source, index = inside[made.operands[0]], re.search(r"index=(\d+)", made.text)
        written = len(results_written(source))
        return 0 if index and written <= int(index[1]) < len(source.arrays) else None
    if made.opcode == "fusion" and len(made.arrays) == 1:
        called = computations.get(dict(made.called).get("calls", ""), {})
        found = _bytes_written(called, computations)
        return found[0] if found else None
    if made.opcode != "dynamic-update-slice" or made.operands[1] not in inside:
        return None
    return inside[made.operands[1]].arrays[0].padded_bytes


_COLLECTIVES = (
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast",
)  # fmt: skip
# The TPU compiler runs parts of a collective beside several fusions; this one starts it.
_START = "AsyncCollectiveStart"


@dataclasses.dataclass(frozen=True)
class Collectives:
    """All collectives of a step with the same kind, group size and part of the step."""

    kind: str  # e.g. "all-reduce"
    group: int  # number of devices in each group
    part: str  # of the step
    count: int  # in a step
    bytes: int  # total size of their values: after gathering, or before reducing
    between: float = 0.0  # bytes that each device receives from other slices or nodes in a step

    @property
    def received(self) -> float:
        """Bytes that each device receives in a step, independent of the network.

        In an all-gather, a device receives (group - 1) / group of the value. A reduce-scatter
        receives as much. An all-reduce is both.
        """
        part = (self.group - 1) / self.group
        share = {"all-reduce": 2 * part, "collective-permute": 1.0, "collective-broadcast": 1.0}
        return self.bytes * share.get(self.kind, part)


def find_collectives(
    program: Program, devices: int, slices: Sequence[int] | None = None
) -> list[Collectives]:
    """Returns the collectives of a program, sorted by decreasing received bytes.

    The compiler may split a collective into several instructions of the same kind and channel; they
    count once. If it takes the first iteration out of a loop, the collectives of that iteration
    keep their channel, and count too. Collectives of a single device do not count. Those without
    groups are of all `devices`. `slices` has the slice or node of each device, in the order of the
    mesh; None: there is one.
    """
    slices = [0] * devices if slices is None else slices
    callers = _callers_of_fusions(program)
    # (kind, channel) -> (where the control flow runs it, collective), and those that start one.
    pieces: defaultdict[tuple[str, str], list[tuple[str, Collectives]]] = defaultdict(list)
    starts: defaultdict[tuple[str, str], list[tuple[str, Collectives]]] = defaultdict(list)
    for name, computation in program.computations.items():
        runs = program.runs.get(name, 0)
        begins = any(i.custom_call_target == _START for i in computation.values())
        for instruction in computation.values():
            kind = instruction.opcode.removesuffix("-start")
            if runs and kind == "recv" and "_xla_megascale_transfer_type" in instruction.text:
                found = _make_transfer(instruction, runs, len(set(slices)))
            elif runs and kind in _COLLECTIVES:
                if name.startswith("all-reduce-scatter"):  # The TPU compiler's fused form.
                    kind = "reduce-scatter"
                found = _make_collective(kind, instruction, computation, runs, slices)
            else:
                continue
            channel = re.search(r"channel_id=(\d+)", instruction.text)
            key = kind, channel[1] if channel else f"{name}/{instruction.name}"
            if found.group > 1:
                (starts if begins else pieces)[key].append((callers.get(name, name), found))
    counted: list[Collectives] = []
    for found in {**pieces, **starts}.values():
        in_computation: dict[str, Collectives] = {}
        for name, one in found:
            known = in_computation.get(name)
            if known is None or one.count > known.count:
                in_computation[name] = one
        counted += in_computation.values()
    return sum_collectives(counted)


def _callers_of_fusions(program: Program) -> dict[str, str]:
    """Returns fused computation -> the computation outside all fusions that runs it."""
    callers = {
        called: name
        for name, computation in program.computations.items()
        for instruction in computation.values()
        if instruction.opcode == "fusion"
        for _, called in instruction.called
    }

    def outermost(name: str) -> str:
        return outermost(callers[name]) if name in callers else name

    return {name: outermost(name) for name in callers}


def sum_collectives(collectives: list[Collectives]) -> list[Collectives]:
    """Adds up collectives of the same kind, group size and part, sorted by received bytes.

    Collectives inside a slice and those between slices stay apart.
    """
    sums: dict[tuple[str, int, str, bool], Collectives] = {}
    for one in collectives:
        key = (one.kind, one.group, one.part, one.between > 0)
        before = sums.get(key, Collectives(*key[:3], 0, 0))
        sums[key] = Collectives(
            *key[:3],
            before.count + one.count,
            before.bytes + one.bytes,
            before.between + one.between,
        )
    return sorted(sums.values(), key=lambda c: -c.received)


def _make_collective(
    kind: str, instruction: Instruction, computation: Computation, runs: int, slices: Sequence[int]
) -> Collectives:
    operands = [computation[name] for name in instruction.operands if name in computation]
    size = sum(array.bytes for operand in operands for array in operand.arrays)
    if kind == "collective-permute":
        group, groups = len(slices), [list(p) for p in source_target_pairs(instruction.text)]
    else:
        groups = replica_groups(instruction.text, len(slices))
        group = len(groups[0])
    if kind == "all-gather":
        size *= group
    between = bytes_between_slices(kind, size, groups, slices)
    part = step_part(instruction.op_name)
    return Collectives(kind, group, part, runs, size * runs, between * runs)


def _make_transfer(instruction: Instruction, runs: int, slices: int) -> Collectives:
    """Returns a collective between slices, which the TPU compiler writes as a send and a recv.

    It splits each collective over several slices: one part inside a slice, with replica groups of
    the devices of one slice, and one part between slices, which the runtime on the hosts executes.
    """
    match = re.search(r'_xla_megascale_transfer_type="(\w+)"', instruction.text)
    kind = match[1].lower().replace("_", "-") if match else ""
    # A target is slices x chips, "{1,2}x{0:7}", or groups of devices of different slices,
    # {{100000,200000},{100001,200001}}. 1:4 stands for 1, 2, 3, 4.
    match = re.search(r'_xla_megascale_target="?\{+([\d,:]+)\}', instruction.text)
    group = sum(map(_count_of_range, match[1].split(","))) if match else slices
    size = float(instruction.arrays[0].bytes)
    if kind == "one-to-one":
        kind, between = "collective-permute", size
    else:
        size *= group if kind == "reduce-scatter" else 1
        between = bytes_between_slices(kind, size, [range(group)], range(group))
    return Collectives(kind, group, "between slices", runs, int(size) * runs, between * runs)


def _count_of_range(text: str) -> int:
    first, _, last = text.partition(":")
    return int(last or first) - int(first) + 1


def bytes_between_slices(
    kind: str, size: float, groups: Sequence[Sequence[int]], slices: Sequence[int]
) -> float:
    """Returns the bytes that each device receives from other slices or nodes in a collective.

    These are the fewest bytes that must enter a slice, divided evenly over its devices. So it is
    a lower bound: in an all-reduce every slice first adds up its own values, sends each sum once,
    and passes on inside what it receives. If slices differ, the one that receives most counts.

    The `size` of the value is in bytes, after gathering or before reducing. `groups` have the
    devices of each group, or (source, target) of a collective-permute.

    >>> bytes_between_slices("all-reduce", 100, [[0, 1, 2, 3]], [0, 0, 1, 1])  # 2 * 1/2 of 50
    50.0
    """
    if len(set(slices)) == 1:
        return 0.0
    entering: defaultdict[int, float] = defaultdict(float)
    for group in groups:
        members = Counter(slices[device] for device in group)
        if len(members) == 1:
            continue
        if kind in ("collective-permute", "collective-broadcast"):
            for name in members.keys() - {slices[group[0]]}:
                entering[name] += size
            continue
        for name, here in members.items():
            own = here / len(group)
            reduced, gathered = (len(members) - 1) * own, 1 - own
            share = {
                "all-reduce": reduced + gathered,
                "reduce-scatter": reduced,
                "all-gather": gathered,
            }
            entering[name] += size * share.get(kind, here * gathered)  # Else an all-to-all.
    devices = Counter(slices)
    return max((entering[name] / devices[name] for name in entering), default=0.0)
