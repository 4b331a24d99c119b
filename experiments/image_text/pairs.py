"""A small ViT on CIFAR-10, and text towers that learn to read its features (LiT).

Command:   python -m vit_jax train --config=experiments/image_text/pairs.py:tower
           --workdir=runs/tower --config.data.data_dir=DATA     (ARG: tower; cifar10 or
           clothing_small, both with --config.init_from=runs/tower)
Follows:   arXiv:2111.07991, scaled down; the bias of the sigmoid loss: big_vision's
           siglip_lit_coco.py. One optimizer for all, nothing was tuned.
Expected:  see experiments/image_text/README.md.
Hardware:  a CPU core, a minute.
Data:      TFDS `cifar10`, `clothing_small`. Captions are made from the names of the classes.
"""

import ml_collections

from vit_jax.config.file import parse_arg

DATASETS = ("cifar10", "clothing_small")
TEMPLATES = ("a photo of a {}.", "a picture of a {}.", "an image of the {}.", "this is a {}.")
# The towers learn from what the probe learns from, and are tested on the same images.
_TRAIN = {"cifar10": "train[:10%]", "clothing_small": "train"}
_TEST = {"cifar10": "test[:25%]", "clothing_small": "test"}


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns the recipe; for ARG see above."""
    kind = parse_arg(arg, kind=("tower", *DATASETS))["kind"]
    return ml_collections.ConfigDict(_tower() if kind == "tower" else _pair(kind))


def _shared(dataset: str, split: str) -> dict:
    return {
        "data": {
            "name": dataset,
            "train_split": split,
            "image_size": 32,
            "global_batch_size": 64,
            "augment": {
                "crop": {"name": "pad" if dataset == "cifar10" else "inception"},
                "flip": True,
            },
            "eval_crop": "resize",
        },
        "optimizer": {
            "name": "adamw",
            "learning_rate": 2e-3,
            "weight_decay": 0.05,
            "clip_global_norm": 1.0,
            "schedule": {"warmup_examples": 1000},
        },
        "evaluation": {"batch_size": 250},
        "checkpoint": {"interval_steps": 1000},
        "logging": {"interval_steps": 25, "tensorboard": False},
    }


def _tower() -> dict:
    probes = {
        name: {
            "name": name,
            "train_split": _TRAIN[name],
            "test_split": _TEST[name],
            "crop": "resize",
        }
        for name in DATASETS
    }
    return {
        **_shared("cifar10", "train[10%:]"),
        "model": {"name": "ViT-Nano/4"},
        "train_steps": 400,
        "fewshot": {
            "datasets": probes,
            "methods": ("linear_probe",),
            "features": "pooled",
            "probe_c": (1e-2, 1e-1, 1.0),
            "batch_size": 250,
        },
    }


def _pair(dataset: str) -> dict:
    config = _shared(dataset, _TRAIN[dataset])
    config["data"]["captions"] = {
        "tokenizer": "experiments/image_text/vocab.txt",
        "templates": TEMPLATES,
    }
    config["optimizer"]["freeze"] = ("image/.*",)
    zeroshot = {"name": dataset, "split": _TEST[dataset], "prompts": TEMPLATES}
    return {
        **config,
        "task": {"name": "image_text", "loss": "softmax", "zeroshot": {dataset: zeroshot}},
        "model": {
            "name": "LiT-ViT-Nano/4",
            "text": {
                "vocabulary_size": 38,
                "context_length": 12,
                "pooling": "first",
                "pad_token": 0,
            },
        },
        "train_steps": 150,
    }
