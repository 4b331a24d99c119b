"""TFDS builder of scenes of handwritten digits with a mask: small images for dense probes."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from vit_jax.rng import generator

SIDE = 32
CLASSES = ("background", *(f"digit {i}" for i in range(10)))
_SCENES = {"train": 2000, "test": 500}
_TEST_EVERY = 5
# Side of a digit in pixels.
_SMALLEST, _LARGEST = 12, 18
# Values above this are ink.
_INK = 96
# Smallest distance between the colours of ink and background, of three channels of 0 to 255.
_CONTRAST = 110


class DigitScenes(tfds.core.GeneratorBasedBuilder):
    """2,500 scenes of one to three handwritten digits, 32 x 32 pixels, with a mask of 11 classes.

    Digits have random places, sizes (12 to 18 pixels) and colours, on a background whose colour
    changes evenly from one corner to the other, with noise: colours alone do not tell which digit
    it is. Class 0 is the background, class 1 + d the digit d. Test scenes have digits that no
    training scene has: every fifth one of scikit-learn's, as in the dataset `digits`.

    Source: ours, from `sklearn.datasets.load_digits`.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First version."}

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict(
                {
                    "id": tfds.features.Text(),
                    "image": tfds.features.Image(shape=(SIDE, SIDE, 3), encoding_format="png"),
                    "mask": tfds.features.Image(shape=(SIDE, SIDE, 1), encoding_format="png"),
                }
            ),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict]]]:
        """Returns the splits."""
        return {split: self._generate_examples(split) for split in _SCENES}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        from sklearn.datasets import load_digits  # Takes seconds; only preparing the data needs it.

        digits: Any = load_digits()
        is_test = np.arange(len(digits.images)) % _TEST_EVERY == 0
        kept = np.flatnonzero(is_test == (split == "test"))
        images = np.round(digits.images * (255 / 16)).astype(np.uint8)[kept]
        labels = digits.target[kept]
        for number in range(_SCENES[split]):
            image, mask = draw_scene(images, labels, generator(0, f"scenes {split}", number))
            yield (
                number,
                {"id": f"{split}/{number}", "image": _png(image), "mask": _png(mask)},
            )


def draw_scene(
    digits: np.ndarray, labels: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns an image u8[32, 32, 3] and its mask u8[32, 32].

    Args:
        digits: u8[N, 8, 8], ink is bright.
        labels: i[N].
        rng: source of randomness.
    """
    corners = rng.uniform(0, 255, (2, 3))
    along = np.add.outer(np.arange(SIDE), np.arange(SIDE)) / (2 * SIDE - 2)
    canvas = corners[0] + along[..., None] * (corners[1] - corners[0])
    mask = np.zeros((SIDE, SIDE), np.uint8)
    for _ in range(int(rng.integers(1, 4))):
        chosen, side = int(rng.integers(len(digits))), int(rng.integers(_SMALLEST, _LARGEST + 1))
        top, left = (int(p) for p in rng.integers(0, SIDE - side + 1, 2))
        large = Image.fromarray(digits[chosen]).resize((side, side), Image.Resampling.BICUBIC)
        ink = np.asarray(large) > _INK
        place = (slice(top, top + side), slice(left, left + side))
        canvas[place][ink] = _ink_colour(canvas[place].mean((0, 1)), rng)
        mask[place][ink] = 1 + labels[chosen]
    noisy = canvas + rng.normal(0, 10, canvas.shape)
    return np.clip(np.round(noisy), 0, 255).astype(np.uint8), mask


def _ink_colour(background: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws a colour that can be told from the background."""
    while True:
        colour = rng.uniform(0, 255, 3)
        if np.linalg.norm(colour - background) >= _CONTRAST:
            return colour


def _png(pixels: np.ndarray) -> io.BytesIO:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    file.seek(0)
    return file
