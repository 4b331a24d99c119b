"""Makes compiled.csv: bytes, kernels and bounds of training steps, as the compilers make them.

    python -m experiments.speed.compiled --rows='v5e:S/16:*' --big_vision=FOLDER
    python -m experiments.speed.compiled --rows='h200:*'
    python -m experiments.speed.compiled --table

No accelerator is needed: libtpu compiles for TPUs, JAX's CUDA plugin for GPUs. No step runs. A row
is CHIP:MODEL:IMAGE_SIZE:IMAGES:VARIANT. --rows takes patterns and makes their rows in the order of
the patterns. Each row is appended as soon as it is made, and rows that the file has are not made
again, so that a stopped run continues where it was. --again replaces rows that the file has.

A compilation for a TPU takes minutes, most of them after the program is decided. By default it is
stopped there, so that memory and compile time stay empty; --full compiles to the end. Compilations
for GPUs are always full.
"""

import argparse
import csv
import dataclasses
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.speed.compiled_step import PEERS
from experiments.speed.decided_program import decided_program, settings
from experiments.speed.movers import find_movers
from vit_jax.errors import UserError
from vit_jax.plan.cudnn import attention_flops
from vit_jax.plan.hlo import Program, parse
from vit_jax.plan.traffic import count_bytes, count_kernels
from vit_jax.train.chips import GIB, GPUS, TPUS, Roofline, Work

HERE = Path(__file__).resolve().parent
TABLE = HERE / "compiled.csv"
TOPOLOGIES = {
    "v5e": "v5e:2x2", "h200": "h200:1", "v6e": "v6e:2x2", "v5p": "v5p:2x2x1", "h100": "h100:1",
}  # fmt: skip
# (model, image size) -> images on a TPU, images on a GPU.
IMAGES = {
    ("S/16", 224): ((128,), (256,)),
    ("B/16", 224): ((128,), (256,)),
    ("L/16", 224): ((32, 64), (128,)),
    ("Ti/16", 224): ((128,), (256,)),
    ("H/14", 224): ((16,), (64,)),
    ("B/16", 384): ((32,), (64,)),
    ("L/16", 384): ((8,), (32,)),
}
_OURS = ("auto", "scanned", "unrolled", "xla", "einsum")
VARIANTS = {"tpu": (*_OURS, "pallas", *PEERS), "gpu": (*_OURS, "cudnn", *PEERS)}


@dataclasses.dataclass(frozen=True)
class Key:
    """What a row is about.

    >>> print(Key("v5e", "S/16", 224, 128, "auto"))
    v5e:S/16:224:128:auto
    """

    chip: str
    model: str
    image_size: int
    images: int
    variant: str

    def __str__(self) -> str:
        return ":".join(map(str, dataclasses.astuple(self)))


@dataclasses.dataclass(frozen=True)
class Row(Key):
    """A line of the file. Figures are of one device and one step, except `mb_per_image`.

    Attributes:
        chose: loop, remat policy, microbatches and attention kernel; of a peer, what it does.
        mb_per_image: megabytes of device memory that a step reads and writes, for each image.
        memory_ms: time of these bytes at the chip's stated bandwidth.
        compute_ms: time of the executed FLOPs at the chip's bfloat16 peak.
        bound_ms: the longer of the two.
        limited_by: "memory" or "compute"; "does not fit": the compiler ran out of device memory.
        kernels: instructions that run.
        memory_gib: device memory that the step needs; None: not compiled to the end.
        compile_s: compile time; None: not compiled to the end.
    """

    chose: str
    mb_per_image: float | None
    memory_ms: float | None
    compute_ms: float | None
    bound_ms: float | None
    limited_by: str
    kernels: int | None
    memory_gib: float | None
    compile_s: float | None

    @property
    def key(self) -> Key:
        """What the row is about."""
        return Key(self.chip, self.model, self.image_size, self.images, self.variant)


COLUMNS = tuple(field.name for field in dataclasses.fields(Row))
_TEXT = ("chip", "model", "variant", "chose", "limited_by")
_WHOLE = ("image_size", "images", "kernels")


def grid() -> list[Key]:
    """Returns all rows that there should be, the chips in the order of `TOPOLOGIES`."""
    return [
        Key(chip, model, image_size, images, variant)
        for chip in TOPOLOGIES
        for (model, image_size), counts in IMAGES.items()
        for images in counts[chip in GPUS]
        for variant in VARIANTS["gpu" if chip in GPUS else "tpu"]
    ]


def select(patterns: str) -> list[Key]:
    """Returns the rows of the grid that match, in the order of the patterns.

    Args:
        patterns: comma-separated, as for file names, e.g. "v5e:S/16:*,h200:*:auto".

    Raises:
        UserError: no row matches a pattern.
    """
    found: dict[Key, None] = {}
    for pattern in patterns.split(","):
        matching = [key for key in grid() if fnmatch.fnmatchcase(str(key), pattern)]
        if not matching:
            raise UserError(
                f"--rows has {pattern!r}, which matches no row",
                "patterns of CHIP:MODEL:IMAGE_SIZE:IMAGES:VARIANT",
                f"use e.g. '{grid()[0]}', 'v5e:S/16:*' or '*:auto'",
            )
        found.update(dict.fromkeys(matching))
    return list(found)


