"""Makes vit_jax/train/step_memory.csv: the memory of a layer in each setting, by the compilers.

    python -m experiments.speed.step_memory --topology=v5e:2x2
    python -m experiments.speed.step_memory --topology=h200:1

Compiles the training step of a few models for one device, with 6 and with 12 layers. The difference
is the memory of six layers. Nothing runs, and no accelerator is needed. Rows of other platforms
stay as they are. A compilation for a TPU is stopped as soon as the program is decided
(`decided_program.py`).
"""

import argparse
import csv
import json
import operator
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.speed.buffers import find_buffers
from experiments.speed.decided_program import decided_program, settings
from vit_jax.config.run import Config
from vit_jax.models.registry import model_options, model_shape
from vit_jax.models.stacking import LayerLoop
from vit_jax.parallel.mesh import make_mesh
from vit_jax.plan.hlo import parse
from vit_jax.plan.topology import find_devices, prepare
from vit_jax.plan.topology_names import parse_topology
from vit_jax.train.program import Program, build_program
from vit_jax.train.step_choice import PREFERRED, TABLE, read_table

# (platform, loop) -> {width: bytes that a layer keeps}, as in the table.
Rows = dict[tuple[str, LayerLoop], dict[int, float]]
# Model -> images on the device.
MODELS = {"S/16": 128, "B/16": 64, "L/16": 32}
DEPTHS = (6, 12)
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
        "data": {
            "name": "synthetic",
            "global_batch_size": MODELS[model],
            "image_size": 224,
            "augment": {"flip": True},
        },
        "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.1, "clip_global_norm": 1.0},
        "train_steps": 1000,
        "accumulation_steps": 1,
    }
    config = Config.from_mapping(mapping)
    mesh = make_mesh(config.mesh, find_devices(parsed)[:1])
    return build_program(config, mesh, num_classes=1000, num_examples=1_281_167, planned=True)


def compile_in_child(arguments: list[Any], folder: str) -> None:
    """Compiles a program for `kept_bytes`: writes program.txt."""
    Path(folder, "program.txt").write_text(
        program_of(*arguments).compiled.as_text() or "", encoding="utf-8"
    )


def kept_bytes(*arguments: Any) -> int:
    """Returns the memory of the temporaries of a step; for the arguments see `program_of`."""
    with tempfile.TemporaryDirectory() as folder:
        request = json.dumps([arguments, folder])
        dump = Path(folder, "dump")
        dump.mkdir()
        command = [sys.executable, "-m", "experiments.speed.step_memory", "--child", request]
        child = subprocess.Popen(command, env={**os.environ, **settings(dump)})
        while child.poll() is None:
            if decided_program(dump):
                child.kill()
                child.wait()
            time.sleep(0.5)
        compiled = Path(folder, "program.txt")
        text = compiled.read_text(encoding="utf-8") if compiled.exists() else decided_program(dump)
        if text is None:
            raise SystemExit(f"{arguments} did not compile")
        return sum(buffer.bytes for buffer in find_buffers(parse(text), text))


def add_rows(table: Rows, topology: str, model: str) -> None:
    """Adds the rows of a model, one for each setting, or replaces them."""
    platform = parse_topology(topology).platform
    width = model_shape(model_options(f"ViT-{model}")).width
    for loop in PREFERRED[platform]:
        few, many = (kept_bytes(topology, model, d, loop.scan, loop.remat) for d in DEPTHS)
        values = MODELS[model] * _TOKENS * width * (DEPTHS[1] - DEPTHS[0])
        kept = round(max(many - few, 0) / values, 2)
        table.setdefault((platform, loop), {})[width] = kept
        print(platform, width, loop, kept, flush=True)


def write_table(table: Rows, path: Path) -> None:
    """Writes the table, sorted by platform and width."""
    rows = [
        (platform, width, loop.scan, loop.remat, kept)
        for (platform, loop), kept_at in table.items()
        for width, kept in kept_at.items()
    ]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("platform", "width", "scan", "remat", "kept_bytes"))
        writer.writerows(sorted(rows, key=operator.itemgetter(0, 1)))


def main() -> None:
    """Makes the rows of one platform."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology")
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        compile_in_child(*json.loads(args.child))
        return
    table = read_table()
    for model in args.models.split(","):
        add_rows(table, args.topology, model)
    write_table(table, TABLE)


if __name__ == "__main__":
    main()
