"""Crop boxes: left, top, right, bottom in integer pixels.

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
from collections.abc import Callable

import numpy as np

Box = tuple[int, int, int, int]

_PAPER_RATIOS = (0.75, 1.33)
_TORCHVISION_RATIOS = (3 / 4, 4 / 3)
_LOG_RATIOS = (math.log(3 / 4), math.log(4 / 3))


def paper_box(
    size: tuple[int, int], min_area: float, max_area: float, rng: np.random.Generator
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
            return _random_position(width, height, w, h, rng)
    return 0, 0, width, height


def torchvision_box(
    size: tuple[int, int], min_area: float, max_area: float, rng: np.random.Generator
) -> Box:
    """Draws a random box like torchvision's `RandomResizedCrop`; arguments as in `paper_box`."""
    width, height = size
    for _ in range(10):
        area = _uniform((min_area, max_area), rng) * width * height
        ratio = math.exp(_uniform(_LOG_RATIOS, rng))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return _random_position(width, height, w, h, rng)
    ratio = min(max(width / height, _TORCHVISION_RATIOS[0]), _TORCHVISION_RATIOS[1])
    return _centred_box(
        width, height, min(width, round(height * ratio)), min(height, round(width / ratio))
    )


def central_box(size: tuple[int, int], fraction: float) -> Box:
    """Returns the central square whose side is `fraction` of the short side.

    Resizing this box equals resizing the short side and then cropping the centre, to within half a
    pixel.
    """
    width, height = size
    side = max(round(min(size) * fraction), 1)
    return _centred_box(width, height, side, side)


def central_part(size: tuple[int, int], fraction: float) -> Box:
    """Returns the centre of the image with `fraction` of its width and height.

    Resizing this box to a square equals resizing the image to a larger square and then cropping the
    centre.
    """
    width, height = size
    return _centred_box(
        width, height, max(round(width * fraction), 1), max(round(height * fraction), 1)
    )


INCEPTION_BOX: dict[str, Callable[[tuple[int, int], float, float, np.random.Generator], Box]] = {
    "paper": paper_box,
    "torchvision": torchvision_box,
}


def _uniform(limits: tuple[float, float], rng: np.random.Generator) -> float:
    return limits[0] + (limits[1] - limits[0]) * rng.random()


def random_square(size: tuple[int, int], rng: np.random.Generator) -> Box:
    """Draws the position of a square as large as the short side of the image.

    Resizing this box equals resizing the short side and then cropping a square at random, to within
    half a pixel. Source: arXiv:2103.00020, section 2.5.
    """
    width, height = size
    return _random_position(width, height, min(size), min(size), rng)


def random_part(size: tuple[int, int], fraction: float, rng: np.random.Generator) -> Box:
    """Draws a random box with `fraction` of the image's width and height.

    Resizing this box equals resizing the image to a square and then cropping a smaller square at
    random. Source: arXiv:1912.11370, section 3.3.
    """
    width, height = size
    w, h = (max(round(fraction * side), 1) for side in size)
    return _random_position(width, height, w, h, rng)


def _random_position(width: int, height: int, w: int, h: int, rng: np.random.Generator) -> Box:
    left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
    return left, top, left + w, top + h


def _centred_box(width: int, height: int, w: int, h: int) -> Box:
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def eval_box(size: tuple[int, int], crop: str, fraction: float) -> Box:
    """Returns the part of an image of (width, height) that evaluation resizes to a square."""
    if crop == "resize":
        return (0, 0, *size)
    return central_part(size, fraction) if crop == "squash_central" else central_box(size, fraction)
