"""A small ViT on real handwritten digits, from nothing to a result in about a minute on a laptop.

Command:   python -m vit_jax train --config=configs/quickstart.py --workdir=runs/quickstart
Follows:   no paper; ViT of arXiv:2010.11929 shrunk to 8x8 images of scikit-learn's digits
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": "ViT-Ti/2", "width": 64, "depth": 4, "mlp_dim": 128, "num_heads": 4,
                "pooling": "gap",
            },
            "data": {
                "name": "digits", "image_size": 8, "global_batch_size": 128, "eval_crop": "resize",
                "augment": {"crop": "pad", "pad_pixels": 1, "flip": False},
            },
            "optimizer": {
                "name": "adamw", "learning_rate": 2e-3, "weight_decay": 0.1, "clip_global_norm":
                1.0, "schedule": {"decay": "cosine", "warmup_epochs": 5},
            },
            "loss": {"label_smoothing": 0.1},
            "train_epochs": 60,
            "evaluation": {"splits": {"test": "test"}, "interval_epochs": 10},
            "checkpoint": {"interval_epochs": 20},
            "logging": {"interval_steps": 20},
        }
    )  # fmt: skip
