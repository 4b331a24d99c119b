"""Pretraining, then transfer: a ViT, a hybrid and a BiT ResNet of equal cost.

small   (default) pretrained on CIFAR-10 at 32 pixels; fine-tuned on two photo datasets at 64
        pixels, and evaluated few-shot on both. TFDS_DATA_DIR holds cifar10, clothing_small and
        sign_language_digits
paper   arXiv:2010.11929, Table 5: ViTs pretrained on ImageNet-21k, fine-tuned on five datasets at
        384 pixels with the learning rates, steps and dev splits of Table 4, three seeds

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/transfer/sweep.py
        --workdir=runs/transfer --at_once=2
"""

from collections.abc import Iterator

from vit_jax.config.file import parse_arg
from vit_jax.config.transfer_protocols import search_space
from vit_jax.sweep import Job, Selection, folder_name, product, vary

REPORT = {
    "title": "Pretrain, then transfer",
    "question": "Which of a ViT, a hybrid and a ResNet of equal cost transfers best?",
}

SMALL_MODELS = ("ViT-Micro/4", "R+ViT-Micro/4", "BiT-R-Micro")
SMALL_DATASETS = ("clothing_small", "sign_language_digits")
SMALL_RATES = (0.01, 0.03, 0.1)
PAPER_MODELS = ("B/16", "B/32", "L/16", "L/32")
PAPER_DATASETS = ("cifar10", "cifar100", "imagenet2012", "flowers", "pets")


def get_sweep(arg: str = "") -> Iterator[Job | Selection]:
    """Returns the jobs; ARG is `small` (default) or `paper`."""
    scale = parse_arg(arg, scale=("small", "paper"))["scale"]
    return _small() if scale == "small" else _paper()


def _small() -> Iterator[Job | Selection]:
    for model in SMALL_MODELS:
        pretrained = f"pretrain/{folder_name(model)}"
        yield Job(
            f"experiments/transfer/pretrain.py:{model}",
            name=pretrained,
            labels={"model": model, "dataset": "cifar10"},
        )
        for dataset in SMALL_DATASETS:
            labels = {"model": model, "dataset": dataset}
            yield _few_shot(pretrained, dataset, f"fewshot/{dataset}/{folder_name(model)}", labels)
            settings = {
                "init_from": f"job:{pretrained}",
                "data.name": dataset,
                "data.image_size": 64,
                "data.global_batch_size": 64,
                "accumulation_steps": 4,  # Microbatches of 16 fit a CPU's cache.
                "train_steps": 120,
                "optimizer.schedule.warmup_steps": 12,
                "evaluation.interval_steps": None,
                "checkpoint.interval_steps": 60,
                "logging.interval_steps": 10,
            }
            rates = vary("optimizer.learning_rate", SMALL_RATES)
            yield Selection(
                f"{dataset}/{folder_name(model)}",
                [("configs/transfer.py:tfds", s) for s in product([settings], rates)],
                "eval/dev/accuracy_top1",
                seeds=(0, 1, 2),
                final_config="configs/transfer.py:tfds,test",
                labels=labels,
            )


def _few_shot(pretrained: str, dataset: str, name: str, labels: dict[str, str]) -> Job:
    # At 32 pixels, like pretraining.
    arguments = (f"job:{pretrained}", f"--dataset={dataset}", "--crop=resize")
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
