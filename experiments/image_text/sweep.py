"""Text towers that read the locked features of a small ViT, beside linear probes of the features.

A ViT-Nano/4 is trained on nine tenths of CIFAR-10 with labels. For each dataset and each loss a
text tower learns from captions that are made from the names of the classes.

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/image_text/sweep.py
        --workdir=runs/image_text
"""

from collections.abc import Iterator

from vit_jax.sweep import Job

_FOLDER = "experiments/image_text"
SEEDS = (0, 1, 2)
DATASETS = ("cifar10", "clothing_small")
# Loss -> the options that it needs.
LOSSES = {"softmax": {}, "sigmoid": {"model.bias_init": -2.71}}

REPORT = {
    "title": "Image and text",
    "question": "How well does a text tower read the features of a locked image tower?",
    "tables": [
        {
            "rows": "loss",
            "columns": "dataset",
            "metric": "zeroshot/{dataset}/accuracy_top1",
            "where": {"kind": "pair"},
            "title": "Zero-shot accuracy",
        },
        {
            "rows": "tower",
            "columns": "dataset",
            "metric": "linear_probe/{dataset}/accuracy_top1",
            "where": {"kind": "tower"},
            "title": "Linear probe of the image tower",
        },
    ],
    "plots": [
        {
            "x": "loss",
            "y": "zeroshot/{dataset}/accuracy_top1",
            "panel": "dataset",
            "where": {"kind": "pair"},
            "title": "Zero-shot accuracy",
        }
    ],
    "curves": [],
}


def get_sweep(arg: str = "") -> Iterator[Job]:
    """Returns the jobs; there is no ARG."""
    del arg
    for seed in SEEDS:
        yield Job(
            f"{_FOLDER}/pairs.py:tower",
            {"seed": seed},
            name=f"tower/seed{seed}",
            labels={"kind": "tower", "tower": "ViT-Nano/4 on CIFAR-10"},
        )
        for dataset in DATASETS:
            for loss, options in LOSSES.items():
                yield Job(
                    f"{_FOLDER}/pairs.py:{dataset}",
                    {
                        "seed": seed,
                        "init_from": f"job:tower/seed{seed}",
                        "task.loss": loss,
                        **options,
                    },
                    name=f"{dataset}/{loss}/seed{seed}",
                    labels={"kind": "pair", "loss": loss},
                    stage="final",
                )
