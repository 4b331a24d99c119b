"""Draws 2,500 scenes of handwritten digits with masks, 32 x 32 pixels, into a folder.

    python -m experiments.dense.scenes SCENES

writes SCENES/images/SPLIT/NUMBER.png and SCENES/masks/SPLIT/NUMBER.png. Test scenes have digits
that no training scene has: every fifth one of scikit-learn's.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from vit_jax.rng import generator

_SCENES = {"train": 2000, "test": 500}
_TEST_EVERY = 5
# Sides of a scene and of its digits in pixels.
_SIDE, _SMALLEST, _LARGEST = 32, 12, 18
# Values above this are ink.
_INK = 96
# Smallest distance between the colours of ink and background, of three channels of 0 to 255.
_CONTRAST = 110


def draw_scene(
    digits: np.ndarray, labels: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns an image u8[32, 32, 3] and its mask u8[32, 32]: 0 is background, 1 + d the digit d.

    One to three digits have random places, sizes and colours. The colour of the background changes
    evenly from one corner to the other, with noise: colours alone do not tell which digit it is.
    The digits u8[N, 8, 8] have bright ink.
    """
    corners = rng.uniform(0, 255, (2, 3))
    along = np.add.outer(np.arange(_SIDE), np.arange(_SIDE)) / (2 * _SIDE - 2)
    canvas = corners[0] + along[..., None] * (corners[1] - corners[0])
    mask = np.zeros((_SIDE, _SIDE), np.uint8)
    for _ in range(int(rng.integers(1, 4))):
        chosen, side = int(rng.integers(len(digits))), int(rng.integers(_SMALLEST, _LARGEST + 1))
        top, left = (int(p) for p in rng.integers(0, _SIDE - side + 1, 2))
        large = Image.fromarray(digits[chosen]).resize((side, side), Image.Resampling.BICUBIC)
        ink = np.asarray(large) > _INK
        place = (slice(top, top + side), slice(left, left + side))
        canvas[place][ink] = _ink_colour(canvas[place].mean((0, 1)), rng)
        mask[place][ink] = 1 + labels[chosen]
    noisy = canvas + rng.normal(0, 10, canvas.shape)
    return np.clip(np.round(noisy), 0, 255).astype(np.uint8), mask


def _ink_colour(background: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws a colour that differs enough from the background."""
    while True:
        colour = rng.uniform(0, 255, 3)
        if np.linalg.norm(colour - background) >= _CONTRAST:
            return colour


def main(folder: Path) -> None:
    """Writes the scenes of both splits."""
    digits = load_digits()
    is_test = np.arange(len(digits.images)) % _TEST_EVERY == 0
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    for split, count in _SCENES.items():
        kept = is_test == (split == "test")
        for name in ("images", "masks"):
            (folder / name / split).mkdir(parents=True)
        # In the order of TFDS, which stored the scenes of the committed results.
        order = sorted(range(count), key=lambda n: hashlib.md5(f"{split}{n}".encode()).digest())
        for place, number in enumerate(order):
            rng = generator(0, f"scenes {split}", number)
            image, mask = draw_scene(images[kept], digits.target[kept], rng)
            Image.fromarray(image).save(folder / "images" / split / f"{place:04}.png")
            Image.fromarray(mask).save(folder / "masks" / split / f"{place:04}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
