"""DINO: self-distillation without labels (arXiv:2104.14294), optionally with iBOT's term.

A student predicts what the moving average of its own parameters, the teacher, says of other crops
of an image. The teacher is what is evaluated and fine-tuned. Labels are not used.

Command:   python -m vit_jax train --config=configs/dino.py:S/16 --workdir=runs/dino
           --config.data.data_dir=DATA     (ARG: MODEL,TERM in any order, both optional)
           MODEL  S/16 (default), B/16; small: ViT-Micro/4 on CIFAR-10, for a CPU
           TERM   dino (default); ibot: also predict masked patches, with Sinkhorn-Knopp instead of
                  centring, as in arXiv:2304.07193
           Then `python -m vit_jax fewshot runs/dino --method=knn,linear_probe`, or fine-tune with
           configs/transfer.py and --config.init_from=runs/dino.
Follows:   the paper's section 3.2 and appendix, and the authors' published arguments: batch 1024,
           AdamW, learning rate 5e-4 (S/16) or 7.5e-4 (B/16) * batch / 256, 10 epochs of warmup,
           weight decay 0.04 to 0.4, momentum 0.996 to 1, 2 crops of 224 and 10 of 96 pixels
           (bicubic), temperatures 0.1 and 0.04 to 0.07. B/16 clips the gradient of each parameter
           at 0.3. ibot: the masks of arXiv:2304.07193, its separate heads
           with 65,536 prototypes; not its KoLeo regulariser. The authors' code: the teacher's
           temperature changes from epoch to epoch; positions of small crops are resampled by its
           bicubic rule; learned lengths of prototypes (S/16) are decayed.
Differs:   the warmup of the learning rate reaches its peak one step later, so that its rates are
           lower by 1 / 12,511. Images enter the model in [-1, 1], with 0.45 times the deviation of
           the authors' inputs, which the patch embedding can learn.
Compared:  30 steps with dino 7c446df; ibot: 24 steps with ibot da316d8 and dinov2 b8931f7, in
           float32 at small size: docs/explanation/reproduced.md.
Expected:  dino: ImageNet kNN and linear probe: S/16, 800 epochs, 74.5 and 77.0 %; B/16, 400 epochs,
           76.1 and 78.2 % (Table 2). Not reproduced with this code. ibot: not published at this
           setting. small: not run to its end; experiments/no_labels/README.md has runs of
           ViT-Nano/4.
Hardware:  the authors' S/16: 2.6 days for 300 epochs on 16 V100. `python -m vit_jax plan` estimates
           other devices.
Data:      TFDS `imagenet2012`, prepared as ArrayRecord; small: `cifar10`.
"""

import ml_collections

from vit_jax.config.file import parse_arg

# Model -> epochs, base and last learning rate, epochs of the temperature's warmup, epochs in which
# the last layer is frozen, clipping.
_MODELS = {
    "S/16": (800.0, 5e-4, 1e-5, 30.0, 1.0, None),
    "B/16": (400.0, 7.5e-4, 2e-6, 50.0, 3.0, 0.3),
}
_BATCH = 1024
_LAST_LAYER = (r"(patch_)?projector/prototypes/.*",)
# All but biases and norms is decayed, as in the authors' code. The learned lengths of prototypes
# are decayed, because they are a matrix there.
_DECAYED = ((r".*prototypes/scale", True), (r".*(bias|scale)", False), (r".*", True))
_IBOT = {"ibot_weight": 1.0, "centring": "sinkhorn"}


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns the recipe; for ARG see above."""
    chosen = parse_arg(arg, model=(*_MODELS, "small"), term=("dino", "ibot"))
    name = chosen["model"]
    config = _small() if name == "small" else _paper(name)
    if chosen["term"] == "ibot":
        config["task"] |= _IBOT
    return ml_collections.ConfigDict(config)


def _paper(name: str) -> dict:
    epochs, rate, last_rate, warmup, frozen, clip = _MODELS[name]
    return {
        "model": {
            "name": f"ViT-{name}",
            "gelu_approximate": False,
            "initial_values": "timm",
            "stochastic_depth": 0.1,
            "dtype": "bfloat16",
        },
        "task": {
            "name": "dino",
            "local_crops": 10,
            "local_size": 96,
            "global_min_area": 0.25,
            "local_min_area": 0.05,
            "local_max_area": 0.25,
            "prototype_scale": name == "S/16",
            "teacher_temperature": 0.07,
            "temperature_warmup_epochs": warmup,
        },
        "data": {
            "name": "imagenet2012",
            "global_batch_size": _BATCH,
            "image_size": 224,
            "interpolation": "bicubic",
            "augment": {"crop": {"flavour": "torchvision"}, "flip": True},
        },
        "optimizer": {
            "name": "adamw",
            "learning_rate": rate * _BATCH / 256,
            "weight_decay": 0.04,
            "end_weight_decay": 0.4,
            "weight_decay_mask": _DECAYED,
            "clip_global_norm": clip,
            "clip_each_parameter": True,
            "freeze": _LAST_LAYER,
            "freeze_epochs": frozen,
            "schedule": {"decay": "cosine", "warmup_epochs": 10.0, "end_learning_rate": last_rate},
        },
        "train_epochs": epochs,
        "checkpoint": {"interval_epochs": 5.0},
        "logging": {"interval_steps": 100},
    }


def _small() -> dict:
    return {
        "model": {"name": "ViT-Micro/4"},
        "task": {
            "name": "dino",
            "local_crops": 4,
            "local_size": 16,
            "prototypes": 1024,
            "head_width": 256,
            "bottleneck": 64,
            "momentum": 0.99,
        },
        "data": {
            "name": "cifar10",
            "image_size": 32,
            "global_batch_size": 128,
            "augment": {"crop": {"flavour": "torchvision"}, "flip": True},
            "eval_crop": "resize",
        },
        "optimizer": {
            "name": "adamw",
            "learning_rate": 2e-3,
            "weight_decay": 0.04,
            "end_weight_decay": 0.4,
            "weight_decay_mask": _DECAYED,
            "clip_global_norm": 3.0,
            "freeze": _LAST_LAYER,
            "freeze_epochs": 0.5,
            "schedule": {"warmup_epochs": 0.5},
        },
        "train_epochs": 4.0,
        "evaluation": {"splits": {"test": "test"}, "interval_epochs": 2.0},
        "checkpoint": {"interval_epochs": 1.0},
        "logging": {"interval_steps": 50},
    }
