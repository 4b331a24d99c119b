import numpy as np
import pytest
from images import noise, photo
from PIL import Image

from vit_jax.data.resize import decoding_shrink, resize


def by_pillow(pixels: np.ndarray, size: int) -> np.ndarray:
    """The triangle filter itself."""
    image = Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).astype(int)


def stripes(period: float, length: int) -> np.ndarray:
    """Vertical stripes of full contrast around 127.5, as a cosine."""
    x = 127.5 + 127.5 * np.cos(2 * np.pi * np.arange(length) / period)
    return np.broadcast_to(np.rint(x).astype(np.uint8)[None, :, None], (length, length, 3)).copy()


def contrast(pixels: np.ndarray) -> float:
    """Root mean square around the mean."""
    return float(pixels[:, :, 0].astype(float).std())


@pytest.mark.parametrize("size", [400, 380, 350, 320, 280, 224, 190, 160, 128, 96, 64, 32])
def test_a_very_detailed_photo_is_within_1_6_levels_of_the_triangle_filter_on_average(size):
    pixels = photo()[:400, 100:500]
    found = resize(pixels, size).astype(int)
    assert found.shape == (size, size, 3)
    difference = np.abs(found - by_pillow(pixels, size))
    assert difference.mean() < 1.6
    assert (difference > 16).mean() < 0.01


@pytest.mark.parametrize("size", [128, 224, 400, 401, 640])
def test_enlarging_is_bilinear_within_a_level(size):
    pixels = photo()[50:178, 50:178]
    assert np.abs(resize(pixels, size).astype(int) - by_pillow(pixels, size)).max() <= 1


@pytest.mark.parametrize("size", [(224, 224), (640, 500)])
def test_bicubic_is_pillows(size):
    pixels = photo()[:400, 100:500]
    height, width = size
    expected = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
    found = resize(pixels, size, interpolation="bicubic")
    np.testing.assert_array_equal(found, np.asarray(expected))


@pytest.mark.parametrize("antialias", [True, False])
def test_an_image_of_the_right_size_is_unchanged(antialias):
    pixels = noise(16, 16)
    found = resize(pixels, 16, antialias=antialias)
    np.testing.assert_array_equal(found, pixels)
    assert found.flags.c_contiguous


def test_a_strided_view_is_resized_like_a_copy():
    view = photo()[20:300, 30:390]
    assert not view.flags.c_contiguous
    np.testing.assert_array_equal(resize(view, 224), resize(view.copy(), 224))


def test_without_antialiasing_only_the_nearest_four_pixels_count():
    pixels = noise(64, 64)
    found = resize(pixels, 16, antialias=False).astype(int)
    # Output pixel i lies at 4 i + 1.5, between pixels 4 i + 1 and 4 i + 2.
    four = [pixels[y::4, x::4].astype(int) for y in (1, 2) for x in (1, 2)]
    assert np.abs(found - sum(four) / 4).max() <= 1


# Size from 256, and how much is left at most of stripes that are too fine for the result: a little
# past its Nyquist frequency (the triangle filter leaves about a third), and the finest of all.
@pytest.mark.parametrize(
    ("size", "past_nyquist", "finest"),
    [(200, 0.5, 0.47), (160, 0.43, 0.3), (128, 0.3, 0.05), (96, 0.4, 0.05), (64, 0.33, 0.02),
     (32, 0.33, 0.02)],
)  # fmt: skip
def test_patterns_too_fine_for_the_result_are_averaged_away(size, past_nyquist, finest):
    # Root mean square of a cosine, and of stripes of one black pixel and one white.
    cosine, black_white = 127.5 / np.sqrt(2), 127.5
    fine = stripes(1.8 * 256 / size, 256)
    assert contrast(resize(fine, size)) < past_nyquist * cosine
    assert contrast(resize(stripes(2, 256), size)) < finest * black_white
    # Without antialiasing more than half comes back as something coarser.
    assert contrast(resize(fine, size, antialias=False)) > 0.55 * cosine


@pytest.mark.parametrize("shape", [(1000, 40), (40, 1000), (1, 500), (500, 1), (7, 3)])
def test_each_side_is_resized_by_its_own_scale(shape):
    pixels = noise(*shape)
    found = resize(pixels, 32).astype(int)
    assert np.abs(found - by_pillow(pixels, 32)).mean() < 6
    assert abs(found.mean() - pixels.mean()) < 3


def test_an_image_shrunk_by_the_decoder_needs_less_blur():
    pixels = photo()[:400, 100:500]
    halved = pixels.reshape(200, 2, 200, 2, 3).mean(axis=(1, 3)).round().astype(np.uint8)
    for size in (100, 80, 64, 40):
        found = resize(halved, size, shrunk=2).astype(int)
        assert np.abs(found - by_pillow(pixels, size)).mean() < 1
    # Taken for an image at its full size it is blurred more than it should be.
    right, wrong = (
        np.abs(resize(halved, 100, shrunk=shrunk).astype(int) - by_pillow(pixels, 100)).mean()
        for shrunk in (2, 1)
    )
    assert wrong > right + 0.05


@pytest.mark.parametrize(
    ("width", "height", "size", "expected"),
    [(224, 224, 224, 1), (895, 895, 224, 1), (896, 896, 224, 2), (896, 800, 224, 1),
     (1791, 1791, 224, 2), (1792, 4000, 224, 4), (3584, 3584, 224, 8), (9999, 9999, 224, 8),
     (10, 10, 224, 1)],
)  # fmt: skip
def test_jpegs_are_shrunk_by_the_power_of_two_that_leaves_less_than_4(
    width, height, size, expected
):
    assert decoding_shrink(width, height, size) == expected
