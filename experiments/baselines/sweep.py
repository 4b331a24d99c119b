"""What do models score that have learned nothing? Block means and untrained models, frozen.

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/baselines/sweep.py
        --workdir=runs/baselines --at_once=2

`BlockMeans-8` has as features the mean colours of 8 x 8 blocks, 192 numbers. All are measured as
other frozen features are: least squares from a few images of each class, and a linear probe on all
of them. Penalties are chosen on training images.
"""

from collections.abc import Iterator
from typing import Any

from vit_jax.sweep import Job, folder_name

PIXELS = "BlockMeans-8"
MODELS = ("ViT-Micro/4", "R+ViT-Micro/4", "BiT-R-Micro")
SEEDS = (0, 1, 2)
PHOTOS = ("clothing_small", "sign_language_digits")
# Training images of CIFAR-10: 1, 3, 10, 30 and 100 % of 48,000.
SIZES = (480, 1_440, 4_800, 14_400, 48_000)


def get_sweep(arg: str = "") -> Iterator[Job]:
    """Returns the jobs; there is no ARG."""
    photos = [f"--dataset={name}" for name in PHOTOS]
    for model in (PIXELS, *MODELS):
        # The means have no initial values.
        for seed in SEEDS[:1] if model == PIXELS else SEEDS:
            yield _job(
                f"photos/{folder_name(model)}/seed{seed}",
                model,
                [*photos, "--shots=1,5,10,25", "--method=least_squares,linear_probe"],
                seed,
            )
    for size in SIZES:
        yield _job(
            f"cifar10/{size}",
            PIXELS,
            ["--dataset=cifar10", f"--train_split=train[:{size}]", "--method=linear_probe"],
            0,
            images=str(size),
        )


def _job(name: str, model: str, arguments: list[str], seed: int, **labels: str) -> Job:
    shared = ["--crop=resize", "--image_size=32", "--no_cache"]
    return Job(
        None,
        {"load.seed": seed},
        command="fewshot",
        arguments=[f"untrained:{model}", *shared, *arguments],
        name=name,
        labels={"model": model if model == PIXELS else f"untrained {model}", **labels},
        stage="final",
    )


def get_report(arg: str = "") -> dict[str, Any]:
    """Returns the tables of the report."""
    few_shot = "fewshot/{dataset}/{shots}_shot/accuracy_top1"
    probe = "linear_probe/{dataset}/accuracy_top1"
    return {
        "title": "Trivial baselines",
        "question": "What do models score that have learned nothing?",
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
        "plots": [],
        "curves": [],
    }
