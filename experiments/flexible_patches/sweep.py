"""One model for five sequence lengths against models made for each.

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --at_once=2
        --sweep=experiments/flexible_patches/sweep.py --workdir=runs/flexible_patches

flexivit  (default) the patch size is drawn, images stay the same (arXiv:2212.08013, Figure 3)
naflex    the sequence length is drawn, images are resized (arXiv:2502.14786)

flexivit,long and naflex,long train larger models with more seeds.
"""

from collections.abc import Iterator
from typing import Any

from vit_jax.config.file import parse_arg
from vit_jax.sweep import Job

# 48 pixels: 4, 9, 16, 36 and 64 patches.
IMAGE_SIZE, PATCH_SIZES = 48, (24, 16, 12, 8, 6)
SEQUENCE_LENGTHS = (4, 9, 16, 36, 64)
# Model, images seen, seeds.
SCALES = {"short": ("Nano", 25_600, (0, 1)), "long": ("Micro", 150_000, (0, 1, 2))}


def get_report(arg: str = "") -> dict[str, Any]:
    """Returns the tables of the report."""
    is_naflex = _chosen(arg)["method"] == "naflex"
    what = "sequence length" if is_naflex else "patch size in pixels"
    return {
        "title": "NaFlex" if is_naflex else "FlexiViT",
        "question": "Does one model for five sequence lengths reach models made for each?",
        "tables": [
            {
                "metric": f"eval/test@{'n' if is_naflex else 'p'}{{size}}/accuracy_top1",
                "rows": "model",
                "columns": "size",
                "title": f"Accuracy on the test split, by {what}",
            }
        ],
        "plots": [],
        "curves": [],
    }


def _chosen(arg: str) -> dict[str, str]:
    return parse_arg(arg, method=("flexivit", "naflex"), scale=tuple(SCALES))


def get_sweep(arg: str = "") -> Iterator[Job]:
    """Returns the jobs; ARG is METHOD,SCALE, each part optional."""
    chosen = _chosen(arg)
    jobs = {"flexivit": _flexivit, "naflex": _naflex}[chosen["method"]]
    return jobs(*SCALES[chosen["scale"]])


def _shared(images: int, seed: int) -> dict[str, Any]:
    return {"train_examples": images, "checkpoint.interval_examples": images, "seed": seed}


def _only(size: int, sizes: tuple[int, ...]) -> tuple[float, ...]:
    """Returns the probabilities of a model that trains at one size and is evaluated at all."""
    return tuple(float(one == size) for one in sizes)


def _flexivit(model: str, images: int, seeds: tuple[int, ...]) -> Iterator[Job]:
    for seed in seeds:
        shared = {**_shared(images, seed), "flexible.patch_sizes": PATCH_SIZES}
        yield Job(
            "configs/flexivit.py:cifar10",
            {**shared, "model.name": f"ViT-{model}/8"},
            name=f"flexible/seed{seed}",
            labels={"model": "FlexiViT"},
        )
        for size in PATCH_SIZES:
            yield Job(
                "configs/flexivit.py:cifar10",
                {
                    **shared,
                    "model.name": f"ViT-{model}/{size}",
                    # Its own parameters are a plain ViT's.
                    "model.patch_kernel_size": size,
                    "model.position_grid": IMAGE_SIZE // size,
                    "flexible.probabilities": _only(size, PATCH_SIZES),
                },
                name=f"size{size}/seed{seed}",
                labels={"model": f"made for patch size {size}"},
            )


def _naflex(model: str, images: int, seeds: tuple[int, ...]) -> Iterator[Job]:
    for seed in seeds:
        shared = {**_shared(images, seed), "model.name": f"ViT-{model}/6"}
        yield Job(
            "configs/naflex.py:cifar10",
            shared,
            name=f"flexible/seed{seed}",
            labels={"model": "NaFlex"},
        )
        for length in SEQUENCE_LENGTHS:
            yield Job(
                "configs/naflex.py:cifar10",
                {**shared, "flexible.probabilities": _only(length, SEQUENCE_LENGTHS)},
                name=f"length{length}/seed{seed}",
                labels={"model": f"made for {length} patches"},
            )
