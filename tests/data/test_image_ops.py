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
# ours, Pillow's
PAIRS = {
    "auto_contrast": (image_ops.auto_contrast, ImageOps.autocontrast),
    "equalize": (image_ops.equalize, ImageOps.equalize),
    "invert": (image_ops.invert, ImageOps.invert),
    **{
        f"posterize {bits}": (
            lambda image, bits=bits: image_ops.posterize(image, bits),
            lambda image, bits=bits: ImageOps.posterize(image, bits),
        )
        for bits in (1, 4, 7, 8)
    },
    **{
        f"solarize {threshold}": (
            lambda image, threshold=threshold: image_ops.solarize(image, threshold),
            lambda image, threshold=threshold: ImageOps.solarize(image, threshold),
        )
        for threshold in (0, 100, 178.5, 255, 256)
    },
    **{
        f"{name} {factor}": (
            lambda image, name=name, factor=factor: getattr(image_ops, name)(image, factor),
            lambda image, name=name, factor=factor: getattr(ImageEnhance, name.title())(
                image
            ).enhance(factor),
        )
        for name in ("brightness", "contrast", "color", "sharpness")
        for factor in FACTORS
    },
}


@pytest.mark.parametrize("pair", PAIRS)
def test_operations_equal_those_of_pillow(pair):
    ours, pillows = PAIRS[pair]
    for name, pixels in IMAGES.items():
        given = Image.fromarray(pixels)
        found, expected = np.asarray(ours(given)), np.asarray(pillows(given))
        np.testing.assert_array_equal(found, expected, name)
        np.testing.assert_array_equal(np.asarray(given), pixels)  # Not changed in place.


def test_posterize_to_no_bits_is_black():
    assert not np.asarray(image_ops.posterize(Image.fromarray(noise(4, 4)), 0)).any()


def test_solarize_add_brightens_the_dark_half():
    row = Image.fromarray(np.repeat(np.array([[0, 27, 127, 128, 255]], np.uint8)[..., None], 3, 2))
    found = np.asarray(image_ops.solarize_add(row, 110))[0, :, 1]
    assert found.tolist() == [110, 137, 237, 128, 255]
    found = np.asarray(image_ops.solarize_add(row, 200))[0, :, 1]
    assert found.tolist() == [200, 227, 255, 128, 255]
