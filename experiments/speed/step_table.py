"""Makes vit_jax/train/step_table.csv: what a layer costs in each setting, as the compilers plan it.

    python -m experiments.speed.step_table --topology=v5e:2x2
    python -m experiments.speed.step_table --topology=h200:1

Compiles the training step of a few models for one device, with 6 and with 12 layers. The difference
is the cost of six layers. Nothing runs, and no accelerator is needed. Rows of other platforms stay
as they are.

A compilation for a TPU is stopped as soon as the program is decided (`decided_program.py`). Compile
times are those of whole compilations of ViT-S/16 with 2 and 4 layers, and are used for all models.
"""

import argparse
import csv
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.speed.decided_program import decided_program, settings
from vit_jax.config.run import Config
from vit_jax.models.flops import count_macs
from vit_jax.models.registry import model_options, model_shape
from vit_jax.parallel.mesh import make_mesh
from vit_jax.plan.buffers import find_buffers
from vit_jax.plan.hlo import parse
from vit_jax.plan.topology import find_devices, parse_topology, prepare
from vit_jax.plan.traffic import count_bytes
from vit_jax.train.program import Program, build_program
from vit_jax.train.step_choice import TABLE, Row, read_table

# Model -> images on the device.
MODELS = {"S/16": 128, "B/16": 64, "L/16": 32}
DEPTHS = (6, 12)
TIMED_DEPTHS = (2, 4)
_TOKENS = 197


def program_of(topology: str, model: str, depth: int, scan: bool, remat: str) -> Program:
    """Returns a step of DeiT's size for one device: bfloat16, clipping, AdamW, no dropout."""
    parsed = parse_topology(topology)
    prepare(parsed)
    import jax

    jax.config.update("jax_enable_compilation_cache", False)
    name = {"name": f"ViT-{model}", "depth": depth, "dtype": "bfloat16"}
    mapping: dict[str, Any] = {
        "model": {**name, "scan": scan, "remat": remat},
        "data": {"name": "synthetic", "global_batch_size": MODELS[model], "image_size": 224},
        "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.1, "clip_global_norm": 1.0},
        "train_steps": 1000,
        "accumulation_steps": 1,
    }
    config = Config.from_mapping(mapping)
    mesh = make_mesh(config.mesh, find_devices(parsed)[:1])
    return build_program(config, mesh, num_classes=1000, num_examples=1_281_167, planned=True)


def compile_in_child(arguments: list[Any], folder: str) -> None:
    """Compiles a program for `figures`: writes flops.json, then program.txt and seconds.json."""
    import jax

    program = program_of(*arguments)
    traced = jax.make_jaxpr(program.step_fn)(program.abstract, program.batch_shapes())
    Path(folder, "flops.json").write_text(json.dumps(2 * count_macs(traced.jaxpr)))
    begin = time.perf_counter()
    text = program.compile().as_text() or ""
    Path(folder, "seconds.json").write_text(json.dumps(time.perf_counter() - begin))
    Path(folder, "program.txt").write_text(text)


def figures(topology: str, *arguments: Any, whole: bool = False) -> dict[str, float]:
    """Returns the memory, traffic and FLOPs of a step, or with `whole` its compile time, too.

    Args:
        topology: a TPU or GPU.
        arguments: the other arguments of `program_of`.
        whole: do not stop when the program is decided.
    """
    with tempfile.TemporaryDirectory() as folder:
        request = json.dumps([[topology, *arguments], folder])
        dump = Path(folder, "dump")
        dump.mkdir()
        command = [sys.executable, "-m", "experiments.speed.step_table", "--child", request]
        child = subprocess.Popen(command, env={**os.environ, **settings(dump)})
        while child.poll() is None:
            if not whole and decided_program(dump):
                child.kill()
                child.wait()
            time.sleep(0.5)
        compiled = Path(folder, "program.txt")
        text = compiled.read_text() if compiled.exists() else decided_program(dump)
        if text is None:
            raise SystemExit(f"{arguments} for {topology} did not compile")
        program = parse(text)
        found = {
            "kept_bytes": float(sum(buffer.bytes for buffer in find_buffers(program, text))),
            "moved_bytes": float(count_bytes(program)),
            "flops": float(json.loads(Path(folder, "flops.json").read_text())),
        }
        if whole:
            found["seconds"] = json.loads(Path(folder, "seconds.json").read_text())
        return found


def compile_times(topology: str) -> dict[bool, tuple[float, float]]:
    """Returns for scanned and unrolled steps the compile time without layers, and of a layer."""
    few, many = TIMED_DEPTHS
    scanned = figures(topology, "S/16", few, True, "none", whole=True)["seconds"]
    short, long = (
        figures(topology, "S/16", depth, False, "none", whole=True)["seconds"]
        for depth in TIMED_DEPTHS
    )
    layer = max(long - short, 0.0) / (many - few)
    return {True: (scanned, 0.0), False: (max(long - many * layer, 0.0), layer)}


def rows_of(topology: str, model: str, times: dict[bool, tuple[float, float]]) -> list[Row]:
    """Returns the rows of a model, one for each setting."""
    rows, flops = [], 0.0
    width = model_shape(model_options(f"ViT-{model}")).width
    for scan, remat in itertools.product((True, False), ("none", "dots", "full")):
        small, large = (figures(topology, model, depth, scan, remat) for depth in DEPTHS)
        layer = {name: (large[name] - small[name]) / (DEPTHS[1] - DEPTHS[0]) for name in large}
        flops = flops or layer["flops"]  # The first setting recomputes nothing.
        values = MODELS[model] * _TOKENS * width
        row = Row(
            platform=parse_topology(topology).platform,
            model=f"ViT-{model}",
            width=width,
            scan=scan,
            remat=remat,
            kept_bytes=round(max(layer["kept_bytes"], 0.0) / values, 2),
            moved_bytes=round(layer["moved_bytes"] / values, 2),
            recomputed=round(layer["flops"] / flops - 1, 4),
            compile_s=round(times[scan][0], 1),
            compile_s_per_layer=round(times[scan][1], 2),
        )
        print(row, flush=True)
        rows.append(row)
    return rows


def write_table(rows: list[Row], path: Path) -> None:
    """Writes the table."""
    with path.open("w", newline="") as file:
        names = [field.name for field in dataclasses.fields(Row)]
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in rows)


def main() -> None:
    """Makes the rows of one platform."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology")
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated")
    parser.add_argument(
        "--times", help="seconds to compile a scanned step, and an unrolled layer; default: measure"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        compile_in_child(*json.loads(args.child))
        return
    if args.times:
        scanned, layer = map(float, args.times.split(","))
        times = {True: (scanned, 0.0), False: (scanned / 2, layer)}
    else:
        times = compile_times(args.topology)
    print(f"compile seconds without layers and of a layer: {times}", flush=True)
    made = [row for model in args.models.split(",") for row in rows_of(args.topology, model, times)]
    renewed = {(row.platform, row.model) for row in made}
    kept = [row for row in read_table() if (row.platform, row.model) not in renewed]
    write_table(sorted(kept + made, key=lambda row: (row.platform, row.width)), TABLE)


if __name__ == "__main__":
    main()
