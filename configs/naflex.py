"""NaFlex: a ViT for images of any aspect ratio at several sequence lengths; each step draws one.

Command:   python -m vit_jax train --config=configs/naflex.py --workdir=DIR
           --config.data.data_dir=DATA
           (ARG: imagenet2012, the default, or cifar10.)
Follows:   arXiv:2502.14786, section 2.4.2: patches of 16 pixels, a position table of 16 x 16 that
           is interpolated for each image, lengths 128, 256, 576, 784 and 1,024 drawn uniformly for
           each batch, attention pooling; only resizing and flips. Ours: SigLIP 2 adapts a model of
           texts and images; here a classifier learns ImageNet with the optimizer of
           arXiv:2205.01580. cifar10: all ours; its images are square.
Expected:  the paper has no classifier. Not run at full size.
Hardware:  imagenet2012: a TPU or GPU cluster. cifar10: 2 CPU cores, two minutes.
Data:      TFDS `imagenet2012` or `cifar10`.
"""

import ml_collections

from vit_jax.config.file import parse_arg

SEQUENCE_LENGTHS = (128, 256, 576, 784, 1024)
SMALL_SEQUENCE_LENGTHS = (4, 9, 16, 36, 64)


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns the recipe; ARG is `imagenet2012` (default) or `cifar10`."""
    recipe = parse_arg(arg, recipe=("imagenet2012", "cifar10"))["recipe"]
    make = {"imagenet2012": _imagenet, "cifar10": _cifar10}[recipe]
    return ml_collections.ConfigDict(make())


def _imagenet() -> dict:
    return {
        "model": {
            "name": "ViT-B/16",
            "dtype": "bfloat16",
            "pooling": "map",
            "position_grid": 16,
        },
        "flexible": {"sequence_lengths": SEQUENCE_LENGTHS},
        "data": {
            "name": "imagenet2012",
            "train_split": "train[:99%]",
            "global_batch_size": 1024,
            "sequence_length": max(SEQUENCE_LENGTHS),
            "augment": {"crop": {"name": "resize"}, "flip": True},
            "eval_crop": "resize",
        },
        "optimizer": {
            "name": "adamw",
            "learning_rate": 1e-3,
            "weight_decay": 0.1,
            "clip_global_norm": 1.0,
            "schedule": {"decay": "cosine", "warmup_steps": 10_000},
        },
        "train_epochs": 90.0,
        "evaluation": {
            "splits": {"minival": "train[99%:]"},
            "final_splits": {"validation": "validation"},
            "interval_epochs": 10.0,
        },
        "checkpoint": {"interval_steps": 1_000},
    }


def _cifar10() -> dict:
    return {
        "model": {"name": "ViT-Micro/6", "pooling": "map", "position_grid": 6},
        "flexible": {"sequence_lengths": SMALL_SEQUENCE_LENGTHS},
        "data": {
            "name": "cifar10",
            # For commands that give the model square images.
            "image_size": 48,
            "global_batch_size": 64,
            "sequence_length": max(SMALL_SEQUENCE_LENGTHS),
            "augment": {"crop": {"name": "pad", "pixels": 4}, "flip": True},
            "eval_crop": "resize",
        },
        "optimizer": {
            "name": "adamw",
            "learning_rate": 2e-3,
            "weight_decay": 0.05,
            "clip_global_norm": 1.0,
            "schedule": {"warmup_examples": 5_000},
        },
        "train_examples": 50_000,
        "evaluation": {"splits": {"test": "test"}, "batch_size": 200},
        "checkpoint": {"interval_examples": 25_600, "keep_last": 1},
        "logging": {"interval_steps": 25},
    }
