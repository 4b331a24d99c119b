"""Images of four tasks on which a prior about images is right or wrong, made from a seed.

An image has 32 x 32 pixels. Each of its 3 x 1024 values is 64 plus noise, which is uniform in 0 to
127 and independent. Where there is a pattern, 0 or 128 takes the place of the 64. So the noise has
the same distribution everywhere, and nothing is clipped. Half of a pattern is ones (24 of a glyph's
49 pixels), so brightness says nothing about the class.

- `texture`: one of 8 patterns of 4 x 4 pixels (stripes and checks), at a uniform place. The class
  is the pattern. A local, translation-invariant detector is enough: convolution's prior is right.
- `same`: two glyphs of 7 x 7 pixels whose centres are at least 16 pixels apart. The class says
  whether they are the same glyph. The places are uniform over all such pairs of places. Each glyph
  is equally frequent in both classes, so one glyph says nothing: distant places must be compared.
- `place`: one glyph. The class is the cell of a 3 x 3 grid that holds its centre. The place is
  uniform within the cell, and the glyph is independent of the class. What is shown does not matter,
  only where, which global average pooling discards.
- `mixture`: a share p of the images shows one of 2 textures, which is the class. The others show
  two glyphs as in `same`, and the class says whether they are the same. Both kinds have 2 classes,
  and whether a texture or glyphs are present says which kind an image is.

A glyph is one of 16 fixed patterns. Any two of them differ in at least 20 of 49 pixels; two
textures differ in exactly 8 of 16.

Example i of a split with C classes has class i mod C, so any part of a split has balanced classes,
to within one example. In `mixture` examples 2 j and 2 j + 1, one of each class, are of the same
kind. They show a texture if floor((j + 1) p) > floor(j p), so any part of a split has the share p,
to within one such pair; a class-balanced subset has it approximately. An example that is of the
same kind for two values of p is the same image.

All that is random comes from a hash of (seed, task, number of the image, counter), and images of
`test` are numbered after those of `train`. So an image can be made without any other, and no two
images share random numbers.

Source: ours. The textures are Walsh functions.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int8, UInt8

from vit_jax.rng import name_id, seeded_hash

VERSION = 1
"""Part of the fingerprint. Raise it with every change of the pixels or labels."""
SIDE = 32
"""Height and width of an image in pixels."""
SPLIT_SIZES = {"train": 10_000_000, "test": 10_000}
"""Examples per split. Images are numbered in this order."""
GRID = 3
"""`place` has GRID x GRID cells."""
MIN_DISTANCE = SIDE // 2
"""Smallest distance between the centres of two glyphs, in pixels."""
MIXTURE = "mixture"
"""The task with a share."""
MILLION = 1_000_000

_GLYPH_SIDE, _TEXTURE_SIDE, _NUM_GLYPHS = 7, 4, 16
_MIN_DIFFERENT = 20
_BACKGROUND, _ONE = 64, 128
# 64-bit words of random numbers of an image: the noise, then single draws.
_WORDS, _NOISE_WORDS = 512, SIDE * SIDE * 3 // 8
_PLACE, _GLYPH, _OTHER_GLYPH = range(_NOISE_WORDS, _NOISE_WORDS + 3)
_PROFILES = np.array([[0, 0, 1, 1], [0, 1, 1, 0], [0, 1, 0, 1]], np.uint8)
# The textures of `mixture`: symmetric stripes, so mirroring an image keeps its class.
_MIXTURE_TEXTURES = np.array([1, 4])


class _Scenes(NamedTuple):
    """What some images of a batch will show.

    Attributes:
        key: 32-bit hash of seed and task.
        rows: i[n], places of the images in the batch.
        numbers: u64[n], numbers of the images.
        labels: i[n], classes.
        textured: bool[n], for `mixture`: whether an image shows a texture, else glyphs.
    """

    key: int
    rows: np.ndarray
    numbers: np.ndarray
    labels: np.ndarray
    textured: np.ndarray

    def draw(self, counter: int, below: int) -> Int[np.ndarray, " n"]:
        """Returns a random number in 0 to below - 1 for each image."""
        words = seeded_hash(self.key, self.numbers * np.uint64(_WORDS) + np.uint64(counter))
        return (words % np.uint64(below)).astype(np.int64)

    def part(self, chosen: Bool[np.ndarray, " n"]) -> "_Scenes":
        return _Scenes(self.key, *(values[chosen] for values in self[1:]))


# Draws the patterns of some images of a batch u8[B, 32, 32, 3].
_Draw = Callable[[np.ndarray, _Scenes], None]


def _draw_texture(canvas: np.ndarray, scenes: _Scenes) -> None:
    tops, lefts = np.divmod(scenes.draw(_PLACE, _TEXTURE_PLACES**2), _TEXTURE_PLACES)
    _put(canvas, scenes, TEXTURES[scenes.labels], tops, lefts)


def _draw_pair(canvas: np.ndarray, scenes: _Scenes) -> None:
    places = pair_places()
    chosen = places[scenes.draw(_PLACE, len(places))].astype(np.int64)
    first = scenes.draw(_GLYPH, _NUM_GLYPHS)
    other = (first + 1 + scenes.draw(_OTHER_GLYPH, _NUM_GLYPHS - 1)) % _NUM_GLYPHS
    second = np.where(scenes.labels == 1, first, other)
    _put(canvas, scenes, GLYPHS[first], chosen[:, 0], chosen[:, 1])
    _put(canvas, scenes, GLYPHS[second], chosen[:, 2], chosen[:, 3])


def _draw_place(canvas: np.ndarray, scenes: _Scenes) -> None:
    centres = np.arange(_GLYPH_PLACES) + _GLYPH_SIDE / 2
    cells = (centres * GRID / SIDE).astype(np.int64)
    starts, sizes = np.searchsorted(cells, np.arange(GRID)), np.bincount(cells)
    row, column = np.divmod(scenes.labels, GRID)
    # A draw below a common multiple of all sizes is uniform in each cell.
    multiple = int(np.lcm.reduce(sizes))
    down, right = np.divmod(scenes.draw(_PLACE, multiple**2), multiple)
    tops, lefts = starts[row] + down % sizes[row], starts[column] + right % sizes[column]
    _put(canvas, scenes, GLYPHS[scenes.draw(_GLYPH, _NUM_GLYPHS)], tops, lefts)


def _draw_mixture(canvas: np.ndarray, scenes: _Scenes) -> None:
    textures = scenes.part(scenes.textured)
    _draw_texture(canvas, textures._replace(labels=_MIXTURE_TEXTURES[textures.labels]))
    _draw_pair(canvas, scenes.part(~scenes.textured))


class Task(NamedTuple):
    """A task: the names of its classes, in label order, and how its patterns are drawn."""

    class_names: tuple[str, ...]
    draw: _Draw


_STRIPES = tuple("".join(map(str, profile)) for profile in _PROFILES)
TASKS = {
    "texture": Task(
        (
            *(f"rows {stripes}" for stripes in _STRIPES),
            *(f"columns {stripes}" for stripes in _STRIPES),
            f"checks {_STRIPES[0]}",
            f"checks {_STRIPES[2]}",
        ),
        _draw_texture,
    ),
    "same": Task(("different", "same"), _draw_pair),
    "place": Task(
        tuple(f"{y} {x}" for y in ("top", "middle", "bottom") for x in ("left", "centre", "right")),
        _draw_place,
    ),
    MIXTURE: Task(("rows or different", "columns or same"), _draw_mixture),
}


def labels_of(task: str, places: Int[np.ndarray, " n"]) -> UInt8[np.ndarray, " n"]:
    """Returns the classes of examples without rendering them.

    Args:
        task: name in `TASKS`.
        places: places of the examples in their split.
    """
    return (places % len(TASKS[task].class_names)).astype(np.uint8)


def shows_texture(places: Int[np.ndarray, " n"], share: int) -> Bool[np.ndarray, " n"]:
    """Returns which examples of `mixture` show a texture.

    Args:
        places: places of the examples in their split.
        share: share of textures, in millionths.
    """
    pairs = places // 2
    return (pairs + 1) * share // MILLION > pairs * share // MILLION


def render(
    task: str,
    seed: int,
    numbers: Int[np.ndarray, " n"],
    places: Int[np.ndarray, " n"],
    share: int = MILLION,
) -> UInt8[np.ndarray, "n 32 32 3"]:
    """Renders images. An image is the same in any batch.

    Args:
        task: name in `TASKS`.
        seed: any whole number; another seed gives other images of the same task.
        numbers: numbers of the images; they determine everything random.
        places: places of the examples in their split; they determine the classes.
        share: for `mixture`, the share of textures in millionths.
    """
    scenes = _Scenes(
        key=name_id(f"rendered/{task}/{seed}"),
        rows=np.arange(len(numbers)),
        numbers=numbers.astype(np.uint64),
        labels=labels_of(task, places).astype(np.int64),
        textured=shows_texture(places, share),
    )
    canvas = np.full((len(numbers), SIDE, SIDE, 3), _BACKGROUND, np.uint8)
    TASKS[task].draw(canvas, scenes)
    return canvas + _noise(scenes)


def _noise(scenes: _Scenes) -> UInt8[np.ndarray, "n 32 32 3"]:
    """Returns independent values, uniform in 0 to 127."""
    words = scenes.numbers[:, None] * np.uint64(_WORDS) + np.arange(_NOISE_WORDS, dtype=np.uint64)
    random = seeded_hash(scenes.key, words).astype("<u8").view(np.uint8)
    return (random >> 1).reshape(-1, SIDE, SIDE, 3)


def _put(
    canvas: UInt8[np.ndarray, "B 32 32 3"],
    scenes: _Scenes,
    patterns: UInt8[np.ndarray, "n s s"],
    tops: Int[np.ndarray, " n"],
    lefts: Int[np.ndarray, " n"],
) -> None:
    """Draws one pattern of zeros and ones into each image."""
    side = np.arange(patterns.shape[1])
    down, right = tops[:, None] + side, lefts[:, None] + side
    inside = scenes.rows[:, None, None], down[:, :, None], right[:, None, :]
    canvas[inside] = patterns[..., None] * _ONE


@functools.cache
def pair_places() -> Int8[np.ndarray, "n 4"]:
    """Returns all places of two glyphs in an image: rows of (top, left, top, left)."""
    side = np.arange(_GLYPH_PLACES)
    gaps = np.square(side[:, None] - side)
    distances = gaps[:, None, :, None] + gaps[None, :, None, :]  # [top, left, top, left]
    return np.argwhere(distances >= MIN_DISTANCE**2).astype(np.int8)


def _make_textures() -> UInt8[np.ndarray, "8 4 4"]:
    rows = np.repeat(_PROFILES[:, :, None], _TEXTURE_SIDE, axis=2)
    checks = _PROFILES[:, :, None] ^ _PROFILES[:, None, :]
    return np.concatenate([rows, rows.swapaxes(1, 2), checks[[0, 2]]])


def _make_glyphs() -> UInt8[np.ndarray, "16 7 7"]:
    """Returns random patterns with 24 ones that differ in at least `_MIN_DIFFERENT` pixels."""
    pixels = _GLYPH_SIDE**2
    glyphs = np.zeros((_NUM_GLYPHS, pixels), np.uint8)
    found = candidate = 0
    while found < _NUM_GLYPHS:
        counters = np.arange(candidate * pixels, (candidate + 1) * pixels, dtype=np.uint64)
        order = np.argsort(seeded_hash(name_id("glyphs"), counters), kind="stable")
        glyphs[found] = order < pixels // 2
        different = (glyphs[:found] != glyphs[found]).sum(axis=1)
        found += bool((different >= _MIN_DIFFERENT).all())
        candidate += 1
    return glyphs.reshape(-1, _GLYPH_SIDE, _GLYPH_SIDE)


_GLYPH_PLACES, _TEXTURE_PLACES = SIDE - _GLYPH_SIDE + 1, SIDE - _TEXTURE_SIDE + 1
TEXTURES: UInt8[np.ndarray, "8 4 4"] = _make_textures()
"""The patterns of `texture`, in label order: zeros and ones."""
GLYPHS: UInt8[np.ndarray, "16 7 7"] = _make_glyphs()
"""The glyphs: zeros and ones."""
