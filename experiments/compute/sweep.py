"""Score against pre-training compute: ViTs, hybrids and ResNets.

small   (default) three model families at two sizes, trained on CIFAR-10 at 32 pixels: Pico for
        64,000 to 512,000 images, Nano, whose images cost four times as much, for 32,000 to 256,000.
        The learning rate is chosen for each model, at a quarter of the third length; two seeds.
        TFDS_DATA_DIR holds cifar10. 2 to 4 hours of two cores
paper   arXiv:2010.11929, Figure 5 and Table 6: 18 models pretrained on JFT, each fine-tuned on five
        datasets at 384 pixels. `jft` is your own dataset: see configs/pretrain.py

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/compute/sweep.py
        --workdir=runs/compute --at_once=2

plan.py prints the exaFLOPs of each model at the paper's scale, next to those of Table 6.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from experiments.data_size.sweep import small_settings
from vit_jax.config.file import parse_arg
from vit_jax.config.transfer_protocols import TASKS, search_space
from vit_jax.sweep import Job, Selection, folder_name, vary

_TEST = "eval/test/accuracy_top1"
_AGAINST = {"x": "pretrain_exaflops", "log_x": True}

# Model -> learning rate of the lengths that do not choose theirs: what the third length has chosen.
SMALL_MODELS = {
    "Pico": {"ViT-Pico/4": 6e-3, "R+ViT-Pico/4": 6e-3, "BiT-R-Pico": 6e-3},
    "Nano": {"ViT-Nano/4": 2.5e-3, "R+ViT-Nano/4": 2.5e-3, "BiT-R-Nano": 6e-3},
}
# Images seen.
SMALL_LENGTHS = {
    "Pico": (64_000, 128_000, 256_000, 512_000),
    "Nano": (32_000, 64_000, 128_000, 256_000),
}
SMALL_RATES = (2.5e-3, 6e-3, 1.5e-2)
SMALL_SEEDS = (0, 1)

# Every row of Table 6: (model as configs/pretrain.py names it, epochs on JFT).
PAPER_ROWS = (
    ("B/32", 7), ("B/16", 7), ("L/32", 7), ("L/16", 7), ("L/16", 14), ("H/14", 14),
    ("R50x1", 7), ("R50x2", 7), ("R101x1", 7), ("R152x1", 7), ("R152x2", 7), ("R152x2", 14),
    ("R200x3", 14),
    ("R50+B/32", 7), ("R50+B/16", 7), ("R50+L/32", 7), ("R50+L/16", 7), ("R50+L/16", 14),
)  # fmt: skip
PAPER_DATASETS = ("imagenet2012", "cifar10", "cifar100", "pets", "flowers")
# Rows of Table 6 that are missing in Table 3: the row whose settings are used, and what differs.
# R200x3 uses the learning rate of the largest ResNet in Table 3 (ours).
_BORROWED: dict[tuple[str, int], tuple[str, dict[str, Any]]] = {
    ("R152x2", 14): ("R152x2", {"train_epochs": 14.0}),
    ("R200x3", 14): ("R152x2", {"model.name": "BiT-R200x3", "train_epochs": 14.0}),
}


def get_sweep(arg: str = "") -> Iterator[Job | Selection]:
    """Returns the jobs; ARG is `small` (default) or `paper`."""
    scale = parse_arg(arg, scale=("small", "paper"))["scale"]
    return _small() if scale == "small" else _paper()


def get_report(arg: str = "") -> dict[str, Any]:
    """Returns the tables and plots of the report."""
    scale = parse_arg(arg, scale=("small", "paper"))["scale"]
    asked = {
        "title": "Score against pre-training compute",
        "question": "Which model family scores best for the same pretraining compute?",
    }
    if scale == "paper":
        final = {"stage": "final"}
        return asked | {
            "tables": [{"metric": _TEST, "rows": "model+epochs", "where": final}],
            "plots": [
                {**_AGAINST, "y": _TEST, "series": "family", "panel": "dataset", "where": final}
            ],
        }
    final = {"stage": "final"}
    own = {"y": _TEST, "series": "family+size", "where": final, "title": "CIFAR-10 test accuracy"}
    return asked | {
        "tables": [{"metric": _TEST, "rows": "model", "columns": "images", "where": final}],
        "plots": [{**_AGAINST, **own}],
    }


def _small() -> Iterator[Job | Selection]:
    # The head that experiments/data_size chooses for all three families.
    head = {"model.pooling": "flatten"}
    for size, models in SMALL_MODELS.items():
        for length, model in itertools.product(SMALL_LENGTHS[size], models):
            config, name = f"configs/cifar10_small.py:{model}", f"{folder_name(model)}/{length}"
            settings = head | small_settings(48_000, length)
            labels = {"model": model, "size": size, "images": f"{length:,}"}
            if length == SMALL_LENGTHS[size][2]:
                searched = head | small_settings(48_000, length // 4)
                yield Selection(
                    name,
                    [
                        (config, {**searched, **rate})
                        for rate in vary("optimizer.learning_rate", SMALL_RATES)
                    ],
                    "eval/dev/accuracy_top1",
                    seeds=SMALL_SEEDS,
                    final_overrides=settings,
                    labels=labels,
                )
                continue
            for seed in SMALL_SEEDS:
                own = settings | {"optimizer.learning_rate": models[model], "seed": seed}
                yield Job(config, own, f"final/{name}/seed{seed}", labels, stage="final")


def _paper() -> Iterator[Job | Selection]:
    for model, epochs in PAPER_ROWS:
        name = f"{folder_name(model)}-{epochs}"
        labels = {"model": _registered(model), "epochs": str(epochs)}
        yield pretraining(model, epochs)
        for dataset in PAPER_DATASETS:
            finished = TASKS[dataset].splits["test"]
            yield Selection(
                f"{dataset}/{name}",
                [
                    (
                        f"configs/transfer.py:{dataset},{recipe}",
                        {"init_from": f"job:pretrain/{name}", **settings},
                    )
                    for recipe in (("paper",) if "/" in model else ("paper", "bit"))
                    for settings in search_space(dataset, recipe)
                ],
                "eval/dev/accuracy_top1",
                seeds=(0, 1, 2),
                final_overrides={
                    "data.train_split": finished[0],
                    "evaluation.splits": {finished[1]: finished[2]},
                },
                labels=labels | {"dataset": dataset},
            )


def pretraining(model: str, epochs: int) -> Job:
    """Returns the pretraining job of a row of Table 6."""
    row, settings = _BORROWED.get((model, epochs), (f"{model},{epochs}", {}))
    return Job(
        f"configs/pretrain.py:jft,{row}",
        settings,
        name=f"pretrain/{folder_name(model)}-{epochs}",
        labels={"model": _registered(model), "epochs": str(epochs), "dataset": "jft"},
    )


def _registered(model: str) -> str:
    stem, plus, vit = model.rpartition("+")
    return f"{stem}{plus}ViT-{vit}" if "/" in vit else f"BiT-{model}"
