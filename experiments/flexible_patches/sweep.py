"""One model for five sequence lengths against models made for each (arXiv:2212.08013, Figure 3).

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/flexible_patches/sweep.py
        --workdir=runs/flexible_patches --at_once=2

short  (default) ViT-Nano on 25,600 images of CIFAR-10, two seeds
long   ViT-Micro on 150,000 images, three seeds
"""

from collections.abc import Iterator

from vit_jax.config.file import parse_arg
from vit_jax.sweep import Job

# 48 pixels: 4, 9, 16, 36 and 64 patches.
IMAGE_SIZE, PATCH_SIZES = 48, (24, 16, 12, 8, 6)
# Model, images seen, seeds.
SCALES = {"short": ("Nano", 25_600, (0, 1)), "long": ("Micro", 150_000, (0, 1, 2))}
REPORT = {
    "title": "Flexible patches",
    "question": "Does one model for five sequence lengths reach models made for each?",
    "tables": [
        {
            "metric": "eval/test@{patch}/accuracy_top1",
            "rows": "model",
            "columns": "patch",
            "title": "Accuracy on the test split, by patch size in pixels",
        }
    ],
    "plots": [],
    "curves": [],
}


def get_sweep(arg: str = "") -> Iterator[Job]:
    """Returns the jobs; ARG is `short` (default) or `long`."""
    model, images, seeds = SCALES[parse_arg(arg, scale=tuple(SCALES))["scale"]]
    shared = {
        "flexible.patch_sizes": PATCH_SIZES,
        "train_examples": images,
        "checkpoint.interval_examples": images,
    }
    for seed in seeds:
        yield Job(
            "configs/flexivit.py:cifar10",
            {**shared, "model.name": f"ViT-{model}/8", "seed": seed},
            name=f"flexible/seed{seed}",
            labels={"model": "FlexiViT", "made_for": "all"},
        )
        for size in PATCH_SIZES:
            yield Job(
                "configs/flexivit.py:cifar10",
                {
                    **shared,
                    "model.name": f"ViT-{model}/{size}",
                    # Its own parameters are a plain ViT's. Other sizes are only evaluated.
                    "model.patch_kernel_size": size,
                    "model.position_grid": IMAGE_SIZE // size,
                    "flexible.probabilities": tuple(float(s == size) for s in PATCH_SIZES),
                    "seed": seed,
                },
                name=f"size{size}/seed{seed}",
                labels={"model": f"made for patch size {size}", "made_for": f"p{size}"},
            )
