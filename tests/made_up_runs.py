"""Writes made-up results for every job of a sweep, to test its report."""

import json
import math
import sys
from pathlib import Path

import jax

from vit_jax.models.flops import forward_macs, training_flops
from vit_jax.sweep.plan import Plan
from vit_jax.sweep.sweep_file import read_sweep


def finish(spec, folder, wanted=lambda name: True):
    """Writes the folder of a finished sweep; scores grow with compute.

    Args:
        spec: "FILE.py:ARG".
        folder: folder of the sweep.
        wanted: whether to write the job of this name.
    """
    sweep = read_sweep(spec)
    plan = Plan(sweep, folder)
    names = [name for name in plan.jobs if wanted(name)]
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"sweep": spec, "jobs": names, "report": sweep.report})
    (folder / "sweep.json").write_text(text)
    for name in names:
        job = plan.jobs[name]
        job.folder.mkdir(parents=True)
        config, about = job.config.to_mapping(), job.record(spec)
        files = {"config": config, "job": about, "result": figures(job.config)}
        for file, content in files.items():
            (job.folder / f"{file}.json").write_text(json.dumps(content))
    return folder


def figures(config):
    """Returns the content of result.json."""
    if config.model.name == "auto":
        exaflops = 1.0
    else:
        side = config.data.image_size
        # jax.nn.dot_product_attention promotes bfloat16 to float32, which strict promotion forbids.
        with jax.numpy_dtype_promotion("standard"):
            macs = forward_macs(config.model, num_classes=10, image_size=(side, side))
        exaflops = training_flops(macs) * (config.train_examples or 2e9) / 1e18
    score = 0.5 + 0.03 * math.log10(1 + 1e8 * exaflops) + 0.01 * config.seed
    made = {
        "step": 10,
        "wall_time_s": 5.0,
        "train_exaflops": exaflops,
        "examples_seen": 640,
        "train_examples": 50_000,
    }
    for split in config.evaluation.splits:
        made |= {f"eval/{split}/accuracy_top1": score, f"eval/{split}/loss": 1 - score}
    for dataset in config.fewshot.datasets:
        for shots in config.fewshot.shots:
            made[f"fewshot/{dataset}/{shots}_shot/accuracy_top1"] = score - 0.3
    return made


if __name__ == "__main__":
    finish(sys.argv[1], Path(sys.argv[2]))
