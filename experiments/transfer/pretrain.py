"""Pretraining on CIFAR-10 at 32 pixels: a ViT, a hybrid or a BiT ResNet of equal cost.

Command:   python -m vit_jax train --config=experiments/transfer/pretrain.py:ViT-Micro/4
           --workdir=runs/vit --config.data.data_dir=DATA     (ARG: model, default ViT-Micro/4)
Follows:   arXiv:2010.11929, section 4.1: class token and learned position embedding, Adam and the
           same hyperparameters for all models; weight decay, warmup and cosine decay are scaled
           down to CIFAR-10.
Expected:  see experiments/transfer/README.md.
Hardware:  2 CPU cores, ten to thirty minutes.
Data:      TFDS `cifar10`.
"""

import ml_collections

from vit_jax.config.file import parse_arg
from vit_jax.models.registry import list_models


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns the recipe; ARG is the model."""
    model = parse_arg(arg, model=("ViT-Micro/4", *list_models()))["model"]
    return ml_collections.ConfigDict(
        {
            "model": {"name": model},
            "data": {
                "name": "cifar10",
                "image_size": 32,
                "global_batch_size": 128,
                "augment": {"crop": "pad", "pad_pixels": 4},
                "eval_crop": "resize",
            },
            "optimizer": {
                "name": "adamw",
                "learning_rate": 2e-3,
                "weight_decay": 0.05,
                "clip_global_norm": 1.0,
                "schedule": {"warmup_epochs": 1.0},
            },
            "train_epochs": 8.0,
            # Microbatches of 32 fit a CPU's cache.
            "accumulation_steps": 4,
            "evaluation": {"splits": {"test": "test"}, "interval_epochs": 2.0},
            "checkpoint": {"interval_epochs": 1.0},
            "logging": {"interval_steps": 50},
        }
    )
