"""Boxes of an image: left, top, right, bottom in integer pixels."""

from typing import Any

Box = tuple[int, int, int, int]


def eval_box(size: tuple[int, int], crop: str, fraction: float) -> Box:
    """Returns the part of an image of (width, height) that evaluation resizes to a square."""
    if crop == "resize":
        return (0, 0, *size)
    return central_part(size, fraction) if crop == "squash_central" else central_box(size, fraction)


def central_box(size: tuple[int, int], fraction: float) -> Box:
    """Returns the central square whose side is `fraction` of the short side.

    Resizing this box equals resizing the short side and then cropping the centre, to within half a
    pixel.
    """
    width, height = size
    side = max(round(min(size) * fraction), 1)
    return centred_box(width, height, side, side)


def central_part(size: tuple[int, int], fraction: float) -> Box:
    """Returns the centre of the image with `fraction` of its width and height.

    Resizing this box to a square equals resizing the image to a larger square and then cropping the
    centre.
    """
    width, height = size
    return centred_box(
        width, height, max(round(width * fraction), 1), max(round(height * fraction), 1)
    )


def random_position(width: int, height: int, w: int, h: int, rng: Any) -> Box:
    """Draws the position of a box of width w and height h."""
    left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
    return left, top, left + w, top + h


def centred_box(width: int, height: int, w: int, h: int) -> Box:
    """Returns the box of width w and height h at the centre."""
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
