"""Position embeddings: none, 1-D, 2-D or relative; at the stem, in every layer, or shared.

small  (default) ViT-Micro/4 on 160,000 images of CIFAR-10 at 32 pixels, two seeds; evaluated on the
       test split and few-shot on two photo datasets. TFDS_DATA_DIR holds cifar10, clothing_small
       and sign_language_digits. One hour of two cores
paper  arXiv:2010.11929, D.4, Table 8: ViT-B/16 on JFT, linear 5-shot on ImageNet. `jft` is your own
       dataset: see configs/pretrain.py

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

SMALL_MODEL, SMALL_LENGTH, SMALL_SEEDS = "ViT-Micro/4", 160_000, range(2)
_SCALES = ("small", "paper")
_TEST = "eval/test/accuracy_top1"
_TABLE = {"rows": "position", "columns": "placement"}
# Least squares on frozen features, as in arXiv:2010.11929, section 4.1, with the settings of the
# authors' code: shots from the first 65,000 training images, L2 penalty 1,024.
_IMAGENET = {"name": "imagenet2012", "train_split": "train[:65000]", "test_split": "validation"}


def get_sweep(arg: str = "") -> Iterator[Job]:
    """Returns the jobs; for ARG see above."""
    scale = parse_arg(arg, scale=_SCALES)["scale"]
    if scale == "paper":
        for name, labels, chosen in _cells("ViT-B/16"):
            yield _paper(chosen, name, labels)
        return
    for seed in SMALL_SEEDS:  # The outer loop: a sweep that is stopped has whole seeds.
        for name, labels, chosen in _cells(SMALL_MODEL):
            yield Job(
                f"configs/cifar10_small.py:{SMALL_MODEL},fewshot",
                {"train_examples": SMALL_LENGTH, **chosen, "seed": seed},
                name=f"{name}/seed{seed}",
                labels=labels,
            )


def _cells(model: str) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    """Yields name, labels and settings of each cell of Table 8."""
    for kind, embedding in KINDS.items():
        for placement in PLACEMENTS if kind in PLACED else ("stem",):
            yield (
                f"{kind}/{placement.replace(' ', '-')}",
                {"model": model, "position": kind, "placement": placement},
                {
                    "model.position_embedding": embedding,
                    "model.position_placement": PLACEMENTS[placement],
                },
            )


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
    tables: list[dict[str, Any]] = [
        {"metric": _TEST, "title": "CIFAR-10 test accuracy", **_TABLE}
    ] + [
        {
            "metric": f"fewshot/{dataset}/25_shot/accuracy_top1",
            "title": f"{dataset}, linear 25-shot",
            **_TABLE,
        }
        for dataset in ("clothing_small", "sign_language_digits")
    ]
    plots = [
        {"x": "position", "y": _TEST, "series": "placement", "title": "CIFAR-10 test accuracy"}
    ]
    return asked | {"tables": tables, "plots": plots}


def _paper(settings: dict[str, Any], name: str, labels: dict[str, str]) -> Job:
    fewshot = {
        "fewshot.datasets": {"imagenet": _IMAGENET},
        "fewshot.shots": [5],
        "fewshot.l2": 1024.0,
        "fewshot.interval_epochs": 1.0,
    }
    return Job("configs/pretrain.py:jft,B/16", {**settings, **fewshot}, name=name, labels=labels)