def read_rows(path: Path = TABLE) -> dict[Key, Row]:
    """Returns the rows of a file; none if there is no file. Of equal keys the last one counts."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = [_row(line) for line in csv.DictReader(file)]
    return {row.key: row for row in rows}


def _row(line: Mapping[str, str]) -> Row:
    def value(name: str) -> Any:
        if name in _TEXT:
            return line[name]
        return (int if name in _WHOLE else float)(line[name]) if line[name] else None

    return Row(**{name: value(name) for name in COLUMNS})


def append_row(row: Row, path: Path = TABLE) -> None:
    """Appends a row to a file, which is made if it is missing."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(dataclasses.asdict(row))


def sort_rows(path: Path = TABLE) -> None:
    """Brings the rows of a file into the order of the grid, one for each key."""
    rows = read_rows(path)
    path.unlink(missing_ok=True)
    for key in grid():
        if key in rows:
            append_row(rows[key], path)


def remove_rows(keys: Iterable[Key], path: Path = TABLE) -> None:
    """Removes rows from a file."""
    rows = read_rows(path)
    path.unlink(missing_ok=True)
    for row in rows.values():
        if row.key not in keys:
            append_row(row, path)


def same_step(key: Key, chose: str, rows: Iterable[Row], *, full: bool) -> Row | None:
    """Returns a row whose step is the same because what is executed is the same; None: none.

    Args:
        key: row to make.
        chose: what it executes.
        rows: rows that there are.
        full: whether it must have been compiled to the end.
    """
    for row in rows:
        same = dataclasses.replace(row.key, variant=key.variant) == key and row.chose == chose
        whole = row.compile_s is not None or row.limited_by == "does not fit"
        if same and row.variant not in PEERS and (whole or not full):
            return row
    return None


def make_row(
    key: Key, chose: str, traced_flops: float, program: Program, full: Mapping[str, float]
) -> Row:
    """Computes a row from a compiled step.

    Args:
        key: what it is about.
        chose: what it executes.
        traced_flops: FLOPs of the traced step; cuDNN's attention is added from the program.
        program: optimized program.
        full: "memory_bytes" and "compile_s", or empty.
    """
    flops = traced_flops + attention_flops(program)
    moved = float(count_bytes(program))
    bound = Roofline(Work(flops, flops, moved, 0.0), (TPUS | GPUS)[key.chip])
    times = bound.memory_s, bound.compute_s, bound.overlapped_s
    memory_ms, compute_ms, bound_ms = (round(1e3 * (time or 0.0), 2) for time in times)
    return Row(
        **dataclasses.asdict(key),
        chose=chose,
        mb_per_image=round(moved / key.images / 1e6, 1),
        memory_ms=memory_ms,
        compute_ms=compute_ms,
        bound_ms=bound_ms,
        limited_by=bound.limited_by or "",
        kernels=count_kernels(program),
        memory_gib=round(full["memory_bytes"] / GIB, 2) if full else None,
        compile_s=round(full["compile_s"], 1) if full else None,
    )


def compile_row(
    key: Key, rows: Mapping[Key, Row], *, folder: Path | None, full: bool, movers: int
) -> Row:
    """Compiles the step of a row in a process of its own.

    Args:
        key: row to make.
        rows: rows that there are.
        folder: checkout of the peer.
        full: whether to compile to the end.
        movers: how many of the largest movers to print.

    Raises:
        UserError: the step cannot be built or compiled.
    """
    with tempfile.TemporaryDirectory() as name:
        output = Path(name)
        process = _start(key, folder, output, quick=not full)
        try:
            with (output / "log.txt").open("rb") as log:
                for _ in _poll(process):
                    if (output / "facts.json").exists():
                        facts = _read(output / "facts.json")
                        known = facts and same_step(key, facts["chose"], rows.values(), full=full)
                        if known:
                            return dataclasses.replace(known, variant=key.variant)
                    if not full and decided_program(output / "dump"):
                        break
                log.seek(0)
                said = log.read().decode(errors="replace")
        finally:
            process.kill()
            process.wait()
        facts = _read(output / "facts.json")
        whole = output / "program.txt"
        text = whole.read_text() if whole.exists() else decided_program(output / "dump")
        if facts and text is None and "RESOURCE_EXHAUSTED" in said:
            empty = dict.fromkeys(COLUMNS[5:])
            return Row(
                **dataclasses.asdict(key),
                **(empty | {"chose": facts["chose"], "limited_by": "does not fit"}),
            )
        if not facts or text is None:
            lines = said.strip().splitlines() or ["nothing"]
            raise UserError(
                f"the step of {key} did not compile: {lines[-1][:300]}",
                "a program",
                "run compiled_step.py with the same options to see the whole message",
            )
        program = parse(text)
        row = make_row(
            key, facts["chose"], facts["flops"], program, _read(output / "full.json") or {}
        )
        for mover in find_movers(program)[:movers]:
            share = mover.bytes / key.images / 1e6
            print(f"  {share:8.2f} MB x{mover.runs} {mover.opcode} {mover.shapes} {mover.op_name}")
        return row


