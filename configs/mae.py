"""Masked autoencoder: pretraining without labels, and fine-tuning after it (arXiv:2111.06377).

Three quarters of the patches are dropped before the encoder. A small decoder predicts the pixels of
the hidden patches. Labels are not used.

Command:   python -m vit_jax train --config=configs/mae.py:B/16 --workdir=runs/mae
           --config.data.data_dir=DATA     (ARG: MODEL,EPOCHS,STAGE in any order, all optional)
           MODEL   B/16 (default), L/16, H/14; small: ViT-Micro/4 on CIFAR-10, for a CPU
           EPOCHS  800 (default), 1600; of pretraining
           STAGE   pretrain (default); finetune: add --config.init_from=runs/mae
           For other datasets fine-tune with configs/transfer.py and --config.init_from=runs/mae.
Follows:   pretraining: the paper's Table 8: batch 4096, AdamW with b2 0.95, learning rate 1.5e-4 *
           batch / 256, 40 epochs of warmup, weight decay 0.05, crops of at least 20 % of the area;
           normalised pixels; a decoder 512 wide, 8 deep; bicubic crops. finetune: Table 9 and the
           authors' FINETUNE.md: batch 1024, layer-wise decay, timm's RandAugment, mixup, CutMix.
           The authors' code: fixed positions, which fine-tuning trains; targets normalised by
           ImageNet's mean and deviation; a new norm after the pooling, where pretraining's final
           norm is dropped; class token and positions are not decayed in fine-tuning.
Differs:   images enter the model in [-1, 1], with 0.45 times the deviation of the authors' inputs,
           which the patch embedding can learn. finetune: one kind and share of mixing for the whole
           batch; there each device draws its own.
Compared:  pretraining and finetune: 30 steps each with mae efb2a80, in float32 at small size:
           docs/explanation/reproduced.md.
Expected:  ImageNet top-1 after 1600 epochs and fine-tuning at 224 pixels: B/16 83.6, L/16 85.9,
           H/14 86.9 % (Table 3); linear probe 68.0, 75.8, 76.6 % (FINETUNE.md). Over 4 seeds of
           fine-tuning B/16 83.57 +- 0.08, L/16 85.87 +- 0.07. L/16 after 800 epochs: 85.4 %. Not
           reproduced with this code. small: not run to its end; experiments/no_labels/README.md
           has runs of ViT-Nano/4.
Hardware:  the authors' L/16, 800 epochs: 42 h on 64 V100; fine-tuning: B/16 7 h, L/16 9 h on 32,
           H/14 13 h on 64. `python -m vit_jax plan` estimates other devices.
Data:      TFDS `imagenet2012`, prepared as ArrayRecord; small: `cifar10`.
"""

import ml_collections

from vit_jax.config.file import parse_arg

