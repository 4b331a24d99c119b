"""Bright shapes that are drawn when they are read, so that nothing has to be downloaded."""

import numpy as np

import vit_jax

_SIZES = {"train": 600, "test": 200}


class Shapes:
    """Squares, discs and triangles as a sequence of pairs (image u8[S, S, 3], class)."""

    class_names = ("square", "disc", "triangle")

    def __init__(self, split: str, side: int):
        self.labels = np.arange(_SIZES[split]) % 3
        self._side, self._seed = side, sorted(_SIZES).index(split)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        rng = np.random.default_rng((self._seed, index))  # The same example each time.
        label, side = int(self.labels[index]), self._side
        radius = rng.uniform(0.2, 0.35) * side
        centre = rng.uniform(radius, side - radius, size=2)
        y, x = np.mgrid[:side, :side] - centre[:, None, None]
        inside = (
            np.maximum(abs(x), abs(y)) < radius,
            np.hypot(x, y) < radius,
            (abs(x) < (y + radius) / 2) & (y < radius),
        )[label]
        background, colour = rng.integers(0, 64, 3), rng.integers(192, 256, 3)
        return np.where(inside[..., None], colour, background).astype(np.uint8), label


@vit_jax.register_source
def shapes(data_dir: str | None, split: str, *, side: int = 32) -> Shapes:
    """Squares, discs and triangles.

    Args:
        data_dir: not needed.
        split: train or test.
        side: height and width of an image in pixels.
    """
    return Shapes(split, side)
