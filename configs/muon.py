"""ViT-S/16 of "Better plain ViT baselines" with Muon on its hidden matrices and AdamW on the rest.

Command:   python -m vit_jax train --config=configs/muon.py:90 --workdir=DIR
           --config.data.data_dir=DATA     (ARG: 90, 150 or 300 epochs; small: ViT-Micro/4 on
           CIFAR-10, for a CPU)
Follows:   configs/better_plain_vit.py (arXiv:2205.01580, Table 1), without antialiasing, but for
           the optimizer: Muon with Nesterov momentum 0.95 and five Newton-Schulz steps. Its updates
           are scaled to the root mean square 0.2 of AdamW's (arXiv:2502.16982, section 2.2), so
           that both parts share learning rate and weight decay. AdamW updates the patch embedding,
           position tables, class token, norms, biases and the head.
Differs:   from Keller Jordan's code: queries, keys and values are three matrices, each of all
           heads; timm's are one. The iterations run in float32, in bfloat16 there (updates within
           1e-2). On ImageNet the momentum is kept in bfloat16, as configs/better_plain_vit.py does
           for AdamW; there it has the type of the parameters. Ours: the learning rate of AdamW is
           kept, and no clipping, because Muon's updates have a fixed size.
Compared:  the optimizer: 20 steps with Muon 857d1ad, in float32 at small size:
           docs/explanation/reproduced.md.
Expected:  not published at this setting. arXiv:2605.24770 reports that Muon beats AdamW in ViTs,
           the more the stronger the augmentation. configs/better_plain_vit.py has the figures of
           AdamW to compare with. Neither size was run; on digits: docs/reference/recipes.md.
Hardware:  as configs/better_plain_vit.py: 90 epochs take 6 to 7 hours on a TPU v3-8 with AdamW.
Data:      TFDS `imagenet2012`; small: `cifar10`.
"""

import ml_collections

from vit_jax.config.file import parse_arg

_OPTIMIZER = {
    "name": "muon",
    "weight_decay": 0.1,
    "clip_global_norm": None,
    "options": {"consistent_rms": 0.2},
}


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns the recipe; ARG is the number of epochs, or `small`."""
    chosen = parse_arg(arg, length=("90", "150", "300", "small"))["length"]
    return ml_collections.ConfigDict(_small() if chosen == "small" else _imagenet(float(chosen)))


def _imagenet(epochs: float) -> dict:
    return {
        "model": {
            "name": "ViT-S/16",
            "pooling": "gap",
            "position_embedding": "sincos_2d",
            "dtype": "bfloat16",
        },
        "data": {
            "name": "imagenet2012",
            "train_split": "train[:99%]",
            "global_batch_size": 1024,
            "image_size": 224,
            "antialias": False,
            "augment": {
                "crop": {"name": "inception", "min_area": 0.05},
                "flip": True,
                "randaugment": {"layers": 2, "magnitude": 10.0},
                "mix": {"mixup_alpha": 0.2},
            },
        },
        "loss": {"name": "softmax_cross_entropy"},
        "optimizer": {
            **_OPTIMIZER,
            "learning_rate": 1e-3,
            "state_dtype": "bfloat16",
            "schedule": {"decay": "cosine", "warmup_steps": 10_000},
        },
        "train_epochs": epochs,
        "evaluation": {
            "splits": {"minival": "train[99%:]", "validation": "validation"},
            "interval_epochs": 5.0,
        },
        "checkpoint": {"interval_steps": 2_000, "keep_last": 2},
        "logging": {"interval_steps": 50},
    }


def _small() -> dict:
    return {
        "model": {"name": "ViT-Micro/4", "pooling": "gap"},
        "data": {
            "name": "cifar10",
            "image_size": 32,
            "global_batch_size": 128,
            "augment": {"flip": True},
            "eval_crop": "resize",
        },
        "optimizer": {
            **_OPTIMIZER,
            "learning_rate": 2e-3,
            "schedule": {"decay": "cosine", "warmup_epochs": 0.2},
        },
        "train_epochs": 2.0,
        "evaluation": {"splits": {"test": "test"}},
        "logging": {"interval_steps": 50},
    }
