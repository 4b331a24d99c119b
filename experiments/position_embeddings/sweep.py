"""Position embeddings: none, 1-D, 2-D or relative; at the stem, in every layer, or shared.

small   (default) ViT-Micro/4 on 160,000 images of CIFAR-10 at 32 pixels, seven seeds; evaluated
        on the test split and few-shot on two photo datasets. TFDS_DATA_DIR holds cifar10,
        clothing_small and sign_language_digits. A seed gives all kinds the same order of the data
gpu     the same with forty seeds
paper   arXiv:2010.11929, D.4, Table 8: ViT-B/16 on JFT, linear 5-shot on ImageNet. `jft` is your
        own dataset: see configs/pretrain.py

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/position_embeddings/sweep.py
        --workdir=runs/positions --at_once=2
"""

from collections.abc import Iterator
from typing import Any

from vit_jax.config.file import parse_arg
from vit_jax.sweep import Job

# Rows of Table 8 -> model.position_embedding. "none" has nothing to place, and relative attention
# is always in every layer: Table 8 lists both in its first column.
KINDS = {"none": "none", "1-D": "learned_1d", "2-D": "learned_2d", "relative": "relative"}
PLACEMENTS = {"stem": "stem", "every layer": "every_layer", "shared": "shared"}
PLACED = ("1-D", "2-D")

SEEDS = {"small": range(7), "gpu": range(40)}
SMALL_EXAMPLES = 160_000
_SCALES = (*SEEDS, "paper")
_TEST = "eval/test/accuracy_top1"
_TABLE = {"rows": "position", "columns": "placement"}
# Least squares on frozen features, as in arXiv:2010.11929, section 4.1, with the settings of the
# authors' code: shots from the first 65,000 training images, L2 penalty 1,024.
_IMAGENET = {"name": "imagenet2012", "train_split": "train[:65000]", "test_split": "validation"}


def get_sweep(arg: str = "") -> Iterator[Job]:
    """Returns the jobs; ARG is `small` (default), `gpu` or `paper`."""
    scale = parse_arg(arg, scale=_SCALES)["scale"]
    for kind, embedding in KINDS.items():
        for placement in PLACEMENTS if kind in PLACED else ("stem",):
            chosen = {
                "model.position_embedding": embedding,
                "model.position_placement": PLACEMENTS[placement],
            }
            labels = {"model": "ViT-Micro/4", "position": kind, "placement": placement}
            name = f"{kind}/{placement.replace(' ', '-')}"
            if scale == "paper":
                yield _paper(chosen, name, labels | {"model": "ViT-B/16"})
            for seed in SEEDS.get(scale, ()):
                yield _small({**chosen, "seed": seed}, f"{name}/seed{seed}", labels)


def get_report(arg: str = "") -> dict[str, Any]:
    """Returns the tables and plots of the report."""
    scale = parse_arg(arg, scale=_SCALES)["scale"]
    asked = {
        "title": "Position embeddings",
        "question": "Which position embedding does a ViT need, and where?",
    }
    if scale == "paper":
        metric = "fewshot/imagenet/5_shot/accuracy_top1"
        tables = [{"metric": metric, "title": "ImageNet, linear 5-shot", **_TABLE}]
        plots = [{"x": "position", "y": metric, "series": "placement"}]
        return asked | {"tables": tables, "plots": plots}
    tables = [{"metric": _TEST, "title": "CIFAR-10 test accuracy", **_TABLE}] + [
        {
            "metric": f"fewshot/{dataset}/25_shot/accuracy_top1",
            "title": f"{dataset}, linear 25-shot",
            **_TABLE,
        }
        for dataset in ("clothing_small", "sign_language_digits")
    ]
    plots = [
        {
            "x": "position", "y": _TEST, "series": "placement", "title": "CIFAR-10 test accuracy",
        }
    ]  # fmt: skip
    return asked | {"tables": tables, "plots": plots}


def _small(settings: dict[str, Any], name: str, labels: dict[str, str]) -> Job:
    return Job(
        "configs/cifar10_small.py:ViT-Micro/4,fewshot",
        {"train_examples": SMALL_EXAMPLES, **settings},
        name=name,
        labels=labels,
    )


def _paper(settings: dict[str, Any], name: str, labels: dict[str, str]) -> Job:
    fewshot = {
        "fewshot.datasets": {"imagenet": _IMAGENET},
        "fewshot.shots": [5],
        "fewshot.l2": 1024.0,
        "fewshot.interval_epochs": 1.0,
    }
    return Job("configs/pretrain.py:jft,B/16", {**settings, **fewshot}, name=name, labels=labels)
