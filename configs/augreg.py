"""Pretraining as in "How to train your ViT?" (arXiv:2106.10270): augmentation and regularisation.

Command:   python -m vit_jax train --config=configs/augreg.py:B/16,imagenet21k,medium1
           --workdir=DIR --config.data.data_dir=DATA
           (ARG: MODEL,DATASET,LEVEL,REGULARISATION,WEIGHT DECAY,EPOCHS in any order, all optional)
Follows:   section 3: batch size 4096, Adam, cosine schedule, 10k warmup steps, peak learning rate
           1e-3, clipping at 1.0. There are 28 settings: LEVELS x {reg0, reg1: dropout 0.1 and
           stochastic depth 0.1} x weight decay {0.03, 0.1} (times the learning rate). ImageNet-1k
           has the loss of ImageNet-21k, with a bias of -6.9 (big_vision's vit_i1k.py). Resizing
           without antialiasing, as in the authors' code.
Differs:   the class token has a position, as in vision_transformer and the published weights; in
           big_vision it has none (loss within 2.6e-3 after 64 steps). There is no tanh layer, which
           the paper dropped and vit_i1k.py has.
Compared:  imagenet21k, imagenet2012: 40 steps with big_vision 0127fb6, in float32 at small size:
           docs/explanation/reproduced.md.
Expected:  ImageNet top-1 after fine-tuning at 224 px with the best setting (Table 3):
                                   Ti/16  S/32   S/16   B/32   B/16   L/16
             ImageNet, 300 epochs  69.56  69.19  77.51  71.38  78.73  74.01
             ImageNet-21k, 30      68.89  68.49  76.04  72.24  80.42  82.05
             ImageNet-21k, 300     73.75  73.47  80.46  79.13  83.96  83.98
                                   R+Ti/16  R26+S/32  R50+L/32
             ImageNet, 300 epochs    67.30     78.20     74.17
             ImageNet-21k, 30        65.65     77.42     80.26
             ImageNet-21k, 300       69.69     80.81     82.74
Hardware:  TPU v3 slices in the paper; the whole study took thousands of core-days.
Data:      TFDS `imagenet2012`. ImageNet-21k: docs/tutorials/pod.md, step 2.
"""

import ml_collections

from vit_jax.config.file import parse_arg

MODELS = ("B/16", "B/32", "Ti/16", "S/16", "S/32", "L/16", "R+Ti/16", "R26+S/32", "R50+L/32")


def _level(magnitude: float, mixup_alpha: float) -> dict:
    mix = {"mix": {"mixup_alpha": mixup_alpha}} if mixup_alpha else {}
    return {"randaugment": {"layers": 2, "magnitude": magnitude}, **mix}


# level -> augmentation. Source: section 3.2.
LEVELS = {
    "none": {},
    "light1": _level(0.0, 0.0),
    "light2": _level(10.0, 0.2),
    "medium1": _level(15.0, 0.2),
    "medium2": _level(15.0, 0.5),
    "strong1": _level(20.0, 0.5),
    "strong2": _level(20.0, 0.8),
}


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns one setting; for ARG see above."""
    chosen = parse_arg(
        arg,
        model=MODELS,
        dataset=("imagenet2012", "imagenet21k"),
        level=tuple(LEVELS),
        regularisation=("reg0", "reg1"),
        weight_decay=(0.03, 0.1),
        epochs=(300, 30),
    )
    large = chosen["dataset"] == "imagenet21k"
    rate = 0.1 if chosen["regularisation"] == "reg1" else 0.0
    return ml_collections.ConfigDict(
        {
            "model": {
                "name": _name(chosen["model"]),
                "dropout": rate,
                "stochastic_depth": rate,
                "head_bias_init": -10.0 if large else -6.9,
                "dtype": "bfloat16",
            },
            "data": {
                "name": chosen["dataset"],
                "train_split": "train" if large else "train[:99%]",
                "global_batch_size": 4096,
                "image_size": 224,
                "antialias": False,
                "augment": {
                    "crop": {"name": "inception", "min_area": 0.05},
                    "flip": True,
                    **LEVELS[chosen["level"]],
                },
            },
            "loss": {"name": "sigmoid_cross_entropy"},
            "optimizer": {
                "name": "adamw",
                "learning_rate": 1e-3,
                "weight_decay": chosen["weight_decay"],
                "clip_global_norm": 1.0,
                "state_dtype": "bfloat16",
                "schedule": {"decay": "cosine", "warmup_steps": 10_000},
            },
            "train_epochs": float(chosen["epochs"]),
            "evaluation": {}
            if large
            else {
                "splits": {"minival": "train[99%:]", "validation": "validation"},
                "interval_epochs": 10.0,
            },
            "checkpoint": {"interval_steps": 5_000, "keep_last": 2},
            "logging": {"interval_steps": 100},
        }
    )


def _name(model: str) -> str:
    """Converts the paper's short name to the registered one: "R26+S/32" to "R26+ViT-S/32"."""
    stem, plus, size = model.rpartition("+")
    return f"{stem}{plus}ViT-{size}"
