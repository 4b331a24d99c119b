"""Inception crops: parts of random area and aspect ratio.

There are two published ways to draw an inception crop (arXiv:1409.4842) from a range of areas:

|                 | paper (the ViT authors' code)        | torchvision (RandomResizedCrop)         |
|-----------------|--------------------------------------|-----------------------------------------|
| usual area      | 5 to 100 % (`min_area=0.05`)         | 8 to 100 % (`min_area=0.08`)            |
| uniform in      | the height, among those that fit     | the area                                |
| mean area       | 34 % of a 4:3 photo if min_area=0.05 | 42 % of it if min_area=0.05             |
| width / height  | uniform in [0.75, 1.33]              | log-uniform in [3/4, 4/3]               |
| if none fits    | after 100 draws the whole image      | after 10 draws the largest central part |

In an independent replication of arXiv:2205.01580 (ViT-S/16, 90 epochs, one run each) ImageNet top-1
was 76.9 with the paper's crop and 77.3 with torchvision's: within the variation over seeds.
"""

import math
from typing import Literal

import numpy as np

from vit_jax.data.boxes import Box, centred_box, random_position
from vit_jax.data.crops import CROPS, Crop, CropName
from vit_jax.schema import option

_PAPER_RATIOS = (0.75, 1.33)
_TORCHVISION_RATIOS = (3 / 4, 4 / 3)
_LOG_RATIOS = (math.log(3 / 4), math.log(4 / 3))


@CROPS.register
class Inception(Crop):
    """A part of random area and aspect ratio (arXiv:1409.4842)."""

    name: CropName = option("inception")
    """A part of random area and aspect ratio."""
    flavour: Literal["paper", "torchvision"] = option("paper")
    """How it is drawn, see `data.crops.inception`; torchvision's usual min_area is 0.08."""
    min_area: float = option(0.05, above=0, at_most=1)
    """Smallest area, as a fraction of the image's; the largest is the whole image."""

    def box(self, size: tuple[int, int], rng: np.random.Generator) -> Box:
        return INCEPTION_BOX[self.flavour](size, rng, self.min_area)


def paper_box(
    size: tuple[int, int], rng: np.random.Generator, min_area: float, max_area: float = 1.0
) -> Box:
    """Draws a random box like TensorFlow's `sample_distorted_bounding_box`.

    Unlike TensorFlow, the last position along each side is as likely as the others. `size` is width
    and height; the areas are fractions of the image's.
    """
    width, height = size
    smallest, largest = min_area * width * height, max_area * width * height
    for _ in range(100):
        ratio = _uniform(_PAPER_RATIOS, rng)
        low = round(math.sqrt(smallest / ratio))
        # The tallest whose width fits: round(h * ratio) <= width.
        high = min(round(math.sqrt(largest / ratio)), height, math.ceil((width + 0.5) / ratio) - 1)
        low = min(low, high)
        h = low + int(rng.integers(high - low + 1))
        w = round(h * ratio)
        # Rounding may have moved the area out of its range.
        if w * h < smallest:
            h, w = h + 1, round((h + 1) * ratio)
        elif w * h > largest:
            h, w = h - 1, round((h - 1) * ratio)
        if 0 < w <= width and 0 < h <= height and smallest <= w * h <= largest:
            return random_position(width, height, w, h, rng)
    return 0, 0, width, height


def torchvision_box(
    size: tuple[int, int], rng: np.random.Generator, min_area: float, max_area: float = 1.0
) -> Box:
    """Draws a random box like torchvision's `RandomResizedCrop`; arguments as in `paper_box`."""
    width, height = size
    for _ in range(10):
        area = _uniform((min_area, max_area), rng) * width * height
        ratio = math.exp(_uniform(_LOG_RATIOS, rng))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random_position(width, height, w, h, rng)
    ratio = min(max(width / height, _TORCHVISION_RATIOS[0]), _TORCHVISION_RATIOS[1])
    return centred_box(
        width, height, min(width, round(height * ratio)), min(height, round(width / ratio))
    )


def _uniform(limits: tuple[float, float], rng: np.random.Generator) -> float:
    return limits[0] + (limits[1] - limits[0]) * rng.random()


INCEPTION_BOX = {"paper": paper_box, "torchvision": torchvision_box}
