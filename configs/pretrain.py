"""Pretraining as in the ViT paper (arXiv:2010.11929, Table 3): ImageNet-1k, ImageNet-21k, JFT.

ViTs on all three datasets; hybrids (R50+B/16) and BiT ResNets (R50x1) on JFT.

Command:   python -m vit_jax train --config=configs/pretrain.py:imagenet2012,B/16 --workdir=DIR
           --config.data.data_dir=DATA     (ARG: DATASET,MODEL[,EPOCHS], see ROWS below)
Follows:   Table 3: batch size 4096, 224 px, Adam with b1 0.9 and b2 0.999, 10k warmup steps,
           decoupled weight decay; clipping at 1.0 on ImageNet. From the authors' repository: on
           ImageNet-21k and JFT sigmoid cross-entropy, a tanh layer before the head, head bias -10,
           linear decay to 1e-5, resizing without antialiasing. ResNets have no dropout and, like
           BiT, no tanh layer. R200x3 is missing: Table 6 gives its scores, but Table 3 has no row
           for it.
Compared:  imagenet21k: 40 steps with big_vision 0127fb6, in float32 at small size:
           docs/explanation/reproduced.md.
Expected:  after fine-tuning at 384 px, ImageNet top-1 (Table 5; hybrids and ResNets: Table 6):
             ImageNet     B/16 77.91 (reproductions: 77.5 to 79.5), B/32 73.38, L/16 76.53,
                          L/32 71.16
             ImageNet-21k B/16 83.97, B/32 81.28, L/16 85.15, L/32 80.99
             JFT          B/16 84.15, B/32 80.73, L/16 87.12 (14 epochs), L/32 84.37, H/14 88.04
                          R50+B/16 85.58, R50+B/32 84.90, R50+L/16 87.12 (14 epochs), R50+L/32 85.68
                          R50x1 77.54, R50x2 82.12, R101x1 80.67, R152x1 81.88, R152x2 84.97
           Standard deviation over three runs: 0.02 to 0.05 points (Table 2).
Hardware:  a TPU or GPU cluster. In the paper, L/16 on ImageNet-21k took 230 TPUv3 core-days, L/16
           and H/14 on JFT 680 and 2,500. Reproductions of B/16 for 300 ImageNet epochs took 15
           hours on 8 A100s.
Data:      TFDS `imagenet2012`. ImageNet-21k: docs/tutorials/pod.md, step 2. JFT-300M is not public:
           set --config.data.name to a dataset of yours.
"""

import ml_collections

from vit_jax.config.file import parse_arg
from vit_jax.errors import ConfigError

# dataset -> model -> (epochs in the paper, the default first; learning rate). Source: Table 3.
ROWS = {
    "imagenet2012": dict.fromkeys(("B/16", "B/32", "L/16", "L/32"), ((300,), 3e-3)),
    "imagenet21k": {
        "B/16": ((90,), 1e-3),
        "B/32": ((90,), 1e-3),
        "L/16": ((90, 30), 1e-3),
        "L/32": ((90, 30), 1e-3),
    },
    "jft": {
        "B/16": ((7,), 8e-4),
        "B/32": ((7,), 8e-4),
        "L/32": ((7,), 6e-4),
        "L/16": ((14, 7), 4e-4),
        "H/14": ((14,), 3e-4),
        "R50x1": ((7,), 1e-3),
        "R50x2": ((7,), 1e-3),
        "R101x1": ((7,), 8e-4),
        "R152x1": ((7,), 6e-4),
        "R152x2": ((7,), 6e-4),
        "R50+B/16": ((7,), 8e-4),
        "R50+B/32": ((7,), 8e-4),
        "R50+L/32": ((7,), 2e-4),
        "R50+L/16": ((14, 7), 4e-4),
    },
}
# dataset -> settings of all its rows.
_SETTINGS = {
    "imagenet2012": {"weight_decay": 0.3, "dropout": 0.1, "decay": "cosine", "clip": 1.0},
    "imagenet21k": {"weight_decay": 0.03, "dropout": 0.1, "decay": "linear", "clip": None},
    "jft": {"weight_decay": 0.1, "dropout": 0.0, "decay": "linear", "clip": None},
}


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns one row of Table 3; ARG is DATASET,MODEL[,EPOCHS]."""
    chosen = parse_arg(
        arg,
        dataset=tuple(ROWS),
        model=tuple(ROWS["jft"]),
        epochs=("usual", 7, 14, 30, 90, 300),
    )
    dataset, model = chosen["dataset"], chosen["model"]
    allowed, learning_rate = ROWS[dataset].get(model, ((), 0.0))
    epochs = allowed[0] if allowed and chosen["epochs"] == "usual" else chosen["epochs"]
    if epochs not in allowed:
        rows = ", ".join(f"{m} {'|'.join(map(str, e))}" for m, (e, _) in ROWS[dataset].items())
        raise ConfigError(
            f"the paper has no row {dataset},{model} with {epochs} epochs",
            rows,
            "pick one of these",
        )
    settings = _SETTINGS[dataset]
    large = dataset != "imagenet2012"
    return ml_collections.ConfigDict(
        {
            "model": _model(model, settings["dropout"], -10.0 if large else 0.0),
            "data": {
                "name": dataset,
                "train_split": "train[:99%]" if dataset == "imagenet2012" else "train",
                "global_batch_size": 4096,
                "image_size": 224,
                "antialias": False,
                "augment": {"crop": {"name": "inception", "min_area": 0.05}, "flip": True},
            },
            "loss": {"name": "sigmoid_cross_entropy" if large else "softmax_cross_entropy"},
            "optimizer": {
                "name": "adamw",
                "learning_rate": learning_rate,
                "weight_decay": settings["weight_decay"],
                "clip_global_norm": settings["clip"],
                "schedule": {
                    "decay": settings["decay"],
                    "warmup_steps": 10_000,
                    "end_learning_rate": 1e-5 if settings["decay"] == "linear" else 0.0,
                },
            },
            "train_epochs": float(epochs),
            "evaluation": _evaluation(dataset),
            "checkpoint": {"interval_steps": 5_000, "keep_last": 2},
            "logging": {"interval_steps": 100},
        }
    )


def _model(model: str, dropout: float, head_bias: float) -> dict:
    shared = {"head_bias_init": head_bias, "dtype": "bfloat16"}
    stem, plus, vit = model.rpartition("+")
    if "/" not in vit:
        return {"name": f"BiT-{model}", **shared}
    width = {"B": 768, "L": 1024, "H": 1280}[vit[0]]
    name = f"{stem}{plus}ViT-{vit}"
    return {"name": name, "dropout": dropout, "representation_size": width, **shared}


def _evaluation(dataset: str) -> dict:
    if dataset != "imagenet2012":
        return {}
    splits = {"minival": "train[99%:]", "validation": "validation"}
    return {"splits": splits, "interval_epochs": 5.0}
