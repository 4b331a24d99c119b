import numpy as np
import pytest
from images import noise
from PIL import Image

from vit_jax.data.randaugment_torchvision import OPERATIONS, randaugment_torchvision

SIGNED = {
    "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast",
    "sharpness",
}  # fmt: skip


def apply(name: str, pixels, level: float) -> np.ndarray:
    """Applies one operation to gray values [H, W]; all three channels must stay equal."""
    rgb = np.repeat(np.array(pixels, np.uint8)[:, :, None], 3, axis=2)
    found = np.asarray(OPERATIONS[name][0](Image.fromarray(rgb), level))
    assert (found == found[:, :, :1]).all()
    return found[:, :, 0]


ROW = [[0, 16, 31, 100, 127, 128, 200, 255]]
RAMP = 1 + np.arange(8)[None, :] * 10 + np.arange(4)[:, None]  # No two pixels alike, none black.


def test_there_are_torchvisions_fourteen_operations_nine_of_them_signed():
    assert len(OPERATIONS) == 14
    assert {name for name, (_, signed) in OPERATIONS.items() if signed} == SIGNED


@pytest.mark.parametrize(
    ("name", "level", "expected"),
    [
        ("identity", 1.0, ROW[0]),
        # 8, 7, 6 and 4 bits: 8 - round(4 m / 30), halves to even.
        ("posterize", 0.0, [0, 16, 31, 100, 127, 128, 200, 255]),
        ("posterize", 3 / 30, [0, 16, 31, 100, 127, 128, 200, 255]),
        ("posterize", 9 / 30, [0, 16, 30, 100, 126, 128, 200, 254]),
        ("posterize", 15 / 30, [0, 16, 28, 100, 124, 128, 200, 252]),
        ("posterize", 1.0, [0, 16, 16, 96, 112, 128, 192, 240]),
        # From 255, 178.5, 127.5 and 0 on.
        ("solarize", 0.0, [0, 16, 31, 100, 127, 128, 200, 0]),
        ("solarize", 9 / 30, [0, 16, 31, 100, 127, 128, 55, 0]),
        ("solarize", 0.5, [0, 16, 31, 100, 127, 127, 55, 0]),
        ("solarize", 1.0, [255, 239, 224, 155, 128, 127, 55, 0]),
        # Times 1.9, 1, 0.73 and 0.1.
        ("brightness", 1.0, [0, 30, 58, 190, 241, 243, 255, 255]),
        ("brightness", 0.0, [0, 16, 31, 100, 127, 128, 200, 255]),
        ("brightness", -9 / 30, [0, 11, 22, 73, 92, 93, 146, 186]),
        ("brightness", -1.0, [0, 1, 3, 10, 12, 12, 20, 25]),
        ("color", -1.0, [0, 16, 31, 100, 127, 128, 200, 255]),  # Grays have no colour to lose.
    ],
)
def test_pixel_values_by_hand(name, level, expected):
    np.testing.assert_allclose(apply(name, ROW, level)[0], expected, atol=1)
    if name in ("identity", "posterize", "solarize"):
        assert apply(name, ROW, level).tolist() == [expected]


def test_contrast_moves_towards_and_away_from_the_mean():
    # The mean is 150: 150 +- 0.1 * 50, 150 +- 1.9 * 50, 150 +- 1.27 * 50.
    assert apply("contrast", [[100, 200]], -1.0).tolist() == [[145, 155]]
    assert apply("contrast", [[100, 200]], 1.0).tolist() == [[55, 245]]
    assert apply("contrast", [[100, 200]], 9 / 30).tolist() == [[86, 213]]


def test_color_moves_towards_and_away_from_gray():
    red = Image.new("RGB", (1, 1), (200, 0, 0))  # Gray: round(200 * 0.299) = 60.
    change = OPERATIONS["color"][0]
    assert change(red, -1.0).getpixel((0, 0)) == (74, 54, 54)
    assert change(red, 0.0).getpixel((0, 0)) == (200, 0, 0)
    assert change(red, 1.0).getpixel((0, 0)) == (255, 0, 0)


def test_sharpness_moves_towards_and_away_from_the_smoothed_image():
    pixels = np.zeros((5, 5), int)
    pixels[2, 2] = 130
    # Smoothed by (5 in the centre, 1 around it) / 13: 50 in the middle, 10 beside it.
    assert apply("sharpness", pixels, 1.0)[2, 1:3].tolist() == [0, 202]  # 50 + 1.9 * 80
    assert apply("sharpness", pixels, -1.0)[2, 1:3].tolist() == [9, 58]  # 50 + 0.1 * 80
    np.testing.assert_array_equal(apply("sharpness", pixels, 0.0), pixels)


def test_auto_contrast_and_equalize_ignore_the_magnitude():
    # (75 - 50) * 255 / (101 - 50) = 125
    assert apply("auto_contrast", [[50, 75, 101]], 0.2).tolist() == [[0, 125, 255]]
    pixels = np.repeat([10, 11, 12, 200], 256).reshape(32, 32)
    assert np.unique(apply("equalize", pixels, 0.2)).tolist() == [0, 85, 171, 255]


