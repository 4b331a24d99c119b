"""Position embeddings: none, 1-D, 2-D or relative; at the stem, in every layer, or shared.

small      (default) ViT-Nano/4 on 51,200 images of CIFAR-10 at 32 pixels, twelve seeds; evaluated
           on the test split and few-shot on two photo datasets. TFDS_DATA_DIR holds cifar10,
           clothing_small and sign_language_digits. A seed gives all kinds the same order of the
           data. 17,000 core-seconds, 2.4 hours of two cores, and half an hour for elsewhere.py
pilot      `none` and `1-D` at the stem with the first four seeds of `small`, 1,400 core-seconds. If
           they are not told apart, runs of this length are too short for any kind to matter, and
           `small` would show an equality that means nothing. `small` goes on in the same folder
two_seeds  ViT-Micro/4, 160,000 images, two seeds: the committed results
gpu        ViT-Micro/4, 160,000 images, forty seeds
paper      arXiv:2010.11929, D.4, Table 8: ViT-B/16 on JFT, linear 5-shot on ImageNet. `jft` is
           your own dataset: see configs/pretrain.py

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/position_embeddings/sweep.py
        --workdir=runs/positions --at_once=2

`detectable` says which differences so many seeds can show: with a deviation of 1.07 points over
seeds, that of the committed runs, twelve seeds show 1.3 points, two seeds 5.7 (power 80 %,
two-sided at 5 %). So the margin of equality is one point, and not half a point.
"""

import math
from collections.abc import Iterator
from typing import Any

from scipy import stats

from vit_jax.config.file import parse_arg
from vit_jax.sweep import Job

# Rows of Table 8 -> model.position_embedding. "none" has nothing to place, and relative attention
# is always in every layer: Table 8 lists both in its first column.
KINDS = {"none": "none", "1-D": "learned_1d", "2-D": "learned_2d", "relative": "relative"}
PLACEMENTS = {"stem": "stem", "every layer": "every_layer", "shared": "shared"}
PLACED = ("1-D", "2-D")

# Scale -> model, images seen, seeds.
SMALL = {
    "small": ("ViT-Nano/4", 51_200, range(12)),
    "pilot": ("ViT-Nano/4", 51_200, range(4)),
    "two_seeds": ("ViT-Micro/4", 160_000, range(2)),
    "gpu": ("ViT-Micro/4", 160_000, range(40)),
}
PILOT = (("none", "stem"), ("1-D", "stem"))
# Differences in accuracy that do not matter, by scale.
MARGINS = {"small": 0.01, "gpu": 0.005}
_SCALES = (*SMALL, "paper")
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
    model, examples, seeds = SMALL[scale]
    for seed in seeds:  # The outer loop: a sweep that is stopped has whole seeds.
        for name, labels, chosen in _cells(model):
            if scale == "pilot" and (labels["position"], labels["placement"]) not in PILOT:
                continue
            yield Job(
                f"configs/cifar10_small.py:{model},fewshot",
                {"train_examples": examples, **chosen, "seed": seed},
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


def detectable(deviation: float, seeds: int) -> float:
    """Returns the smallest difference of two kinds that is found with a power of 80 %.

    Args:
        deviation: standard deviation over seeds, in any unit.
        seeds: of each kind, not paired. 0.975 and 0.8 quantiles of Student's t distribution.

    >>> round(detectable(1.07, 12), 1), round(detectable(1.07, 40), 1)
    (1.3, 0.7)
    """
    freedom = 2 * (seeds - 1)
    quantiles = stats.t.ppf(0.975, freedom) + stats.t.ppf(0.8, freedom)
    return float(quantiles) * deviation * math.sqrt(2 / seeds)


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
    if scale in MARGINS or scale == "pilot":
        tables.append(
            {
                "metric": _TEST,
                "title": "Every kind against 1-D at the stem",
                "rows": "position+placement",
                "columns": "dataset",
                "against": "1-D · stem",
                **({"margin": MARGINS[scale]} if scale in MARGINS else {}),
            }
        )
    plots = [
        {
            "x": "position",
            "y": _TEST,
            "series": "placement",
            "title": "CIFAR-10 test accuracy",
        }
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
