"""One model for five sequence lengths against models made for each.

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --at_once=2
        --sweep=experiments/flexible_patches/sweep.py --workdir=runs/flexible_patches

The patch size is drawn, images stay the same (arXiv:2212.08013, Figure 3).
"""

from collections.abc import Iterator

from vit_jax.sweep import Job

# 48 pixels: 4, 9, 16, 36 and 64 patches.
IMAGE_SIZE, PATCH_SIZES = 48, (24, 16, 12, 8, 6)
MODEL, LENGTH, SEEDS = "Nano", 25_600, (0, 1)
REPORT = {
    "title": "FlexiViT",
    "question": "Does one model for five sequence lengths reach models made for each?",
    "tables": [
        {
            "metric": "eval/test@p{size}/accuracy_top1",
            "rows": "model",
            "columns": "size",
            "title": "Accuracy on the test split by patch size in pixels",
        }
    ],
    "plots": [
        {
            "x": "size",
            "y": "eval/test@p{size}/accuracy_top1",
            "title": "Accuracy on the test split by patch size in pixels",
        }
    ],
    "curves": [],
}


def get_sweep() -> Iterator[Job]:
    """Returns the jobs."""
    for seed in SEEDS:
        shared = {
            "train_examples": LENGTH,
            "checkpoint.interval_examples": LENGTH,
            "seed": seed,
            "flexible.patch_sizes": PATCH_SIZES,
        }
        yield Job(
            "configs/flexivit.py:cifar10",
            {**shared, "model.name": f"ViT-{MODEL}/8"},
            name=f"flexible/seed{seed}",
            labels={"model": "FlexiViT"},
        )
        for size in PATCH_SIZES:
            yield Job(
                "configs/flexivit.py:cifar10",
                {
                    **shared,
                    "model.name": f"ViT-{MODEL}/{size}",
                    # Its own parameters are a plain ViT's.
                    "model.patch_kernel_size": size,
                    "model.position_grid": IMAGE_SIZE // size,
                    "flexible.probabilities": tuple(float(one == size) for one in PATCH_SIZES),
                },
                name=f"size{size}/seed{seed}",
                labels={"model": f"made for patch size {size}"},
            )
