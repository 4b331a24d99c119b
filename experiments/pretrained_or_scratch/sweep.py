"""Fine-tuning a pretrained model against training from scratch, by the length of training.

small   (default) ViT-Micro/4 and BiT-R-Micro, pretrained on CIFAR-10 at 32 pixels or not, then
        trained on the signs for 100, 300 and 1,000 steps; three seeds
paper   ViT-B/16 pretrained on ImageNet-21k or not, then trained on ImageNet for 5, 20, 80 and 300
        epochs

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/pretrained_or_scratch/sweep.py
        --workdir=runs/pretrained_or_scratch --at_once=2

Each start and length has its own learning rate, chosen on held-out training images with one seed.
"""

from collections.abc import Iterator
from typing import Any

from vit_jax.config.file import parse_arg
from vit_jax.sweep import Job, Selection, folder_name, vary

_TEST = "eval/test/accuracy_top1"
SEEDS = (0, 1, 2)
# Steps of the small runs, epochs of the paper's.
LENGTHS = {"small": (100, 300, 1_000), "paper": (5, 20, 80, 300)}
MODELS = {"small": ("ViT-Micro/4", "BiT-R-Micro"), "paper": ("B/16",)}
RATES = {"small": (3e-4, 1e-3, 3e-3), "paper": (1e-4, 3e-4, 1e-3, 3e-3)}
STARTS = ("pretrained", "scratch")


def get_sweep(arg: str = "") -> Iterator[Job | Selection]:
    """Returns the jobs; ARG is `small` (default) or `paper`."""
    scale = parse_arg(arg, scale=("small", "paper"))["scale"]
    for model in MODELS[scale]:
        name = f"pretrain/{folder_name(model)}"
        labels = {"model": model, "kind": "pretraining"}
        config = (
            f"experiments/transfer/pretrain.py:{model}"
            if scale == "small"
            else f"configs/pretrain.py:imagenet21k,{model}"
        )
        yield Job(config, name=name, labels=labels)
        for start in STARTS:
            for length in LENGTHS[scale]:
                make = _small if scale == "small" else _paper
                yield make(model, start, length, f"job:{name}")


def get_report(arg: str = "") -> dict[str, Any]:
    """Returns the tables and plots of the report."""
    del arg
    shown = {"where": {"kind": "trained"}}
    return {
        "title": "Pretrained or from scratch",
        "question": "Does training from scratch catch up with fine-tuning if it lasts longer?",
        "tables": [{"metric": _TEST, "rows": "model+start", "columns": "length", **shown}],
        "plots": [
            {"x": "length", "y": _TEST, "series": "start", "panel": "model", **shown},
        ],
        "curves": [],
    }


def _small(model: str, start: str, steps: int, pretrained: str) -> Selection:
    begin = {"init_from": pretrained} if start == "pretrained" else {"model.name": model}
    settings = {
        **begin,
        "train_steps": steps,
        "optimizer.schedule.warmup_steps": steps // 10,
        "checkpoint.interval_steps": steps,
        "data.train_split": "train[:90%]",
        "evaluation.splits": {"dev": "train[90%:]"},
    }
    return Selection(
        f"{folder_name(model)}/{start}/{steps}",
        [
            ("experiments/masked_patches/finetune.py:sign_language_digits", {**settings, **rate})
            for rate in vary("optimizer.learning_rate", RATES["small"])
        ],
        "eval/dev/accuracy_top1",
        seeds=SEEDS,
        final_overrides={"data.train_split": "train", "evaluation.splits": {"test": "test"}},
        labels={"model": model, "start": start, "length": str(steps), "kind": "trained"},
    )


def _paper(model: str, start: str, epochs: int, pretrained: str) -> Selection:
    begin = {"init_from": pretrained} if start == "pretrained" else {}
    settings = {**begin, "train_epochs": float(epochs), "data.train_split": "train[:99%]"}
    return Selection(
        f"{folder_name(model)}/{start}/{epochs}",
        [
            (
                f"configs/pretrain.py:imagenet2012,{model}",
                {**settings, **rate, "evaluation.splits": {"dev": "train[99%:]"}},
            )
            for rate in vary("optimizer.learning_rate", RATES["paper"])
        ],
        "eval/dev/accuracy_top1",
        seeds=SEEDS,
        final_overrides={
            "data.train_split": "train",
            "evaluation.splits": {"test": "validation"},
        },
        labels={"model": f"ViT-{model}", "start": start, "length": str(epochs), "kind": "trained"},
    )
