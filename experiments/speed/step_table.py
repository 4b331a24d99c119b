"""Makes vit_jax/train/step_table.csv: what a layer costs in each setting, as the compilers plan it.

    python experiments/speed/step_table.py --topology=v5e:2x2
    python experiments/speed/step_table.py --topology=h200:1

Compiles the training step of a few models for one device, with 2 and with 4 layers. The difference
is the cost of two layers. Nothing runs, and no accelerator is needed. Rows of other platforms stay
as they are. It takes about ten minutes on two cores.
"""

import argparse
import csv
import dataclasses
import itertools
from pathlib import Path
from typing import Any

from vit_jax.config.run import Config
from vit_jax.plan.estimate import Plan, Sizes, make_plan
from vit_jax.plan.topology import chip_of, find_devices, parse_topology, prepare
from vit_jax.train.step_choice import TABLE, Row, read_table

# Model -> images on the device.
MODELS = {"S/16": 64, "B/16": 32, "L/16": 16}
DEPTHS = (2, 4)
_IMAGENET = Sizes(1000, 1_281_167, "ImageNet")


def config_of(model: str, images: int, depth: int, scan: bool, remat: str) -> Config:
    """Returns a config of DeiT's size: bfloat16, clipping, AdamW, no dropout."""
    mapping: dict[str, Any] = {
        "model": {
            "name": f"ViT-{model}",
            "depth": depth,
            "dtype": "bfloat16",
            "scan": scan,
            "remat": remat,
        },
        "data": {"name": "synthetic", "global_batch_size": images, "image_size": 224},
        "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.1, "clip_global_norm": 1.0},
        "train_steps": 1000,
        "accumulation_steps": 1,
    }
    return Config.from_mapping(mapping)


def slopes(small: Plan, large: Plan) -> dict[str, float]:
    """Returns the costs of one layer, from the plans of two depths.

    Memory and traffic are in bytes, FLOPs and compile time as they are; "compile_s" is the time of
    a model without layers.
    """
    layers = DEPTHS[1] - DEPTHS[0]

    def slope(figure: Any) -> float:
        return (figure(large) - figure(small)) / layers

    # A scanned step compiles one layer, whatever the depth.
    compile_s = max(slope(lambda plan: plan.compile_s), 0.0)
    compile_s = 0.0 if large.config.model.scan else compile_s
    return {
        "kept_bytes": slope(lambda plan: plan.memory.temporaries),
        "moved_bytes": slope(lambda plan: plan.work.memory_bytes),
        "flops": slope(lambda plan: plan.work.executed_flops),
        "compile_s": max(large.compile_s - compile_s * DEPTHS[1], 0.0),
        "compile_s_per_layer": compile_s,
    }


def rows_of(model: str, images: int, devices: list[Any], chip: Any) -> list[Row]:
    """Returns the rows of a model, one for each setting."""
    rows, flops = [], 0.0
    for scan, remat in itertools.product((True, False), ("none", "dots", "full")):
        plans = [
            make_plan(config_of(model, images, depth, scan, remat), devices, chip, _IMAGENET)
            for depth in DEPTHS
        ]
        if not all(plan.compiled for plan in plans):
            print(f"ViT-{model}, scan {scan}, remat {remat}: does not fit", flush=True)
            continue
        found = slopes(*plans)
        flops = flops or found["flops"]  # The first setting recomputes nothing.
        stack_values = images * 197 * _width(plans[0])
        row = Row(
            platform=devices[0].platform if devices[0].platform == "tpu" else "gpu",
            model=f"ViT-{model}",
            width=_width(plans[0]),
            scan=scan,
            remat=remat,
            kept_bytes=round(found["kept_bytes"] / stack_values, 2),
            moved_bytes=round(found["moved_bytes"] / stack_values, 2),
            recomputed=round(found["flops"] / flops - 1, 4),
            compile_s=round(found["compile_s"], 1),
            compile_s_per_layer=round(found["compile_s_per_layer"], 2),
        )
        print(row, flush=True)
        rows.append(row)
    return rows


def _width(plan: Plan) -> int:
    from vit_jax.models.registry import model_shape

    return model_shape(plan.config.model).width


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
    parser.add_argument("--topology", required=True)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated")
    args = parser.parse_args()
    topology = parse_topology(args.topology)
    prepare(topology)
    import jax

    jax.config.update("jax_enable_compilation_cache", False)
    devices = find_devices(topology)[:1]
    made = [
        row
        for model in args.models.split(",")
        for row in rows_of(model, MODELS[model], devices, chip_of(topology, devices))
    ]
    renewed = {(row.platform, row.model) for row in made}
    kept = [row for row in read_table() if (row.platform, row.model) not in renewed]
    write_table(sorted(kept + made, key=lambda row: (row.platform, row.width)), TABLE)


if __name__ == "__main__":
    main()
