"""A small ViT from scratch on your own photos, small enough for a CPU.

Command:   python -m vit_jax train --config=configs/folder.py --workdir=runs/mine
           --config.data.data_dir=PHOTOS     (ARG: whole, the default, or split)
Follows:   no paper; "Better plain ViT baselines" (arXiv:2205.01580) scaled down to 64 pixels:
           patch size 8, sincos position embedding, average pooling.
Expected:  top-1 0.40 on 307 photos of 10 kinds of clothing after training on 2,761 (seed 0, one
           run; the largest class has 0.26 of the photos). A starting point, not a tuned recipe.
Hardware:  2 CPU cores, 3 minutes for 2,761 photos of 400 x 533 pixels.
Data:      whole: PHOTOS/CLASS/IMAGE; a tenth of every class is held out for evaluation. split:
           PHOTOS/{train,val}/CLASS/IMAGE. Every folder is a class.
           `python -m vit_jax data check PHOTOS` finds unreadable files.
"""

import ml_collections

from vit_jax.config.file import parse_arg


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns the recipe; ARG is `whole` (default) or `split`."""
    whole = parse_arg(arg, layout=("whole", "split"))["layout"] == "whole"
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": "ViT-Ti/8",
                "width": 128,
                "depth": 6,
                "mlp_dim": 256,
                "num_heads": 2,
                "pooling": "gap",
                "position_embedding": "sincos_2d",
            },
            "data": {
                "source": "folder",
                "name": "folder",
                "train_split": "train[:90%]" if whole else "train",
                "image_size": 64,
                "global_batch_size": 64,
                "augment": {"crop": {"name": "inception", "min_area": 0.5}, "flip": True},
                "eval_crop": "central",
            },
            "loss": {"label_smoothing": 0.1},
            "optimizer": {
                "name": "adamw",
                "learning_rate": 2e-3,
                "weight_decay": 0.05,
                "clip_global_norm": 1.0,
                "schedule": {"decay": "cosine", "warmup_epochs": 1.0},
            },
            "train_epochs": 10.0,
            "evaluation": {
                "splits": {"dev": "train[90%:]"} if whole else {"val": "val"},
                "interval_epochs": 5.0,
            },
            "checkpoint": {"interval_epochs": 5.0},
            "logging": {"interval_steps": 20},
        }
    )
