"""SigLIP: two towers trained with a sigmoid loss on each image and each text (arXiv:2303.15343).

Command:   python -m vit_jax train --config=configs/siglip.py:B/16 --workdir=runs/siglip
           --config.data.data_dir=SHARDS --config.data.captions.tokenizer=spiece.model
           (ARG: MODEL, optional)
           MODEL   B/16 (default), L/16, So400m/14: from scratch; lit: a locked ViT-B/16 on COCO,
                   add --config.init_from=B_16.npz
           For zero-shot accuracy in training see docs/how-to/image-text.md.
Follows:   section 4: 32,768 pairs a step, learning rate 1e-3, b2 0.95 (section 4.6), temperature
           10 and bias -10 at the start (section 3.2), 64 tokens, 9 billion pairs. The warmup, 3 %,
           is that of big_vision's configs. A step at the peak rate decays kernels, and nothing
           else, by 1e-4. lit: big_vision's siglip_lit_coco.py: 512 pairs, 5,000 steps, bias -2.71,
           16 tokens, RandAugment(2, 10); a step at the peak decays by 0.01. Resizing without
           antialiasing; zero-shot evaluation from scratch takes the central 224 of 256 squashed
           pixels.
Differs:   from scratch, the authors use Adafactor with momentum (arXiv:2106.04560); this is AdamW.
Compared:  B/16: 40 steps with big_vision 0127fb6, in float32 at small size:
           docs/explanation/reproduced.md.
Expected:  ImageNet zero-shot at 224 pixels: B/16 73.4 % after 9 billion pairs of WebLI (Table 1).
           Published weights, trained for longer: B/16 76.0, So400m/14 82.2 %. Not reproduced with
           this code: WebLI is not public. lit: no figure is published.
Hardware:  B/16: 5 days on 32 TPUv4 chips (Table 1). `python -m vit_jax plan` estimates other
           devices.
Data:      tar files of images and captions in WebDataset's layout; lit: TFDS `coco_captions`. A
           sentencepiece vocabulary of 32,000 tokens; lit: BERT's vocab.txt.
"""

import ml_collections

from vit_jax.config.file import parse_arg

_MODELS = ("B/16", "L/16", "So400m/14")
_PAIRS = 9_000_000_000


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns the recipe; for ARG see above."""
    model = parse_arg(arg, model=(*_MODELS, "lit"))["model"]
    return ml_collections.ConfigDict(_lit() if model == "lit" else _from_scratch(model))


def _from_scratch(model: str) -> dict:
    batch = 32_768
    steps = _PAIRS // batch
    return {
        "task": {"name": "image_text", "loss": "sigmoid"},
        "model": {
            "name": f"SigLIP-ViT-{model}",
            "initial_values": "big_vision",
            "dtype": "bfloat16",
        },
        "data": {
            "source": "captioned",
            "name": "web",
            "image_size": 224,
            "global_batch_size": batch,
            "captions": {
                "tokenizer": "spiece.model",
                "feature": "txt",
                "canonicalize": "punctuation",
            },
            "antialias": False,
            "augment": {"crop": {"name": "resize"}},
            "eval_crop": "squash_central",
        },
        "optimizer": {
            "name": "adamw",
            "options": {"b2": 0.95},
            "learning_rate": 1e-3,
            "weight_decay": 0.1,
            "clip_global_norm": 1.0,
            "schedule": {"decay": "cosine", "warmup_steps": int(0.03 * steps)},
        },
        "train_steps": steps,
        "checkpoint": {"interval_steps": 1000},
        "logging": {"interval_steps": 100},
    }


def _lit() -> dict:
    return {
        "task": {"name": "image_text", "loss": "sigmoid"},
        "model": {
            "name": "LiT-B16B_2",
            "bias_init": -2.71,
            "dtype": "bfloat16",
            "text": {"context_length": 16},
        },
        "data": {
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
        },
        "optimizer": {
            "name": "adamw",
            "learning_rate": 1e-3,
            "weight_decay": 10.0,
            "clip_global_norm": 1.0,
            "freeze": ("image/.*",),
            "schedule": {"decay": "cosine", "warmup_steps": 150},
        },
        "train_steps": 5000,
        "evaluation": {"splits": {"val": "val"}, "interval_steps": 1000},
        "checkpoint": {"interval_steps": 1000},
        "logging": {"interval_steps": 50},
    }
