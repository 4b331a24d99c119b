"""How much of the distance between ViT and ResNet is head and learning rate? On CIFAR-10.

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/data_size/heads.py
        --workdir=runs/data_size --at_once=2

Each family has each of its heads. For each of these and each size, the learning rate is chosen on
2,000 held-out training images with one seed, and with 480 images also weight decay and label
smoothing. Then three seeds with the chosen settings are scored on the test split. A run ends when
its loss on the held-out images has not fallen for three evaluations, and keeps the weights with the
lowest; final runs may see two to four times as many images as those of the search. gap.py
divides the distance between the families.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from vit_jax.sweep import Job, Selection, folder_name, product, vary

# Family -> (model, heads). The mean colours of 8 x 8 blocks are a trivial baseline.
FAMILIES = {
    "ViT": ("ViT-Micro/4", ("token", "gap", "flatten")),
    "hybrid": ("R+ViT-Micro/4", ("token", "flatten")),
    "ResNet": ("BiT-R-Micro", ("gap", "flatten")),
    "block means": ("BlockMeans-8", ("linear",)),
}
# Models with the paper's heads also train at one rate, for what own rates change.
SHARED_RATE = 2e-3
USUAL_HEADS = {"ViT": "token", "ResNet": "gap"}
SEEDS = (0, 1, 2)
RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
REGULARISATIONS = ({}, {"optimizer.weight_decay": 0.5}, {"loss.label_smoothing": 0.1})
# Percent of 48,000 images -> images that a run of the search sees at most, a final run, and images
# between evaluations of both.
BUDGETS = {
    1: (25_600, 51_200, 3_200, 3_200),
    10: (51_200, 102_400, 6_400, 6_400),
    100: (76_800, 307_200, 12_800, 19_200),
}
PATIENCE = 3


def get_sweep(arg: str = "") -> Iterator[Job | Selection]:
    """Returns the jobs; ARG: percents joined by "+", e.g. "1+10" (default: all)."""
    chosen = [int(part) for part in arg.split("+")] if arg else [*BUDGETS]
    for percent, (family, (model, heads)) in itertools.product(chosen, FAMILIES.items()):
        for head in heads:
            yield _selection(percent, family, model, head)
        if family in USUAL_HEADS:
            yield from _at_the_shared_rate(percent, family, model)


def _settings(percent: int, head: str) -> dict[str, Any]:
    """Returns the overrides of all runs with a number of images."""
    seen, _, every, _ = BUDGETS[percent]
    return {
        **({"model.pooling": head} if head != "linear" else {}),
        "data.train_split": "train[:96%]",
        "data.subset.preset": f"{percent}_percent",
        "train_examples": seen,
        "evaluation.splits": {"dev": "train[96%:]"},
        "evaluation.interval_examples": every,
        "early_stopping.metric": "eval/dev/loss",
        "early_stopping.patience_evaluations": PATIENCE,
        "checkpoint.interval_examples": every,
    }


def _final(percent: int) -> dict[str, Any]:
    """Returns the overrides of final runs."""
    _, seen, _, every = BUDGETS[percent]
    return {
        "train_examples": seen,
        "evaluation.interval_examples": every,
        "checkpoint.interval_examples": every,
        "evaluation.final_splits": {"test": "test"},
    }


def _at_the_shared_rate(percent: int, family: str, model: str) -> Iterator[Job]:
    head = USUAL_HEADS[family]
    for seed in SEEDS:
        yield Job(
            f"configs/cifar10_small.py:{model}",
            {
                **_settings(percent, head),
                **_final(percent),
                "optimizer.learning_rate": SHARED_RATE,
                "seed": seed,
            },
            name=f"shared/{percent}_percent/{folder_name(model)}/seed{seed}",
            labels={"family": family, "head": head, "rate": "shared", "dataset": "cifar10"},
            stage="final",
        )


def _selection(percent: int, family: str, model: str, head: str) -> Selection:
    tried = REGULARISATIONS if percent == min(BUDGETS) else ({},)
    return Selection(
        f"{percent}_percent/{folder_name(model)}/{head}",
        [
            (f"configs/cifar10_small.py:{model}", {**_settings(percent, head), **more})
            for more in product(vary("optimizer.learning_rate", RATES), tried)
        ],
        "eval/dev/accuracy_top1",
        seeds=SEEDS,
        final_overrides=_final(percent),
        labels={"family": family, "head": head, "rate": "own", "dataset": "cifar10"},
    )


def get_report(arg: str = "") -> dict[str, Any]:
    """Returns the tables and plots of the report."""
    del arg
    shown = {"where": {"rate": "own"}, "title": "Test accuracy with own rates, by training images"}
    score = "eval/test/accuracy_top1"
    return {
        "title": "Head, learning rate or family?",
        "question": "How much of the distance between ViT and ResNet is head and learning rate?",
        "tables": [
            {"metric": score, "rows": "family+head", "columns": "train_examples", **shown},
            {
                "metric": score,
                "rows": "family+head",
                "columns": "train_examples",
                "where": {"rate": "shared"},
                "title": "Test accuracy at the shared rate",
            },
        ],
        "plots": [
            {"x": "train_examples", "y": score, "series": "family+head", "log_x": True, **shown},
            {"x": "wall_time_s", "y": score, "series": "family+head", "log_x": True,
             "where": {"rate": "own"}, "title": "Test accuracy, by the time of a run"},
        ],
        "curves": [],
    }  # fmt: skip
