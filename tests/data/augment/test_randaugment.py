from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.augment.randaugment import OPERATIONS, RandAugment


class Draws(np.random.Generator):
    """A generator whose integers are given beforehand; signs: 1 is plus, 0 is minus."""

    def __init__(self, *values: int):
        super().__init__(np.random.PCG64(0))
        self.values = list(values)

    def integers(self, high: int) -> int:
        value = self.values.pop(0)
        assert value < high
        return value


def apply(name: str, pixels, level: float, *draws: int) -> np.ndarray:
    """Applies one operation to gray values [H, W]; all three channels must stay equal."""
    rgb = np.repeat(np.array(pixels, np.uint8)[:, :, None], 3, axis=2)
    found = np.asarray(OPERATIONS[name](Image.fromarray(rgb), level, Draws(*draws)))
    assert (found == found[:, :, :1]).all()
    return found[:, :, 0]


GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "randaugment_paper.npz")


@pytest.mark.parametrize("case", sorted(set(GOLDEN["names"].tolist())))
def test_operations_agree_with_the_authors_code_within_one_level(case):
    """The goldens are what the formulas of the authors' code give in TensorFlow 2.21.

    A case is an operation, a level, and where there is one a sign. Translations there are 100
    pixels at level 1; here the same share of the image as 100 are of 224.
    """
    name, level, sign = (*case.split(), "1")[:3]
    draw = 1 if sign == "1" else 0
    given = Image.fromarray(GOLDEN["image"])
    found = np.asarray(OPERATIONS[name](given, float(level), Draws(draw))).astype(int)
    expected = GOLDEN["outputs"][GOLDEN["names"].tolist().index(case)]
    assert np.abs(found - expected).max() <= 1
    assert np.abs(found - GOLDEN["image"]).max() > 1  # Something was done.


def test_the_goldens_cover_every_operation_except_cutout():
    assert {case.split()[0] for case in GOLDEN["names"].tolist()} | {"cutout"} == set(OPERATIONS)


ROW = [[0, 16, 31, 100, 127, 128, 200, 255]]
GRAY = 128


@pytest.mark.parametrize(
    ("name", "level", "expected"),
    [
        ("posterize", 3.0, [0, 16, 31, 100, 127, 128, 200, 255]),  # 8 bits.
        ("solarize_add", 3.0, [255, 255, 255, 255, 255, 128, 200, 255]),  # 330 more below 128.
    ],
)
def test_pixel_values_by_hand(name, level, expected):
    assert apply(name, ROW, level).tolist() == [expected]


def test_translation_at_level_one_is_100_of_224_pixels():
    pixels = np.arange(224)[None, :].repeat(2, axis=0)
    found = apply("translate_x", pixels, 1.0, 1)[0]
    assert found.tolist() == [*range(100, 224), *[GRAY] * 100]


@pytest.mark.parametrize(
    ("centre", "rows", "columns"),
    [((28, 28), (18, 38), (18, 38)), ((0, 55), (45, 56), (0, 10)), ((55, 3), (0, 13), (45, 56))],
)
def test_cutout_grays_a_square_of_80_of_224_pixels_cut_off_at_the_border(centre, rows, columns):
    found = apply("cutout", np.zeros((56, 56)), 1.0, *centre)
    expected = np.zeros((56, 56))
    expected[slice(*rows), slice(*columns)] = GRAY
    np.testing.assert_array_equal(found, expected)


def test_cutout_at_level_zero_changes_nothing_and_never_its_input():
    image = Image.new("RGB", (56, 56))
    for level in (0.0, 1.0):
        OPERATIONS["cutout"](image, level, np.random.default_rng(0))
        assert image.getextrema() == ((0, 0),) * 3
    assert (apply("cutout", np.zeros((56, 56)), 0.0, 3, 4) == 0).all()


@pytest.mark.parametrize("name", list(OPERATIONS))
@pytest.mark.parametrize("size", [(13, 7), (1, 1)])
def test_size_and_mode_are_kept_at_any_level(name, size):
    pixels = np.random.default_rng(0).integers(256, size=(*size[::-1], 3), dtype=np.uint8)
    for level in (0.0, 0.45, 1.0, 3.0):
        found = OPERATIONS[name](Image.fromarray(pixels), level, np.random.default_rng(1))
        assert (found.mode, found.size) == ("RGB", size)


def test_operations_are_drawn_with_replacement_and_applied_in_order_at_a_tenth_of_the_magnitude():
    pixels = np.random.default_rng(0).integers(256, size=(16, 16, 3), dtype=np.uint8)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        expected = Image.fromarray(pixels)
        for i in rng.integers(16, size=3):
            name = list(OPERATIONS)[i]
            expected = OPERATIONS[name](expected, 0.7, rng)
        found = RandAugment(layers=3, magnitude=7.0)(
            Image.fromarray(pixels), np.random.default_rng(seed)
        )
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