def _start(key: Key, folder: Path | None, output: Path, *, quick: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(HERE / "compiled_step.py"), f"--topology={TOPOLOGIES[key.chip]}"]
    command += [f"--model={key.model}", f"--image_size={key.image_size}"]
    command += [f"--images={key.images}", f"--variant={key.variant}", f"--output={output}"]
    command += [f"--folder={folder}"] if folder else []
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    paths = [str(HERE.parents[1]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if quick:
        (output / "dump").mkdir()
        environment |= settings(output / "dump")
    with (output / "log.txt").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def _poll(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Yields every half second, until the process has ended."""
    while process.poll() is None:
        time.sleep(0.5)
        yield


def _read(path: Path) -> dict[str, Any] | None:
    """Returns the content of a JSON file; None: it is missing or not yet written to the end."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None


def make_rows(
    keys: Sequence[Key], folders: Mapping[str, Path | None], path: Path, *, full: bool, movers: int
) -> None:
    """Makes the rows that a file lacks.

    Args:
        keys: rows to make, in this order.
        folders: peer -> its checkout; None: its rows are skipped.
        path: the file.
        full: whether to compile for TPUs to the end. Rows without memory and compile time are made
            again.
        movers: how many of the largest movers of each row to print.
    """
    for peer in PEERS:
        if any(key.variant == peer for key in keys) and folders.get(peer) is None:
            print(f"rows of {peer} are skipped: --{peer}=FOLDER is not given")
    for key in keys:
        rows = read_rows(path)
        if key in rows and not (full and rows[key].compile_s is None):
            continue
        if key.variant in PEERS and folders.get(key.variant) is None:
            continue
        begin = time.perf_counter()
        try:
            row = compile_row(
                key,
                rows,
                folder=folders.get(key.variant),
                full=full or key.chip in GPUS,
                movers=movers,
            )
        except UserError as error:
            print(f"{key}: {error}", flush=True)
            continue
        append_row(row, path)
        seconds = time.perf_counter() - begin
        print(
            f"{key}: {row.mb_per_image} MB an image, {row.limited_by}, {row.chose}"
            f" ({seconds:.0f} s)",
            flush=True,
        )


_HEADINGS = (
    "chip", "model", "px", "images", "step", "executed as", "MB an image", "memory, ms",
    "compute, ms", "bound", "kernels", "GiB", "compile, s",
)  # fmt: skip


def table(rows: Iterable[Row]) -> str:
    """Returns the table of the page in Markdown."""
    lines = ["| " + " | ".join(_HEADINGS) + " |", "| --- " * len(_HEADINGS) + "|"]
    for row in rows:
        bound = row.limited_by
        if row.bound_ms is not None:
            bound = f"{row.bound_ms:.1f} ms, {row.limited_by}"
        cells = (
            row.chip, row.model, row.image_size, row.images, row.variant, row.chose,
            _shown(row.mb_per_image), _shown(row.memory_ms), _shown(row.compute_ms), bound,
            "" if row.kernels is None else f"{row.kernels:,}", _shown(row.memory_gib, 2),
            _shown(row.compile_s),
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def _shown(number: float | None, digits: int = 1) -> str:
    return "" if number is None else f"{number:,.{digits}f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Makes rows, or prints the table of the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="*", help="comma-separated patterns; default: all")
    parser.add_argument("--full", action="store_true", help="compile for TPUs to the end")
    parser.add_argument("--again", action="store_true", help="replace rows that the file has")
    parser.add_argument(
        "--movers", type=int, default=0, help="print the largest movers of each row"
    )
    for peer in PEERS:
        parser.add_argument(f"--{peer}", type=Path, help="checkout with the model to compile")
    parser.add_argument("--output", type=Path, default=TABLE, help="the file (%(default)s)")
    parser.add_argument("--table", action="store_true", help="only print the table of the page")
    args = parser.parse_args(argv)
    if args.table:
        print(table(read_rows(args.output).values()), end="")
        return 0
    try:
        keys = select(args.rows)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    folders = {peer: getattr(args, peer) for peer in PEERS}
    if args.again:
        remove_rows([key for key in keys if folders.get(key.variant, HERE)], args.output)
    make_rows(keys, folders, args.output, full=args.full, movers=args.movers)
    sort_rows(args.output)
    missing = [key for key in grid() if key not in read_rows(args.output)]
    print(f"{args.output}: {len(grid()) - len(missing)} of {len(grid())} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
