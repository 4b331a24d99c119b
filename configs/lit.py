"""LiT: a text tower learns to read the features of a locked image tower (arXiv:2111.07991).

Command:   python -m vit_jax train --config=configs/lit.py:B/16 --workdir=runs/lit
           --config.init_from=B_16.npz --config.data.data_dir=SHARDS
           --config.data.captions.tokenizer=vocab.txt     (ARG: MODEL,DATA; both optional)
           MODEL   B/16 (default), L/16
           DATA    web (default): tar files of images and captions; coco: TFDS `coco_captions`
           --config.init_from: weights of the image tower, e.g. the AugReg models on ImageNet-21k.
           For zero-shot accuracy in training see docs/how-to/image-text.md.
Follows:   web: 60,000 steps (LiT-B16B_2 in big_vision's README_lit.md) of 16,384 pairs, the billion
           of Figure 1. coco, and the optimizer of both: big_vision's lit_coco.py and
           siglip_lit_coco.py: learning rate 1e-3, cosine, clipping at norm 1, 3 % of warmup, 16
           tokens, temperature 10 at the start; coco has 512 pairs a step, 5,000 steps, flips and
           RandAugment(2, 10). A step at the peak rate decays kernels, and nothing else, by 0.01.
           L/16 has big_vision's Adafactor, B/16 Adam. Resizing without antialiasing; web evaluates
           the central 224 of 256 squashed pixels, coco all 224.
Differs:   the authors start the text tower from BERT; here it starts anew.
Compared:  coco, B/16 and L/16: loss, optimizer, decay and the frozen tower, in 40 steps with
           big_vision 0127fb6, on SigLIP's towers, in float32 at small size:
           docs/explanation/reproduced.md.
Expected:  ImageNet zero-shot, authors' README_lit.md: B/16 73.9 %, L/16 75.7 %; coco, B/16: 20.7 %,
           and recall at 1 on MS-COCO 47.2 % (image to text) and 32.1 % (text to image). Not
           reproduced with this code. Small: experiments/image_text/README.md.
Hardware:  the authors' L/16: a day on 64 TPUv4 chips (model card). `python -m vit_jax plan`
           estimates other devices.
Data:      web: CC12M and YFCC100M-CLIP as tar files in WebDataset's layout; coco: TFDS
           `coco_captions`. BERT's vocab.txt.
"""

import ml_collections

from vit_jax.config.file import parse_arg

_MODELS = {"B/16": "LiT-B16B_2", "L/16": "LiT-L16L"}


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns the recipe; for ARG see above."""
    chosen = parse_arg(arg, model=tuple(_MODELS), data=("web", "coco"))
    is_coco = chosen["data"] == "coco"
    config = {
        "task": {"name": "image_text", "loss": "softmax"},
        "model": {
            "name": _MODELS[chosen["model"]],
            "dtype": "bfloat16",
            "text": {"context_length": 16},
        },
        "data": _coco() if is_coco else _web(),
        "optimizer": {
            **_optimizer(chosen["model"]),
            "learning_rate": 1e-3,
            "weight_decay": 10.0,
            "clip_global_norm": 1.0,
            "freeze": ("image/.*",),
            "schedule": {"decay": "cosine", "warmup_steps": 150 if is_coco else 1800},
        },
        "train_steps": 5000 if is_coco else 60_000,
        "checkpoint": {"interval_steps": 1000},
        "logging": {"interval_steps": 50},
    }
    if is_coco:
        config["evaluation"] = {"splits": {"val": "val"}, "interval_steps": 1000}
    return ml_collections.ConfigDict(config)


def _optimizer(model: str) -> dict:
    if model == "B/16":
        return {"name": "adamw"}
    # As in big_vision, arXiv:2106.04560, section 3.4: momentum in half precision, a capped beta2,
    # no scaling by the parameters, no clipping of each update.
    options = {
        "momentum": 0.9,
        "beta2_cap": 0.999,
        "multiply_by_parameter_scale": False,
        "clipping_threshold": None,
        "min_dim_size_to_factor": 32,
    }
    return {"name": "adafactor", "options": options, "state_dtype": "bfloat16"}


def _web() -> dict:
    return {
        "source": "captioned",
        "name": "web",
        "image_size": 224,
        "global_batch_size": 16_384,
        "captions": {"tokenizer": "vocab.txt", "feature": "txt"},
        "antialias": False,
        "augment": {"crop": {"name": "inception"}, "flip": True},
        "eval_crop": "squash_central",
    }


def _coco() -> dict:
    return {
        "name": "coco_captions",
        "image_size": 224,
        "global_batch_size": 512,
        "captions": {"tokenizer": "vocab.txt", "feature": "captions/text"},
        "antialias": False,
        "augment": {
            "crop": {"name": "resize"},
            "flip": True,
            "randaugment": {"layers": 2, "magnitude": 10.0},
        },
        "eval_crop": "resize",
    }
