"""How much of the distance between ViT and ResNet is head and learning rate? On CIFAR-10.

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/data_size/heads.py:PERCENTS
        --workdir=runs/heads --at_once=2

PERCENTS  of 48,000 training images, joined by "+", such as 1+10; default: 1+10+100. Several
          sweeps may share the folder, one after the other

Cost: 4,400, 6,000 and 10,600 core-seconds, in all 3 hours of two cores.

Each family has each of its heads. For each of these and each size, five learning rates are tried
with seed 0, at the length of the final runs, and one is chosen on 2,000 held-out training images.
Seeds 1 and 2 repeat it, so there are three seeds with the chosen rate. One more run at SHARED_RATE,
with seed 1, joins the one of the search. All are scored on the test split. The weights of a run are
those with the better score on the held-out images, in its middle or at its end. gap.py divides the
distance between the families.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from vit_jax.sweep import Job, Selection, folder_name, vary

# Family -> (model, heads).
FAMILIES = {
    "ViT": ("ViT-Nano/4", ("token", "gap", "flatten")),
    "hybrid": ("R+ViT-Nano/4", ("token", "flatten")),
    "ResNet": ("BiT-R-Nano", ("gap", "flatten")),
}
# The families whose distance is divided; all their heads also train at one rate.
DIVIDED = ("ViT", "ResNet")
SHARED_RATE = 2e-3
SEEDS = (1, 2)
# In adam_or_sgd the ResNet chose 8e-3 and the ViT 4e-3, with 1e-3 worst for both.
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
# Percent of 48,000 images -> images that a run sees.
LENGTHS = {1: 9_600, 10: 16_000, 100: 35_200}
IMAGES_PER_SECOND = {"ViT": 370, "hybrid": 200, "ResNet": 150}
"""Of training on one core of an idle machine."""


def get_sweep(arg: str = "") -> Iterator[Job | Selection]:
    """Returns the jobs; for ARG see above."""
    chosen = [int(part) for part in arg.split("+")] if arg else [*LENGTHS]
    for percent, (family, (model, heads)) in itertools.product(chosen, FAMILIES.items()):
        for head in heads:
            yield _selection(percent, family, model, head)
            if family in DIVIDED:
                yield _at_the_shared_rate(percent, family, model, head)


def _settings(percent: int, head: str) -> dict[str, Any]:
    """Returns the overrides of all runs with a number of images."""
    seen = LENGTHS[percent]
    return {
        "model.pooling": head,
        "data.train_split": "train[:96%]",
        "data.subset.preset": f"{percent}_percent",
        "train_examples": seen,
        "optimizer.schedule.warmup_examples": seen // 10,
        "evaluation.splits": {"dev": "train[96%:]"},
        "evaluation.final_splits": {"test": "test"},
        "evaluation.interval_examples": seen // 2,
        # The weights with the best score are kept; no run ends early.
        "early_stopping.metric": "eval/dev/accuracy_top1",
        "checkpoint.interval_examples": seen,
    }


def _labels(family: str, head: str, rate: str) -> dict[str, str]:
    return {"family": family, "head": head, "rate": rate, "dataset": "cifar10"}


def _at_the_shared_rate(percent: int, family: str, model: str, head: str) -> Job:
    rate = {"optimizer.learning_rate": SHARED_RATE}
    return Job(
        f"configs/cifar10_small.py:{model}",
        {**_settings(percent, head), **rate, "seed": SEEDS[0]},
        name=f"shared/{percent}_percent/{folder_name(model)}/{head}/seed{SEEDS[0]}",
        labels=_labels(family, head, "shared"),
        stage="final",
    )


def _selection(percent: int, family: str, model: str, head: str) -> Selection:
    return Selection(
        f"{percent}_percent/{folder_name(model)}/{head}",
        [
            (f"configs/cifar10_small.py:{model}", {**_settings(percent, head), **rate})
            for rate in vary("optimizer.learning_rate", RATES)
        ],
        "eval/dev/accuracy_top1",
        seeds=SEEDS,
        labels=_labels(family, head, "own"),
    )


def get_report(arg: str = "") -> dict[str, Any]:
    """Returns the tables and plots of the report."""
    del arg
    score = "eval/test/accuracy_top1"
    shown = {"rows": "family+head", "columns": "train_examples"}
    own = {"where": {"rate": "own"}, "title": "Test accuracy with own rates, by training images"}
    shared = {"where": {"rate": "shared"}, "title": "Test accuracy at the shared rate"}
    return {
        "title": "Head, learning rate or family?",
        "question": "How much of the distance between ViT and ResNet is head and learning rate?",
        "tables": [{"metric": score, **shown, **own}, {"metric": score, **shown, **shared}],
        "plots": [
            {"x": "train_examples", "y": score, "series": "head", "panel": "family",
             "log_x": True, **own}
        ],
        "curves": [],
    }  # fmt: skip
