import numpy as np
import pytest
from images import noise, photo
from PIL import Image, ImageEnhance, ImageOps

from vit_jax.data import image_ops

FLAT = np.full((9, 5, 3), 77, np.uint8)
NARROW = noise(30, 20) % 30 + 100
IMAGES = {
    "photo": np.ascontiguousarray(photo()[100:160, 200:280]),
    "noise": noise(17, 23),
    "narrow": NARROW,
    "dark": noise(40, 40) % 3,
    "flat": FLAT,
    "pixel": noise(1, 1),
    "line": noise(1, 40),
    "two": noise(2, 2),
}
FACTORS = (0.0, 0.1, 0.37, 0.73, 1.0, 1.27, 1.9)


def enhanced(name):
    return lambda image, factor: getattr(ImageEnhance, name.title())(image).enhance(factor)


@pytest.mark.parametrize(
    ("name", "pillows", "settings"),
    [
        ("auto_contrast", ImageOps.autocontrast, None),
        ("equalize", ImageOps.equalize, None),
        ("invert", ImageOps.invert, None),
        ("posterize", ImageOps.posterize, (1, 4, 7, 8)),
        ("solarize", ImageOps.solarize, (0, 100, 178.5, 255, 256)),
        ("brightness", enhanced("brightness"), FACTORS),
        ("contrast", enhanced("contrast"), FACTORS),
        ("color", enhanced("color"), FACTORS),
        ("sharpness", enhanced("sharpness"), FACTORS),
    ],
)
def test_operations_equal_those_of_pillow(name, pillows, settings):
    ours = getattr(image_ops, name)
    for about, pixels in IMAGES.items():
        for arguments in [(setting,) for setting in settings] if settings else [()]:
            given = Image.fromarray(pixels)
            found, expected = ours(given, *arguments), pillows(given, *arguments)
            message = f"{about} {arguments}"
            np.testing.assert_array_equal(np.asarray(found), np.asarray(expected), message)
            np.testing.assert_array_equal(np.asarray(given), pixels)  # Not changed in place.


def test_posterize_to_no_bits_is_black():
    assert not np.asarray(image_ops.posterize(Image.fromarray(noise(4, 4)), 0)).any()


def test_solarize_add_brightens_the_dark_half():
    row = Image.fromarray(np.repeat(np.array([[0, 27, 127, 128, 255]], np.uint8)[..., None], 3, 2))
    found = np.asarray(image_ops.solarize_add(row, 110))[0, :, 1]
    assert found.tolist() == [110, 137, 237, 128, 255]
    found = np.asarray(image_ops.solarize_add(row, 200))[0, :, 1]
    assert found.tolist() == [200, 227, 255, 128, 255]