def test_translation_is_by_whole_pixels_and_fills_with_black():
    # 150 / 331 of 8 pixels are 3.6, of 4 are 1.8: at a half 1 and 0 pixels, at the end 3 and 1.
    right, left = apply("translate_x", RAMP, 0.5), apply("translate_x", RAMP, -0.5)
    np.testing.assert_array_equal(right[:, 1:], RAMP[:, :-1])
    assert (right[:, 0] == 0).all()
    np.testing.assert_array_equal(left[:, :-1], RAMP[:, 1:])
    assert (left[:, -1] == 0).all()
    np.testing.assert_array_equal(apply("translate_x", RAMP, 1.0)[:, 3:], RAMP[:, :-3])
    np.testing.assert_array_equal(apply("translate_y", RAMP, 0.5), RAMP)
    down, up = apply("translate_y", RAMP, 1.0), apply("translate_y", RAMP, -1.0)
    np.testing.assert_array_equal(down[1:], RAMP[:-1])
    assert (down[0] == 0).all()
    np.testing.assert_array_equal(up[:-1], RAMP[1:])
    assert (up[-1] == 0).all()


def inverse_affine(angle, shear_x, shear_y, centre):
    """torchvision's matrix, written out: rotation and shear around a centre, then inverted."""
    rotation, x, y = np.radians(angle), np.radians(shear_x), np.radians(shear_y)
    forward = np.array(
        [
            [
                np.cos(rotation - y) / np.cos(y),
                -np.cos(rotation - y) * np.tan(x) / np.cos(y) - np.sin(rotation),
            ],
            [
                np.sin(rotation - y) / np.cos(y),
                -np.sin(rotation - y) * np.tan(x) / np.cos(y) + np.cos(rotation),
            ],
        ]
    )
    inverse = np.linalg.inv(forward)
    return inverse, np.array(centre) - inverse @ np.array(centre)


def nearest(pixels: np.ndarray, matrix, offset) -> tuple[np.ndarray, np.ndarray]:
    """Samples at pixel centres; black outside. Also which pixels are no matter of rounding."""
    height, width = pixels.shape[:2]
    y, x = np.mgrid[:height, :width] + 0.5
    source_x = matrix[0, 0] * x + matrix[0, 1] * y + offset[0]
    source_y = matrix[1, 0] * x + matrix[1, 1] * y + offset[1]
    column, row = np.floor(source_x).astype(int), np.floor(source_y).astype(int)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    found = np.where(
        inside[..., None], pixels[row.clip(0, height - 1), column.clip(0, width - 1)], 0
    )
    sure = np.ones(inside.shape, bool)
    for source in (source_x, source_y):
        sure &= np.abs(source - np.round(source)) > 1e-3
    # Where a coordinate stays what it is, it lies at a half and nothing is to be rounded.
    return found, sure


@pytest.mark.parametrize("magnitude", [3, 9, 17, 30])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", ["shear_x", "shear_y", "rotate"])
def test_geometry_equals_torchvisions_matrices(name, sign, magnitude):
    pixels = noise(40, 56)
    level = sign * magnitude / 30
    shear = np.degrees(np.arctan(0.3 * level))
    matrix, offset = {
        "shear_x": inverse_affine(0, shear, 0, (0, 0)),
        "shear_y": inverse_affine(0, 0, shear, (0, 0)),
        # Counterclockwise, where torchvision's own angles are clockwise.
        "rotate": inverse_affine(-30 * level, 0, 0, (28, 20)),
    }[name]
    expected, sure = nearest(pixels, matrix, offset)
    found = np.asarray(OPERATIONS[name][0](Image.fromarray(pixels), level))
    assert sure.mean() > 0.95
    np.testing.assert_array_equal(found[sure], expected[sure])
    assert (found != pixels).any()


@pytest.mark.parametrize("name", list(OPERATIONS))
@pytest.mark.parametrize("size", [(13, 7), (1, 1)])
def test_size_and_mode_are_kept_at_any_level(name, size):
    operation, signed = OPERATIONS[name]
    for level in (0.0, 0.3, 1.0, *((-0.3, -1.0) if signed else ())):
        found = operation(Image.fromarray(noise(*size[::-1])), level)
        assert (found.mode, found.size) == ("RGB", size)


def test_operations_are_drawn_with_replacement_and_applied_in_order_at_m_of_30():
    pixels = noise(16, 16)
    names = list(OPERATIONS)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        expected = Image.fromarray(pixels)
        for _ in range(3):
            name = names[rng.integers(14)]
            minus = name in SIGNED and rng.integers(2)
            expected = OPERATIONS[name][0](expected, -9 / 30 if minus else 9 / 30)
        found = randaugment_torchvision(
            Image.fromarray(pixels), 3, 9.0, np.random.default_rng(seed)
        )
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_every_operation_is_drawn_with_either_sign(monkeypatch):
    drawn = set()
    for name, (_, signed) in list(OPERATIONS.items()):
        monkeypatch.setitem(
            OPERATIONS,
            name,
            (lambda image, level, name=name: drawn.add((name, level)) or image, signed),
        )
    rng = np.random.default_rng(0)
    for _ in range(200):
        randaugment_torchvision(Image.new("RGB", (2, 2)), 2, 15.0, rng)
    assert drawn == {(name, 0.5) for name in OPERATIONS} | {(name, -0.5) for name in SIGNED}
