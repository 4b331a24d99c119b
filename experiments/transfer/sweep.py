"""Pretraining, then transfer: a ViT, a hybrid and a BiT ResNet of equal cost.

small   (default) pretrained on CIFAR-10 at 32 pixels; fine-tuned on two photo datasets at 64
        pixels, and evaluated few-shot on both. Rates are chosen for each model. TFDS_DATA_DIR holds
        cifar10, clothing_small and sign_language_digits. 4 hours of two cores
paper   arXiv:2010.11929, Table 5: ViTs pretrained on ImageNet-21k, fine-tuned on five datasets at
        384 pixels with the learning rates, steps and dev splits of Table 4, three seeds

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/transfer/sweep.py
        --workdir=runs/transfer --at_once=2
"""

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
SMALL_PRETRAINING_RATES = (1e-3, 2.5e-3, 6e-3)
# Images seen in pretraining; rates are chosen at a quarter of it.
SMALL_LENGTH = 768_000
SMALL_RATES = (0.01, 0.03, 0.1)
PAPER_MODELS = ("B/16", "B/32", "L/16", "L/32")
PAPER_DATASETS = ("cifar10", "cifar100", "imagenet2012", "flowers", "pets")


def get_sweep(arg: str = "") -> Iterator[Job | Selection]:
    """Returns the jobs; ARG is `small` (default) or `paper`."""
    scale = parse_arg(arg, scale=("small", "paper"))["scale"]
    return _small() if scale == "small" else _paper()


def _small() -> Iterator[Job | Selection]:
    for model in SMALL_MODELS:
        name = folder_name(model)
        yield Selection(
            f"pretrain/{name}",
            [
                (f"configs/cifar10_small.py:{model}", {**_pretraining(SMALL_LENGTH // 4), **rate})
                for rate in vary("optimizer.learning_rate", SMALL_PRETRAINING_RATES)
            ],
            "eval/dev/accuracy_top1",
            seeds=(0,),
            final_overrides=_pretraining(SMALL_LENGTH),
            labels={"model": model, "dataset": "cifar10"},
        )
        pretrained = f"job:final/pretrain/{name}/seed0"
        for dataset in SMALL_DATASETS:
            labels = {"model": model, "dataset": dataset}
            yield _few_shot(pretrained, dataset, f"fewshot/{dataset}/{name}", labels)
            yield Selection(
                f"{dataset}/{name}",
                [
                    (
                        "configs/transfer.py:tfds,small",
                        {**_fine_tuning(pretrained, dataset), **rate},
                    )
                    for rate in vary("optimizer.learning_rate", SMALL_RATES)
                ],
                "eval/dev/accuracy_top1",
                seeds=(0, 1, 2),
                final_config="configs/transfer.py:tfds,small,test",
                labels=labels,
            )


def _pretraining(length: int) -> dict[str, Any]:
    # The head that experiments/data_size chooses for all three.
    return {"model.pooling": "flatten", **small_settings(48_000, length)}


def _fine_tuning(pretrained: str, dataset: str) -> dict[str, Any]:
    return {
        "init_from": pretrained,
        "data.name": dataset,
        "data.global_batch_size": 64,
        "accumulation_steps": 4,  # Microbatches of 16 fit a CPU's cache.
        "evaluation.interval_steps": None,
    }


def _few_shot(pretrained: str, dataset: str, name: str, labels: dict[str, str]) -> Job:
    # At 32 pixels, like pretraining.
    arguments = (pretrained, f"--dataset={dataset}", "--crop=resize")
    return Job(
        None, command="fewshot", arguments=arguments, name=name, labels=labels, stage="final"
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
