"""FlexiViT: one ViT for many patch sizes; each step draws one.

Command:   python -m vit_jax train --config=configs/flexivit.py:RECIPE,SIZE --workdir=DIR
           --config.task.teacher=WEIGHTS --config.init_from=WEIGHTS
           --config.data.data_dir=DATA     (RECIPE: imagenet21k, the default, imagenet2012,
           supervised or cifar10; the last two have no teacher. SIZE: B, the default, S or L, is for
           imagenet2012.)
Follows:   arXiv:2212.08013, sections 3 and 4, with the settings of the authors' configs: 240
           pixels, ten patch sizes drawn uniformly. imagenet21k: soft targets of an AugReg ViT-B/8
           (B_8.npz at 224 pixels), which is also the start. imagenet2012: the same with DeiT III of
           the same size at 384 pixels. Each teacher sees the student's crop of the original image
           at its own size. supervised: ImageNet-21k from scratch. Resizing without antialiasing;
           with a teacher, evaluation takes the central 240 of 272 squashed pixels. A step at the
           peak rate decays kernels by 1e-5, supervised by 1e-4. cifar10: ours.
Differs:   supervised: RandAugment's translations and cutout scale with the image; there they are in
           pixels of a 224-pixel image.
Compared:  supervised: 40 steps with big_vision 0127fb6, in float32 at small size:
           docs/explanation/reproduced.md.
Expected:  the authors publish curves, and that FlexiViT matches ViTs trained for one patch size
           each. Not reproduced with this code. cifar10: see experiments/README.md.
Hardware:  imagenet2012,S: a TPU v3-32, 10 hours with the authors' code. cifar10: 2 CPU cores, two
           minutes.
Data:      TFDS `imagenet21k`, `imagenet2012` or `cifar10`.
"""

import ml_collections

from vit_jax.config.file import parse_arg
from vit_jax.errors import ConfigError

# 240 pixels: grids of 5, 6, 8, 10, 12, 15, 16, 20, 24 and 30 patches.
PATCH_SIZES = (48, 40, 30, 24, 20, 16, 15, 12, 10, 8)
# 48 pixels, enlarged from 32: 4, 9, 16, 36 and 64 patches.
SMALL_PATCH_SIZES = (24, 16, 12, 8, 6)


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns the recipe; ARG is RECIPE,SIZE, each part optional."""
    chosen = parse_arg(arg, recipe=("imagenet21k", *_RECIPES), size=("B", "S", "L"))
    if chosen["recipe"] in ("imagenet21k", "supervised") and chosen["size"] != "B":
        raise ConfigError(f"size {chosen['size']} with {chosen['recipe']}", "B", "leave it out")
    if chosen["recipe"] in _WITHOUT_TEACHER:
        return ml_collections.ConfigDict(_WITHOUT_TEACHER[chosen["recipe"]]())
    return ml_collections.ConfigDict(_distilled(**chosen))


def _distilled(recipe: str, size: str) -> dict:
    is_21k = recipe == "imagenet21k"
    return {
        "task": {
            "name": "distillation",
            "targets": "soft",
            "alpha": 1.0,
            "teacher": None,
            "teacher_image_size": 224 if is_21k else 384,
        },
        "model": {
            "name": f"ViT-{size}/16",
            "dtype": "bfloat16",
            # The size of the teacher's kernel and table, so that the student starts as the teacher.
            "patch_kernel_size": 8 if is_21k else 16,
            "position_grid": 28 if is_21k else 24,
            **({"head_bias_init": -10.0} if is_21k else {}),
        },
        "flexible": {"patch_sizes": PATCH_SIZES},
        "data": {
            "name": recipe,
            "train_split": "full[51200:]" if is_21k else "train[:99%]",
            "global_batch_size": 4096 if is_21k else 1024,
            "image_size": 240,
            # Evaluation: the central 240 of 272 pixels.
            "central_fraction": 240 / 272,
            "eval_crop": "squash_central",
            "antialias": False,
            "augment": {
                "crop": {"name": "inception"},
                "flip": True,
                "mix": {"mixup_alpha": 1.0},
            },
        },
        "loss": {"name": "sigmoid_cross_entropy" if is_21k else "softmax_cross_entropy"},
        "optimizer": {
            "name": "adamw",
            "options": {"mu_dtype": "bfloat16"},
            "learning_rate": 1e-4,
            "weight_decay": 0.1,
            "clip_global_norm": 1.0,
            "schedule": {"decay": "cosine", "warmup_steps": 5_000},
        },
        "train_epochs": 90.0,
        "evaluation": {
            "splits": {"test": "full[:25600]"} if is_21k else {"minival": "train[99%:]"},
            "final_splits": {} if is_21k else {"validation": "validation"},
            "interval_epochs": 5.0,
        },
        "checkpoint": {"interval_steps": 1_000},
        "logging": {"interval_steps": 50},
    }


def _supervised() -> dict:
    return {
        **_distilled("imagenet21k", "B"),
        "task": {"name": "classification"},
        "model": {
            "name": "ViT-B/16",
            "dtype": "bfloat16",
            "patch_kernel_size": 8,
            "position_grid": 7,
            "head_bias_init": -10.0,
            "initial_values": "flexivit",
        },
        "data": {
            "name": "imagenet21k",
            "train_split": "full[51200:]",
            "global_batch_size": 4096,
            "image_size": 240,
            "antialias": False,
            "augment": {
                "crop": {"name": "inception"},
                "flip": True,
                "randaugment": {"layers": 2, "magnitude": 10.0},
                "mix": {"mixup_alpha": 0.2},
            },
        },
        "optimizer": {
            "name": "adamw",
            "options": {"mu_dtype": "bfloat16"},
            "learning_rate": 1e-3,
            "weight_decay": 0.1,
            "clip_global_norm": 1.0,
            "schedule": {"decay": "cosine", "warmup_steps": 10_000},
        },
    }


def _cifar10() -> dict:
    return {
        "model": {"name": "ViT-Micro/8", "patch_kernel_size": 12, "position_grid": 6},
        "flexible": {"patch_sizes": SMALL_PATCH_SIZES},
        "data": {
            "name": "cifar10",
            "image_size": 48,
            "global_batch_size": 64,
            "augment": {"crop": {"name": "pad", "pixels": 6}, "flip": True},
            "eval_crop": "resize",
        },
        "optimizer": {
            "name": "adamw",
            "learning_rate": 2e-3,
            "weight_decay": 0.05,
            "clip_global_norm": 1.0,
            "schedule": {"warmup_examples": 5_000},
        },
        "train_examples": 50_000,
        "evaluation": {"splits": {"test": "test"}, "batch_size": 200},
        "checkpoint": {"interval_examples": 25_600, "keep_last": 1},
        "logging": {"interval_steps": 25},
    }


_WITHOUT_TEACHER = {"supervised": _supervised, "cifar10": _cifar10}
_RECIPES = ("imagenet2012", *_WITHOUT_TEACHER)
