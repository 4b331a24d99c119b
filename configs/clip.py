"""CLIP: two towers trained with a softmax over the batch (arXiv:2103.00020).

Command:   python -m vit_jax train --config=configs/clip.py:B/32 --workdir=runs/clip
           --config.data.data_dir=SHARDS --config.data.captions.tokenizer=FOLDER
           (ARG: MODEL, optional)
           MODEL   B/32 (default), B/16, L/14
           For zero-shot accuracy in training see docs/how-to/image-text.md.
Follows:   Tables 18 to 20: 32,768 pairs a step, 32 epochs, AdamW with b2 0.98 and epsilon 1e-6,
           weight decay 0.2 on everything but gains and biases, 2,000 steps of warmup, cosine,
           temperature at most 100, learning rate 5e-4 (B) and 4e-4 (L); 77 tokens. The only
           augmentation is a random square crop of the resized image (section 2.5): its short
           side and a random part of its long side, resized bicubically. Evaluation takes the
           short side and the centre of the long side, as CLIP and open_clip do.
Differs:   step k of the warmup of W steps has k / W of the peak rate; open_clip's has (k + 1) / W.
           The temperature has no lower limit, which is 1 there and was never reached.
           open_clip trains on 90 to 100 % of the area with sides of 3:4 to 4:3, squashed to a
           square (RandomResizedCrop): --config.data.augment.crop.name=inception
           --config.data.augment.crop.flavour=torchvision --config.data.augment.crop.min_area=0.9
Compared:  30 steps with open_clip 89fb801, in float32 at small size:
           docs/explanation/reproduced.md.
Expected:  ImageNet zero-shot: B/32 63.2, B/16 68.6, L/14 75.3 % (Table 11). Not reproduced with
           this code: the 400 million pairs are not public.
Hardware:  L/14: 12 days on 256 V100 (section 2.5). `python -m vit_jax plan` estimates other
           devices.
Data:      tar files of images and captions in WebDataset's layout. CLIP's vocab.json and
           merges.txt.
"""

import ml_collections

from vit_jax.config.file import parse_arg

_LEARNING_RATE = {"B/32": 5e-4, "B/16": 5e-4, "L/14": 4e-4}
# As in open_clip, what has one axis there is not decayed: the class token too.
_DECAYED = ((r".*(bias|scale|class_token)|log_temperature", False), (r".*", True))


def get_config(arg: str = "") -> ml_collections.ConfigDict:
    """Returns the recipe; for ARG see above."""
    model = parse_arg(arg, model=tuple(_LEARNING_RATE))["model"]
    return ml_collections.ConfigDict(
        {
            "task": {"name": "image_text", "loss": "softmax", "max_temperature": 100.0},
            "model": {"name": f"CLIP-ViT-{model}", "dtype": "bfloat16"},
            "data": {
                "source": "captioned",
                "name": "web",
                "image_size": 224,
                "global_batch_size": 32_768,
                "captions": {"tokenizer": "clip", "feature": "txt"},
                "interpolation": "bicubic",
                "augment": {"crop": {"name": "random_square"}},
                "central_fraction": 1.0,
            },
            "optimizer": {
                "name": "adamw",
                "options": {"b2": 0.98, "eps": 1e-6},
                "learning_rate": _LEARNING_RATE[model],
                "weight_decay": 0.2,
                "weight_decay_mask": _DECAYED,
                # CLIP's patch embedding has no bias: here it is zero, and stays so.
                "freeze": ("image/patch_embedding/bias",),
                "schedule": {"decay": "cosine", "warmup_steps": 2000},
            },
            "train_epochs": 32.0,
            "checkpoint": {"interval_steps": 1000},
            "logging": {"interval_steps": 100},
        }
    )
