"""Pretraining of one small ViT on CIFAR-10, with labels or without, and probes of its features.

Command:   python -m vit_jax train --config=experiments/no_labels/pretrain.py:mae --workdir=runs/mae
           --config.data.data_dir=DATA     (ARG: supervised, masked_patches, mae, dino)
Follows:   no paper. One optimizer for all: nothing was tuned. DINO's teacher keeps less than in the
           paper, because the runs are short.
Expected:  see experiments/no_labels/README.md.
Hardware:  a CPU core, some minutes.
Data:      TFDS `cifar10`. The probes use a twentieth of the training split, which pretraining does
           not see, and a quarter of the test split.
"""

import ml_collections

from vit_jax.config.file import parse_arg

TASKS = ("supervised", "masked_patches", "mae", "dino")
_OF_TASK = {
    "mae": {"task": {"name": "mae", "decoder_width": 32, "decoder_depth": 1, "decoder_heads": 2}},
    "dino": {
        "task": {
            "name": "dino",
            "local_crops": 2,
            "local_size": 16,
            "prototypes": 256,
            "head_width": 128,
            "bottleneck": 32,
            "momentum": 0.97,
        },
        "optimizer": {"freeze": ("projector/prototypes/.*",), "freeze_examples": 1000},
    },
}


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns the recipe; ARG is the task."""
    task = parse_arg(arg, task=TASKS)["task"]
    crop = {"flavour": "torchvision"} if task == "dino" else {"name": "pad", "pixels": 4}
    config = ml_collections.ConfigDict(
        {
            "task": {"name": "classification" if task == "supervised" else task},
            "model": {"name": "ViT-Nano/4", "scan": True},
            "data": {
                "name": "cifar10",
                "train_split": "train[10%:]",
                "image_size": 32,
                "global_batch_size": 64,
                "augment": {"crop": crop, "flip": True},
                "eval_crop": "resize",
            },
            "optimizer": {
                "name": "adamw",
                "learning_rate": 2e-3,
                "weight_decay": 0.05,
                "clip_global_norm": 1.0,
                "schedule": {"warmup_examples": 1000},
            },
            "train_steps": 100,
            "fewshot": {
                "datasets": {
                    "cifar10": {
                        "name": "cifar10",
                        "train_split": "train[:5%]",
                        "test_split": "test[:25%]",
                        "crop": "resize",
                    }
                },
                "methods": ("knn", "linear_probe"),
                "features": "pooled",
                "probe_c": (1e-3, 1e-2, 1e-1),
                "batch_size": 250,
            },
            "checkpoint": {"interval_steps": 1000},
            "logging": {"interval_steps": 25, "tensorboard": False},
        }
    )
    config.update(_OF_TASK.get(task, {}))
    return config
