"""Names of timm, transformers and torchvision for models that are registered here."""

import re
from typing import NamedTuple


class Alias(NamedTuple):
    """What a name of another project stands for.

    Attributes:
        name: our name, e.g. "ViT-B/16".
        image_size: side in pixels that the name states; None: it states none.
    """

    name: str
    image_size: int | None


_LETTERS = {
    "tiny": "Ti", "small": "S", "medium": "M", "base": "B", "large": "L", "huge": "H",
    "giant": "g", "gigantic": "G", "so400m": "So400m", "ti": "Ti", "s": "S", "b": "B", "l": "L",
    "h": "H",
}  # fmt: skip
_SIZE = "(?P<size>" + "|".join(sorted(_LETTERS, key=len, reverse=True)) + ")"
_PIXELS = r"(?:[_-](?P<pixels>\d{2,4}))?"
# What timm adds after a dot, and Hugging Face after the image size: the training data.
_TAG = r"(?:\.\w+|(?:[_-](?:in21k|in1k|in22k)))?"
_PATTERNS = {
    rf"(?:vit|deit)[_-]{_SIZE}[_-]patch(?P<patch>\d+){_PIXELS}{_TAG}": "ViT-{size}/{patch}",
    rf"vit[_-]{_SIZE}[_/-]?(?P<patch>\d+)": "ViT-{size}/{patch}",
    rf"{_SIZE}[_/](?P<patch>\d+)": "ViT-{size}/{patch}",
    rf"vit_{_SIZE}_r(?P<units>\d+)_s(?P<patch>\d+){_PIXELS}{_TAG}":
        "R{units}+ViT-{size}/{patch}",
    rf"vit-hybrid-{_SIZE}-bit-(?P<pixels>\d{{2,4}})": "R50+ViT-{size}/16",
    rf"mixer_{_SIZE}(?P<patch>\d+){_PIXELS}{_TAG}": "Mixer-{size}/{patch}",
    rf"resnetv2_(?P<units>\d+)x(?P<factor>\d)_bitm?{_TAG}": "BiT-R{units}x{factor}",
    r"bit-(?P<units>\d+)": "BiT-R{units}x1",
}  # fmt: skip


def find_alias(name: str) -> Alias | None:
    """Returns what a name of another project stands for; None: it is no such name.

    Only the sizes are meant: published weights keep their own activation and epsilon.

    >>> find_alias("vit_base_patch16_384.augreg_in21k")
    Alias(name='ViT-B/16', image_size=384)
    >>> find_alias("google/vit-large-patch32-224-in21k").name, find_alias("vit_b_16").name
    ('ViT-L/32', 'ViT-B/16')
    """
    plain = name.lower().rpartition("/")[2] if name.count("/") == 1 else name.lower()
    for text in dict.fromkeys((name.lower(), plain)):
        for pattern, ours in _PATTERNS.items():
            match = re.fullmatch(pattern, text)
            if match is not None:
                parts = match.groupdict()
                pixels = parts.get("pixels")
                size = _LETTERS.get(parts.get("size") or "", "")
                return Alias(ours.format(**parts | {"size": size}), int(pixels) if pixels else None)
    return None
