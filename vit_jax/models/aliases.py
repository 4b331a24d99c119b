"""Names of timm, transformers and torchvision for models that are registered here."""

import difflib
import re
from typing import NamedTuple


class Alias(NamedTuple):
    """What a name of another project stands for."""

    name: str  # Ours, e.g. "ViT-B/16".
    image_size: int | None  # Side in pixels that the name states; None: it states none.


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
    rf"clip-vit-{_SIZE}-patch(?P<patch>\d+){_PIXELS}": "CLIP-ViT-{size}/{patch}",
    rf"siglip-{_SIZE}-patch(?P<patch>\d+){_PIXELS}": "SigLIP-ViT-{size}/{patch}",
    rf"siglip2-{_SIZE}-patch(?P<patch>\d+){_PIXELS}": "SigLIP2-ViT-{size}/{patch}",
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


def our_name(name: str) -> str:
    """Returns our name for a name of another project; any other name as it is."""
    alias = find_alias(name)
    return name if alias is None else alias.name


def similar_sizes(name: str) -> str | None:
    """Returns the ViT of the sizes in a name that is no alias; None: it names no size and patch.

    >>> similar_sizes("vit_bass_patch16_224"), similar_sizes("facebook/dinov2-small")
    ('ViT-B/16', 'ViT-S/14')
    """
    patch = re.search(r"patch_?(\d+)|dinov2", name.lower())
    words = [word for word in _LETTERS if len(word) > 2]
    for part in re.split(r"[^a-z0-9]+", name.lower()):
        if patch and (found := difflib.get_close_matches(part, words, 1, 0.7)):
            return f"ViT-{_LETTERS[found[0]]}/{patch[1] or 14}"
    return None
