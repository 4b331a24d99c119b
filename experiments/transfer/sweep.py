"""Pretraining, then transfer: a ViT, a hybrid and a BiT ResNet of equal cost.

small     (default) the models of experiments/transfer/checkpoints, fine-tuned on two photo
          datasets at 64 pixels, and evaluated few-shot on both. Rates are chosen for each model
          and dataset. TFDS_DATA_DIR holds clothing_small and sign_language_digits. 2 hours of
          two cores
pretrain  their pretraining on CIFAR-10 at 32 pixels, each at its own rate; checkpoints.py makes
          checkpoints of it. 3 hours of two cores
paper     arXiv:2010.11929, Table 5: ViTs pretrained on ImageNet-21k, fine-tuned on five datasets
          at 384 pixels with the learning rates, steps and dev splits of Table 4, three seeds

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/transfer/sweep.py
        --workdir=runs/transfer --at_once=2
"""

import itertools
from collections.abc import Iterator
from typing import Any

from experiments.data_size.sweep import small_settings
from vit_jax.config.file import parse_arg
from vit_jax.config.transfer_protocols import search_space
from vit_jax.sweep import Job, Selection, folder_name, vary

REPORT = {
    "title": "Pretrain, then transfer",
    "question": "Which of a ViT, a hybrid and a ResNet of equal cost transfers best?",
}

SMALL_MODELS = ("ViT-Micro/4", "R+ViT-Micro/4", "BiT-R-Micro")
SMALL_DATASETS = ("clothing_small", "sign_language_digits")
SMALL_RATES = (0.01, 0.03, 0.1)
# Steps; rates are chosen at a third of it.
SMALL_STEPS = 300
CHECKPOINTS = "experiments/transfer/checkpoints"
# Images seen in pretraining; rates are chosen at a quarter of it.
PRETRAINING_LENGTH = 768_000
PRETRAINING_RATES = (1e-3, 2.5e-3, 6e-3)
PAPER_MODELS = ("B/16", "B/32", "L/16", "L/32")
PAPER_DATASETS = ("cifar10", "cifar100", "imagenet2012", "flowers", "pets")


def get_sweep(arg: str = "") -> Iterator[Job | Selection]:
    """Returns the jobs; ARG is `small` (default), `pretrain` or `paper`."""
    scale = parse_arg(arg, scale=("small", "pretrain", "paper"))["scale"]
    return {"small": _small, "pretrain": _pretrain, "paper": _paper}[scale]()


def _small() -> Iterator[Job | Selection]:
    for model, dataset in itertools.product(SMALL_MODELS, SMALL_DATASETS):
        name, labels = folder_name(model), {"model": model, "dataset": dataset}
        pretrained = f"{CHECKPOINTS}/{name}"
        yield Job(
            None,
            command="fewshot",
            # At 32 pixels, like pretraining.
            arguments=(pretrained, f"--dataset={dataset}", "--crop=resize"),
            name=f"fewshot/{dataset}/{name}",
            labels=labels,
            stage="final",
        )
        settings = {
            "init_from": pretrained,
            "data.name": dataset,
            "accumulation_steps": 2,  # Microbatches of 16 fit a CPU's cache.
            "evaluation.interval_steps": None,
        }
        yield Selection(
            f"{dataset}/{name}",
            [
                ("configs/transfer.py:tfds,small", {**settings, **_steps(SMALL_STEPS // 3), **rate})
                for rate in vary("optimizer.learning_rate", SMALL_RATES)
            ],
            "eval/dev/accuracy_top1",
            seeds=(0, 1, 2),
            final_config="configs/transfer.py:tfds,small,test",
            final_overrides=_steps(SMALL_STEPS),
            labels=labels,
        )


def _steps(steps: int) -> dict[str, Any]:
    return {"train_steps": steps, "optimizer.schedule.warmup_steps": steps // 10}


def _pretrain() -> Iterator[Selection]:
    # The head that experiments/data_size chooses for all three.
    head = {"model.pooling": "flatten"}
    for model in SMALL_MODELS:
        searched = head | small_settings(48_000, PRETRAINING_LENGTH // 4)
        yield Selection(
            folder_name(model),
            [
                (f"configs/cifar10_small.py:{model}", {**searched, **rate})
                for rate in vary("optimizer.learning_rate", PRETRAINING_RATES)
            ],
            "eval/dev/accuracy_top1",
            seeds=(0,),
            final_overrides=small_settings(48_000, PRETRAINING_LENGTH),
            labels={"model": model, "dataset": "cifar10"},
        )


def _paper() -> Iterator[Job | Selection]:
    for model in PAPER_MODELS:
        pretrained = f"pretrain/{folder_name(model)}"
        labels = {"model": f"ViT-{model}", "dataset": "imagenet21k"}
        yield Job(f"configs/pretrain.py:imagenet21k,{model}", name=pretrained, labels=labels)
        for dataset in PAPER_DATASETS:
            yield Selection(
                f"{dataset}/{folder_name(model)}",
                [
                    (f"configs/transfer.py:{dataset}", {"init_from": f"job:{pretrained}", **s})
                    for s in search_space(dataset, "paper")
                ],
                "eval/dev/accuracy_top1",
                seeds=(0, 1, 2),
                final_config=f"configs/transfer.py:{dataset},test",
                labels={"model": f"ViT-{model}", "dataset": dataset},
            )
