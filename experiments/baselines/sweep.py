"""What do models that have learned nothing score? Untrained models, frozen.

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/baselines/sweep.py
        --workdir=runs/baselines --at_once=2

Measured as other frozen features are: least squares from a few images of each class, and a linear
probe on all of them. Penalties are chosen on training images. `pixels.py` adds mean colours.
"""

from collections.abc import Iterator
from typing import Any

from vit_jax.sweep import Job, folder_name

MODELS = ("ViT-Micro/4", "R+ViT-Micro/4", "BiT-R-Micro")
SEEDS = (0, 1, 2)
PHOTOS = ("clothing_small", "sign_language_digits")


def get_sweep(arg: str = "") -> Iterator[Job]:
    """Returns the jobs; there is no ARG."""
    arguments = [f"--dataset={name}" for name in PHOTOS]
    arguments += ["--shots=1,5,10,25", "--method=least_squares,linear_probe"]
    arguments += ["--crop=resize", "--image_size=32"]
    for model in MODELS:
        for seed in SEEDS:
            yield Job(
                None,
                {"load.seed": seed},
                command="fewshot",
                arguments=[f"untrained:{model}", *arguments],
                name=f"photos/{folder_name(model)}/seed{seed}",
                labels={"model": f"untrained {model}"},
                stage="final",
            )


def get_report(arg: str = "") -> dict[str, Any]:
    """Returns the tables of the report."""
    few_shot = "fewshot/{dataset}/{shots}_shot/accuracy_top1"
    probe = "linear_probe/{dataset}/accuracy_top1"
    return {
        "title": "Trivial baselines",
        "question": "What do models that have learned nothing score?",
        "tables": [
            {"metric": few_shot, "rows": "model", "columns": "dataset+shots"},
            {"metric": probe, "rows": "model", "columns": "dataset", "where": {"images": ""}},
            {
                "metric": "linear_probe/cifar10/accuracy_top1",
                "rows": "model",
                "columns": "images",
                "title": "Linear probe on CIFAR-10, by training images",
            },
        ],
        "plots": [{"x": "model", "y": probe, "panel": "dataset", "where": {"images": ""}}],
        "curves": [],
    }
