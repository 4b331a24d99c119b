"""Supervised training at 32 pixels, the same from pretrained weights and from scratch.

Command:   python -m vit_jax train --config=experiments/masked_patches/finetune.py:cifar10
           --workdir=runs/finetune --config.init_from=RUN --config.data.data_dir=DATA
           (ARG: cifar10, trained on a tenth of it, clothing_small or
           sign_language_digits). From scratch:
           --config.model.name=ViT-Micro/4 without init_from
Follows:   no paper. AdamW at one learning rate for all runs: SGD at the paper's fine-tuning rates
           does not suit training from scratch.
Expected:  see experiments/masked_patches/README.md.
Hardware:  a CPU core, one or two minutes.
Data:      TFDS `cifar10`, `clothing_small` or `sign_language_digits`.
"""

import ml_collections

from vit_jax.config.file import parse_arg

# dataset -> (training split, crop).
_DATASETS = {
    "cifar10": ("train[:10%]", {"name": "pad", "pixels": 4}),
    "clothing_small": ("train", {"name": "inception", "min_area": 0.3}),
    "sign_language_digits": ("train", {"name": "inception", "min_area": 0.3}),
}


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns the recipe; ARG is the dataset."""
    dataset = parse_arg(arg, dataset=tuple(_DATASETS))["dataset"]
    split, crop = _DATASETS[dataset]
    return ml_collections.ConfigDict(
        {
            "model": {"name": "auto"},
            "data": {
                "name": dataset,
                "train_split": split,
                "image_size": 32,
                "global_batch_size": 64,
                "augment": {"crop": crop, "flip": True},
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
