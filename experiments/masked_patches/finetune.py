"""Supervised training at 32 pixels, from other weights or from nothing, the same for all.

Command:   python -m vit_jax train --config=experiments/masked_patches/finetune.py:cifar10
           --workdir=runs/finetune --config.init_from=RUN --config.data.data_dir=DATA
           (ARG: cifar10, of which a tenth is trained on, or clothing_small). From nothing:
           --config.model.name=ViT-Micro/4 and no init_from
Follows:   no paper: AdamW and one learning rate for all, so that training from nothing, which SGD
           at the paper's fine-tuning rates does not suit, is compared at equal settings.
Expected:  see experiments/masked_patches/README.md.
Hardware:  a CPU core, one or two minutes.
Data:      TFDS `cifar10` or `clothing_small` prepared as ArrayRecord.
"""

import ml_collections

from vit_jax.config.file import parse_arg

# dataset -> split that is trained on, and its augmentation.
_DATASETS = {
    "cifar10": ("train[:10%]", {"crop": "pad", "pad_pixels": 4}),
    "clothing_small": ("train", {"crop": "inception", "min_area": 0.3}),
}


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns the recipe of a dataset."""
    dataset = parse_arg(arg, dataset=tuple(_DATASETS))["dataset"]
    split, augment = _DATASETS[dataset]
    return ml_collections.ConfigDict(
        {
            "model": {"name": "auto"},
            "data": {
                "name": dataset,
                "train_split": split,
                "image_size": 32,
                "global_batch_size": 64,
                "augment": augment,
                "eval_crop": "resize",
            },
            "optimizer": {
                "name": "adamw",
                "learning_rate": 1e-3,
                "weight_decay": 0.05,
                "clip_global_norm": 1.0,
                "schedule": {"warmup_steps": 30},
            },
            "train_steps": 300,
            "accumulation_steps": 2,
            "evaluation": {"splits": {"test": "test"}},
            "checkpoint": {"interval_steps": 300},
            "logging": {"interval_steps": 30},
        }
    )
