import numpy as np
import pytest
from images import noise
from PIL import Image

from vit_jax.data.randaugment_timm import OPERATIONS, randaugment_timm

SIGNED = {
    "rotate", "color", "contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x",
    "translate_y",
}  # fmt: skip
FILL = [124, 116, 104]
ROW = [[0, 16, 31, 100, 127, 128, 200, 255]]


def apply(name: str, pixels, level: float) -> np.ndarray:
    """Applies one operation to gray values [H, W]; returns all three channels."""
    rgb = np.repeat(np.array(pixels, np.uint8)[:, :, None], 3, axis=2)
    return np.asarray(OPERATIONS[name][0](Image.fromarray(rgb), level)).astype(int)


def test_there_are_timms_fifteen_operations_nine_of_them_signed():
    assert len(OPERATIONS) == 15
    assert {name for name, (_, signed) in OPERATIONS.items() if signed} == SIGNED


@pytest.mark.parametrize(
    ("name", "level", "expected"),
    [
        ("invert", 0.9, [255, 239, 224, 155, 128, 127, 55, 0]),
        # 4, 1 and 0 bits: 4 - int(4 m / 10).
        ("posterize", 0.0, [0, 16, 16, 96, 112, 128, 192, 240]),
        ("posterize", 0.9, [0, 0, 0, 0, 0, 128, 128, 128]),
        ("posterize", 1.0, [0, 0, 0, 0, 0, 0, 0, 0]),
        # From 256, 256 - 230 = 26 and 0 on.
        ("solarize", 0.0, [0, 16, 31, 100, 127, 128, 200, 255]),
        ("solarize", 0.9, [0, 16, 224, 155, 128, 127, 55, 0]),
        ("solarize", 1.0, [255, 239, 224, 155, 128, 127, 55, 0]),
        # 99 more below 128.
        ("solarize_add", 0.9, [99, 115, 130, 199, 226, 128, 200, 255]),
        # Times 0.19.
        ("brightness", -0.9, [0, 3, 5, 19, 24, 24, 38, 48]),
    ],
)
def test_pixel_values_by_hand(name, level, expected):
    assert apply(name, ROW, level)[0, :, 0].tolist() == expected


def test_contrast_at_magnitude_nine_is_around_the_mean_by_1_81_and_0_19():
    # The mean is 150: 150 +- 1.81 * 50 and 150 +- 0.19 * 50.
    assert apply("contrast", [[100, 200]], 0.9)[0, :, 0].tolist() == [59, 240]
    assert apply("contrast", [[100, 200]], -0.9)[0, :, 0].tolist() == [140, 159]


def test_rotation_at_magnitude_nine_is_by_27_degrees_counterclockwise():
    pixels = np.zeros((101, 101))
    pixels[48:53, 88:93] = 255  # 40 right of the centre.
    found = apply("rotate", pixels, 0.9)[:, :, 0]
    inside = np.hypot(*(np.mgrid[:101, :101] - 50)) < 48  # Without the filled corners.
    rows, columns = np.nonzero((found > 128) & inside)
    assert abs(np.degrees(np.arctan2(50 - rows.mean(), columns.mean() - 50)) - 27) < 0.5
    assert apply("rotate", pixels, 0.9)[0, 0].tolist() == FILL


def test_translation_by_45_percent_of_the_width_fills_with_imagenets_mean():
    pixels = np.tile(np.arange(20) * 10, (3, 1))
    found = apply("translate_x", pixels, 1.0)  # 9 of 20 pixels to the left.
    assert found[0, :11, 0].tolist() == pixels[0, 9:].tolist()
    assert (found[:, 11:] == FILL).all()
    up = apply("translate_y", pixels.T, -1.0)  # Down by 9.
    assert up[9:, 0, 0].tolist() == pixels[0, :11].tolist()


def test_shear_moves_the_last_row_by_the_slope_times_its_height():
    pixels = np.zeros((100, 100))
    pixels[:, 60:] = 255
    found = apply("shear_x", pixels, 0.9)[:, :, 0]  # Slope 0.27, about the upper left corner.
    edge = np.argmax(found > 128, axis=1)
    assert edge[0] == 60
    assert abs(edge[99] - (60 - 0.27 * 99.5)) <= 1


def test_a_quarter_of_the_images_is_unchanged_and_magnitudes_are_normal_and_clipped(monkeypatch):
    levels = []
    for name in OPERATIONS:
        monkeypatch.setitem(
            OPERATIONS, name, (lambda image, level: levels.append(level) or image, False)
        )
    image, rng, counts = Image.new("RGB", (2, 2)), np.random.default_rng(0), []
    for _ in range(4000):
        before = len(levels)
        randaugment_timm(image, 2, 9.0, rng)
        counts.append(len(levels) - before)
    # 0, 1 and 2 operations: binomial of two draws at 1/2, within 3.5 standard errors.
    shares = np.bincount(counts, minlength=3) / 4000
    np.testing.assert_allclose(shares, [0.25, 0.5, 0.25], atol=0.028)
    # N(0.9, 0.05); 2.3 % are more than two deviations above the mean: clipped to 1.
    assert abs(np.median(levels) - 0.9) < 0.004
    assert max(levels) == 1.0
    assert abs(np.mean(np.array(levels) == 1.0) - 0.0228) < 0.009


def test_every_operation_is_drawn_with_both_signs_where_it_has_one(monkeypatch):
    drawn = set()
    for name, (_, signed) in list(OPERATIONS.items()):
        monkeypatch.setitem(
            OPERATIONS,
            name,
            (lambda image, level, name=name: drawn.add((name, level < 0)) or image, signed),
        )
    rng = np.random.default_rng(0)
    for _ in range(500):
        randaugment_timm(Image.new("RGB", (2, 2)), 2, 9.0, rng)
    assert drawn == {(name, False) for name in OPERATIONS} | {(name, True) for name in SIGNED}


@pytest.mark.parametrize("name", list(OPERATIONS))
@pytest.mark.parametrize("size", [(13, 7), (1, 1)])
def test_size_and_mode_are_kept_at_any_level(name, size):
    image = Image.fromarray(noise(*size[::-1]))
    for level in (-1.0, -0.45, 0.0, 0.9, 1.0):
        operation, signed = OPERATIONS[name]
        found = operation(image, level if signed else abs(level))
        assert (found.mode, found.size) == ("RGB", size)
