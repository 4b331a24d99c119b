"""Adam or SGD, each at its own learning rate (arXiv:2010.11929, D.1 and Table 7).

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/adam_or_sgd/sweep.py:small
        --workdir=runs/adam_or_sgd --at_once=2

small   (default) ViT-Nano/4 and BiT-R-Nano on 51,200 images of CIFAR-10, rates chosen on 2,000
        held-out training images; three seeds on the test split
paper   Table 7: ResNet-50 and ResNet-152x2 pretrained on JFT with Adam (7 epochs) or with SGD as in
        arXiv:1912.11370, then fine-tuned on five datasets
"""

from collections.abc import Iterator
from typing import Any

from vit_jax.config.file import parse_arg
from vit_jax.config.transfer_protocols import search_space
from vit_jax.sweep import Job, Selection, folder_name, vary

_TEST = "eval/test/accuracy_top1"
SEEDS = (0, 1, 2)
MODELS = ("ViT-Nano/4", "BiT-R-Nano")
PAPER_MODELS = ("BiT-R50x1", "BiT-R152x2")
PAPER_DATASETS = ("imagenet2012", "cifar10", "cifar100", "pets", "flowers")
# Optimizer -> its settings and the rates that are tried. Decoupled weight decay at rate lr shrinks
# parameters by lr * decay a step, so SGD's larger rates need a smaller one.
OPTIMIZERS: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "Adam": ({"optimizer.name": "adamw", "optimizer.weight_decay": 0.05}, (1e-3, 2e-3, 4e-3, 8e-3)),
    "SGD": (
        {
            "optimizer.name": "sgd",
            "optimizer.options": {"momentum": 0.9},
            "optimizer.weight_decay": 5e-4,
        },
        (0.01, 0.03, 0.1, 0.3),
    ),
}
# Section 3.3 of arXiv:1912.11370: rate 0.03 at batch size 512, scaled to 4,096.
_PAPER_SGD = {
    "optimizer.name": "sgd",
    "optimizer.options": {"momentum": 0.9},
    "optimizer.learning_rate": 0.03 * 4_096 / 512,
    "optimizer.weight_decay": 1e-4,
}


def get_sweep(arg: str = "") -> Iterator[Job | Selection]:
    """Returns the jobs; ARG is `small` (default) or `paper`."""
    scale = parse_arg(arg, scale=("small", "paper"))["scale"]
    return _small() if scale == "small" else _paper()


def get_report(arg: str = "") -> dict[str, Any]:
    """Returns the tables and plots of the report."""
    scale = parse_arg(arg, scale=("small", "paper"))["scale"]
    shown = (
        {"rows": "model+optimizer", "columns": "dataset"}
        if scale == "paper"
        else {"rows": "optimizer", "columns": "model", "against": "SGD"}
    )
    return {
        "title": "Adam or SGD",
        "question": "Which optimizer suits which family?",
        "tables": [{"metric": _TEST, "where": {"stage": "final"}, **shown}],
        "plots": [
            {"x": "model", "y": _TEST, "series": "optimizer", "where": {"stage": "final"}},
        ],
    }


def _small() -> Iterator[Selection]:
    settings = {
        "data.train_split": "train[:96%]",
        "train_examples": 51_200,
        "evaluation.splits": {"dev": "train[96%:]"},
    }
    for model in MODELS:
        for optimizer, (chosen, rates) in OPTIMIZERS.items():
            yield Selection(
                f"{folder_name(model)}/{optimizer}",
                [
                    (f"configs/cifar10_small.py:{model}", {**settings, **chosen, **rate})
                    for rate in vary("optimizer.learning_rate", rates)
                ],
                "eval/dev/accuracy_top1",
                seeds=SEEDS,
                final_overrides={"evaluation.splits": {"test": "test"}},
                labels={"model": model, "optimizer": optimizer, "dataset": "cifar10"},
            )


def _paper() -> Iterator[Job | Selection]:
    for model in PAPER_MODELS:
        for optimizer, settings in {"Adam": {}, "SGD": _PAPER_SGD}.items():
            pretrained = f"pretrain/{folder_name(model)}/{optimizer}"
            labels = {"model": model, "optimizer": optimizer}
            config = f"configs/pretrain.py:jft,{model.removeprefix('BiT-')}"
            yield Job(config, settings, name=pretrained, labels=labels | {"dataset": "jft"})
            for dataset in PAPER_DATASETS:
                yield Selection(
                    f"{dataset}/{folder_name(model)}/{optimizer}",
                    [
                        (
                            f"configs/transfer.py:{dataset}",
                            {"init_from": f"job:{pretrained}", **rate},
                        )
                        for rate in search_space(dataset, "paper")
                    ],
                    "eval/dev/accuracy_top1",
                    seeds=SEEDS,
                    final_config=f"configs/transfer.py:{dataset},test",
                    labels=labels | {"dataset": dataset},
                )