_EPOCHS = ("800", "1600")
# All but biases and norms is decayed, as in the authors' code; in fine-tuning, class token and
# positions are not decayed either.
_DECAYED = ((r".*(bias|scale)", False), (r".*", True))
_FINETUNE_DECAYED = ((r"class_token|position_embedding/.*", False), *_DECAYED)
# Positions are trained; they start at the fixed table. The pretrained final norm is dropped.
_FINETUNE_MODEL = {
    "position_embedding": "learned_1d",
    "pooling": "gap",
    "class_token": True,
    "norm_after_pooling": True,
}
# Model -> base learning rate, layer decay, stochastic depth and epochs of fine-tuning.
_FINETUNE = {
    "B/16": (5e-4, 0.65, 0.1, 100.0),
    "L/16": (1e-3, 0.75, 0.2, 50.0),
    "H/14": (1e-3, 0.75, 0.3, 50.0),
}


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns the recipe; for ARG see above."""
    chosen = parse_arg(
        arg, model=(*_FINETUNE, "small"), epochs=_EPOCHS, stage=("pretrain", "finetune")
    )
    model = chosen["model"]
    if model == "small":
        config = _small_finetune() if chosen["stage"] == "finetune" else _small()
    elif chosen["stage"] == "finetune":
        config = _finetune(model)
    else:
        config = _pretrain(model, float(chosen["epochs"]))
    return ml_collections.ConfigDict(config)


def _model(name: str) -> dict:
    return {
        "name": f"ViT-{name}",
        "position_embedding": "sincos_2d_mae",
        "gelu_approximate": False,
        "initial_values": "mae",
        "dtype": "bfloat16",
    }


def _pretrain(name: str, epochs: float) -> dict:
    return {
        "model": _model(name),
        "task": {
            "name": "mae",
            "mask_ratio": 0.75,
            "decoder_width": 512,
            "decoder_depth": 8,
            "decoder_heads": 16,
        },
        "data": {
            "name": "imagenet2012",
            "global_batch_size": 4096,
            "image_size": 224,
            "interpolation": "bicubic",
            "augment": {
                "crop": {"name": "inception", "flavour": "torchvision", "min_area": 0.2},
                "flip": True,
            },
        },
        "optimizer": {
            "name": "adamw",
            "options": {"b2": 0.95},
            "learning_rate": 1.5e-4 * 4096 / 256,
            "weight_decay": 0.05,
            "weight_decay_mask": _DECAYED,
            "schedule": {"decay": "cosine", "warmup_epochs": 40.0},
        },
        "train_epochs": epochs,
        "checkpoint": {"interval_epochs": 5.0},
        "logging": {"interval_steps": 100},
    }


def _finetune(name: str) -> dict:
    rate, layer_decay, stochastic_depth, epochs = _FINETUNE[name]
    return {
        "model": {
            **_model(name),
            **_FINETUNE_MODEL,
            "stochastic_depth": stochastic_depth,
        },
        "data": {
            "name": "imagenet2012",
            "global_batch_size": 1024,
            "image_size": 224,
            "interpolation": "bicubic",
            "augment": {
                "crop": {"name": "inception", "flavour": "torchvision", "min_area": 0.08},
                "flip": True,
                "randaugment": {"layers": 2, "magnitude": 9.0, "flavour": "timm"},
                "erasing": {"probability": 0.25},
                "mix": {"mixup_alpha": 0.8, "cutmix_alpha": 1.0},
            },
        },
        "loss": {"label_smoothing": 0.1},
        "optimizer": {
            "name": "adamw",
            "learning_rate": rate * 1024 / 256,
            "weight_decay": 0.05,
            "weight_decay_mask": _FINETUNE_DECAYED,
            "layer_decay": layer_decay,
            "schedule": {"decay": "cosine", "warmup_epochs": 5.0, "end_learning_rate": 1e-6},
        },
        "train_epochs": epochs,
        "evaluation": {"splits": {"validation": "validation"}, "interval_epochs": 5.0},
        "checkpoint": {"interval_epochs": 1.0},
        "logging": {"interval_steps": 100},
    }


def _small_model() -> dict:
    return {"name": "ViT-Micro/4", "position_embedding": "sincos_2d_mae"}


def _small_data() -> dict:
    return {
        "name": "cifar10",
        "image_size": 32,
        "global_batch_size": 128,
        "augment": {"crop": {"name": "pad", "pixels": 4}, "flip": True},
        "eval_crop": "resize",
    }


def _small() -> dict:
    return {
        "model": _small_model(),
        "task": {"name": "mae", "decoder_width": 64, "decoder_depth": 2, "decoder_heads": 2},
        "data": _small_data(),
        "optimizer": {
            "name": "adamw",
            "options": {"b2": 0.95},
            "learning_rate": 2e-3,
            "weight_decay": 0.05,
            "weight_decay_mask": _DECAYED,
            "schedule": {"warmup_epochs": 0.5},
        },
        "train_epochs": 4.0,
        "evaluation": {"splits": {"test": "test"}, "interval_epochs": 2.0},
        "checkpoint": {"interval_epochs": 1.0},
        "logging": {"interval_steps": 50},
    }


def _small_finetune() -> dict:
    return {
        "model": {**_small_model(), **_FINETUNE_MODEL},
        "data": _small_data(),
        "optimizer": {
            "name": "adamw",
            "learning_rate": 1e-3,
            "weight_decay": 0.05,
            "weight_decay_mask": _FINETUNE_DECAYED,
            "layer_decay": 0.75,
            "schedule": {"warmup_epochs": 0.5},
        },
        "train_epochs": 4.0,
        "evaluation": {"splits": {"test": "test"}, "interval_epochs": 2.0},
        "checkpoint": {"interval_epochs": 1.0},
        "logging": {"interval_steps": 50},
    }
