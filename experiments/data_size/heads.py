"""How much of the distance between ViT and ResNet is head and learning rate? On CIFAR-10.

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/data_size/heads.py
        --workdir=runs/data_size --at_once=2

Each family has each of its heads. For each of these and each size, the learning rate is chosen on
2,000 held-out training images with one seed, and with 480 images also weight decay and label
smoothing. Then three seeds with the chosen settings are scored on the test split. A run ends when
its loss on the held-out images has not fallen for three evaluations, and keeps the weights with the
lowest; final runs may see two to four times as many images as those of the search.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from vit_jax.sweep import Selection, folder_name, product, vary

# Family -> (model, heads). The mean colours of 8 x 8 blocks are a trivial baseline.
FAMILIES = {
    "ViT": ("ViT-Micro/4", ("token", "gap", "flatten")),
    "hybrid": ("R+ViT-Micro/4", ("token", "flatten")),
    "ResNet": ("BiT-R-Micro", ("gap", "flatten")),
    "block means": ("BlockMeans-8", ("linear",)),
}
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


def get_sweep(arg: str = "") -> Iterator[Selection]:
    """Returns the selections; ARG: percents joined by "+", e.g. "1+10" (default: all)."""
    chosen = [int(part) for part in arg.split("+")] if arg else [*BUDGETS]
    for percent, (family, (model, heads)) in itertools.product(chosen, FAMILIES.items()):
        for head in heads:
            yield _selection(percent, family, model, head)


def _selection(percent: int, family: str, model: str, head: str) -> Selection:
    seen, seen_finally, every, every_finally = BUDGETS[percent]
    settings: dict[str, Any] = {
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
    tried = REGULARISATIONS if percent == min(BUDGETS) else ({},)
    return Selection(
        f"{percent}_percent/{folder_name(model)}/{head}",
        [
            (f"configs/cifar10_small.py:{model}", {**settings, **more})
            for more in product(vary("optimizer.learning_rate", RATES), tried)
        ],
        "eval/dev/accuracy_top1",
        final_overrides={
            "train_examples": seen_finally,
            "evaluation.interval_examples": every_finally,
            "checkpoint.interval_examples": every_finally,
            "evaluation.final_splits": {"test": "test"},
        },
        labels={"family": family, "head": head, "dataset": "cifar10"},
    )
