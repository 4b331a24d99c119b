"""Short runs on CIFAR-10 at 32 pixels: one recipe for all models, for studies on two CPU cores.

Command:   python -m vit_jax train --config=configs/cifar10_small.py:ViT-Micro/4
           --workdir=runs/small --config.data.data_dir=DATA
           (ARG: MODEL,fewshot; `fewshot` adds a few-shot evaluation of the features on two photo
           datasets after training. --config.train_examples=N sets the length.)
Follows:   arXiv:2010.11929, section 4.1 and Table 3, scaled down to CIFAR-10: class token, learned
           position embedding, a warmup of fixed length, Adam with decoupled weight decay, the same
           for all models. Ours: batch size 64, cosine decay, clipping at 1.0, shifts by 4 pixels.
Expected:  see experiments/position_embeddings, head_norm_shape and compute.
Hardware:  2 CPU cores; ViT-Micro/4 trains on 50,000 images in one to three minutes.
Data:      TFDS `cifar10`; for `fewshot` also `clothing_small` and `sign_language_digits`.
"""

import ml_collections

from vit_jax.config.file import parse_arg
from vit_jax.models.registry import list_models

FEWSHOT_DATASETS = ("clothing_small", "sign_language_digits")


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns the recipe of a model; ARG is MODEL,fewshot, each part optional."""
    chosen = parse_arg(arg, model=("ViT-Micro/4", *list_models()), features=("unused", "fewshot"))
    config = ml_collections.ConfigDict(
        {
            "model": {"name": chosen["model"]},
            "data": {
                "name": "cifar10",
                "image_size": 32,
                "global_batch_size": 64,
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
            # Microbatches of 32 fit a CPU's cache.
            "accumulation_steps": 2,
            "evaluation": {"splits": {"test": "test"}, "batch_size": 128},
            "checkpoint": {"interval_examples": 25_600, "keep_last": 1},
            "logging": {"interval_steps": 25},
        }
    )
    if chosen["features"] == "fewshot":
        datasets = {name: {"name": name, "crop": "resize"} for name in FEWSHOT_DATASETS}
        config.update({"fewshot": {"datasets": datasets, "shots": (5, 25)}})
    return config
