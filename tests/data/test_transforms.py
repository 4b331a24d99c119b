import io

import numpy as np
import pytest
from PIL import Image

from vit_jax.config import AugmentConfig
from vit_jax.data.transforms import (
    decode,
    inception_box,
    make_eval_transform,
    make_train_transform,
)
from vit_jax.errors import DataError


def encode(image: Image.Image | np.ndarray, kind: str = "PNG", **options) -> bytes:
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    held = io.BytesIO()
    image.save(held, kind, **options)
    return held.getvalue()


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=(height, width, 3), dtype=np.uint8)


def _gray_16(big_endian: bool) -> bytes:
    values = np.array([[0, 255, 256, 65535]], ">u2" if big_endian else "<u2")
    return encode(values, "TIFF") if big_endian else encode(values)


def _palette(transparent: bool) -> bytes:
    image = Image.new("P", (2, 1))
    image.putpalette([9, 8, 7, 6, 5, 4])
    image.putdata([1, 0])
    return encode(image, transparency=bytes([0, 128])) if transparent else encode(image)


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (encode(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8)), [[1, 2, 3], [4, 5, 6]]),
        (encode(np.array([[0, 128, 255]], np.uint8)), [[0] * 3, [128] * 3, [255] * 3]),
        (encode(Image.new("1", (1, 1), 1)), [[255, 255, 255]]),
        (encode(Image.new("LA", (1, 1), (7, 0))), [[7, 7, 7]]),
        (encode(Image.new("RGBA", (1, 1), (10, 20, 30, 0))), [[10, 20, 30]]),
        (encode(Image.new("CMYK", (1, 1), (0, 255, 255, 0)), "TIFF"), [[255, 0, 0]]),
        (_palette(transparent=False), [[6, 5, 4], [9, 8, 7]]),
        (_palette(transparent=True), [[6, 5, 4], [9, 8, 7]]),
        # The high byte of 0, 255, 256 and 65535.
        (_gray_16(big_endian=False), [[0] * 3, [0] * 3, [1] * 3, [255] * 3]),
        (_gray_16(big_endian=True), [[0] * 3, [0] * 3, [1] * 3, [255] * 3]),
    ],
    ids=["rgb", "gray", "bit", "gray+alpha", "rgba", "cmyk", "palette", "palette+alpha", "16-bit",
         "16-bit-big-endian"],
)  # fmt: skip
def test_every_pixel_format_becomes_rgb(encoded, expected):
    image = decode(encoded)
    assert image.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(image)[0], expected)


@pytest.mark.parametrize(("kind", "largest_error"), [("WEBP", 40), ("BMP", 0), ("JPEG", 40)])
def test_other_file_formats_are_read(kind, largest_error):
    smooth = np.broadcast_to(np.arange(0, 256, 8, dtype=np.uint8)[:, None, None], (32, 32, 3))
    found = np.asarray(decode(encode(np.ascontiguousarray(smooth), kind)))
    assert np.abs(found.astype(int) - smooth).max() <= largest_error


@pytest.mark.parametrize(
    ("encoded", "part"),
    [
        (b"", "unreadable image of 0 bytes starting with nothing"),
        (b"not an image at all", "unreadable image of 19 bytes starting with 6e 6f 74 20"),
        (encode(noise(32, 32))[:-300], "starting with 89 50 4e 47"),
        (encode(noise(32, 32), "JPEG")[:-300], "starting with ff d8 ff e0"),
        (encode(noise(32, 32))[:20], "of 20 bytes"),
    ],
    ids=["empty", "text", "cut-png", "cut-jpeg", "cut-header"],
)
def test_unreadable_bytes_are_a_data_error(encoded, part):
    with pytest.raises(DataError) as caught:
        decode(encoded)
    assert part in caught.value.got


@pytest.mark.parametrize("size", [(640, 480), (97, 301), (32, 32)])
def test_boxes_lie_inside_the_image_with_area_and_ratio_in_range(size):
    width, height = size
    rng = np.random.default_rng(0)
    boxes = np.array([inception_box(size, 0.2, 0.6, rng) for _ in range(2000)])
    left, top, right, bottom = boxes.T
    assert left.min() >= 0
    assert top.min() >= 0
    assert right.max() <= width
    assert bottom.max() <= height
    # Sides are rounded to whole pixels: half a pixel of slack each.
    w, h = right - left, bottom - top
    assert np.all((w + 0.5) * (h + 0.5) >= 0.2 * width * height)
    assert np.all((w - 0.5) * (h - 0.5) <= 0.6 * width * height)
    assert np.all((w + 0.5) / (h - 0.5) >= 3 / 4)
    assert np.all((w - 0.5) / (h + 0.5) <= 4 / 3)


def test_area_and_log_ratio_are_uniform():
    rng = np.random.default_rng(0)
    boxes = np.array([inception_box((2000, 2000), 0.2, 0.5, rng) for _ in range(4000)])
    w, h = (boxes[:, 2] - boxes[:, 0]), (boxes[:, 3] - boxes[:, 1])
    quartiles = [0.25, 0.5, 0.75]
    area = np.quantile(w * h / 2000**2, quartiles)
    np.testing.assert_allclose(area, [0.275, 0.35, 0.425], atol=0.01)
    log_ratio = np.quantile(np.log(w / h), quartiles) / np.log(4 / 3)
    np.testing.assert_allclose(log_ratio, [-0.5, 0, 0.5], atol=0.05)


def test_boxes_reach_every_place():
    rng = np.random.default_rng(0)
    boxes = np.array([inception_box((20, 20), 0.25, 0.25, rng) for _ in range(500)])
    assert boxes[:, 0].min() == boxes[:, 1].min() == 0
    assert boxes[:, 2].max() == boxes[:, 3].max() == 20


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        # Ratio 100: as wide as 4/3 of the height allows, round(10 * 4/3) = 13, in the middle.
        ((1000, 10), (493, 0, 506, 10)),
        ((10, 1000), (0, 493, 10, 506)),
        # Every drawn side rounds to 0 or to more than the image has.
        ((1, 1), (0, 0, 1, 1)),
    ],
)
def test_where_no_box_fits_it_is_the_largest_central_one(size, expected):
    for seed in range(5):
        found = inception_box(size, 0.04, 0.2, np.random.default_rng(seed))
        assert found == expected


def test_full_area_of_a_wide_image_falls_back_to_the_whole():
    # Ratio 30/29 is allowed, and rarely is exactly this one drawn.
    for seed in range(20):
        found = inception_box((30, 29), 1.0, 1.0, np.random.default_rng(seed))
        assert found == (0, 0, 30, 29)


@pytest.mark.parametrize(
    "augment",
    [
        AugmentConfig(),
        AugmentConfig(crop="pad", pad_pixels=3),
        AugmentConfig(randaugment_layers=3, randaugment_magnitude=10),
    ],
    ids=["inception", "pad", "randaugment"],
)
def test_training_images_are_reproducible_and_differ_by_generator(augment):
    transform = make_train_transform(16, augment)
    encoded = encode(noise(20, 24))
    one, same, other = (transform(encoded, np.random.default_rng(s)) for s in (5, 5, 6))
    assert one.shape == (16, 16, 3)
    assert one.dtype == np.uint8
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_inception_crop_of_the_whole_area_is_the_whole_image():
    pixels = noise(16, 16)
    transform = make_train_transform(16, AugmentConfig(min_area=1.0))
    found = transform(encode(pixels), np.random.default_rng(0))
    np.testing.assert_array_equal(found, pixels)


def test_inception_crop_takes_the_drawn_box():
    pixels = noise(40, 40)
    box = inception_box((40, 40), 0.3, 0.5, np.random.default_rng(3))
    found = make_train_transform(16, AugmentConfig(min_area=0.3, max_area=0.5))(
        encode(pixels), np.random.default_rng(3)
    )
    cropped = Image.fromarray(pixels).crop(box)
    expected = np.asarray(cropped.resize((16, 16), Image.Resampling.BILINEAR))
    # The outermost pixels see beyond the box, as in a resize of the whole image.
    np.testing.assert_array_equal(found[1:-1, 1:-1], expected[1:-1, 1:-1])


def test_pad_crop_moves_the_image_by_the_drawn_pixels_with_black_coming_in():
    pixels = noise(8, 8) | 1  # No black in the image itself.
    transform = make_train_transform(8, AugmentConfig(crop="pad", pad_pixels=2))
    seen = set()
    for seed in range(60):
        dx, dy = np.random.default_rng(seed).integers(-2, 3, size=2)
        found = transform(encode(pixels), np.random.default_rng(seed))
        padded = np.pad(pixels, ((2, 2), (2, 2), (0, 0)))
        np.testing.assert_array_equal(found, padded[2 + dy : 10 + dy, 2 + dx : 10 + dx])
        seen |= {(int(dx), int(dy))}
    assert {dx for dx, _ in seen} == {dy for _, dy in seen} == {-2, -1, 0, 1, 2}


def test_resize_crop_squashes_and_does_nothing_else():
    pixels = np.repeat(np.repeat(noise(4, 4), 2, axis=0), 3, axis=1)  # 8 high, 12 wide.
    transform = make_train_transform(4, AugmentConfig(crop="resize"))
    found = transform(encode(pixels), np.random.default_rng(0))
    expected = Image.fromarray(pixels).resize((4, 4), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(found, np.asarray(expected))
    same = make_train_transform(8, AugmentConfig(crop="resize"))(
        encode(noise(8, 8)), np.random.default_rng(0)
    )
    np.testing.assert_array_equal(same, noise(8, 8))


@pytest.mark.parametrize(
    ("height", "width", "top", "left"),
    [(256, 256, 16, 16), (256, 512, 16, 144), (400, 256, 88, 16)],
)
def test_central_crop_of_a_short_side_of_256_is_the_middle_224(height, width, top, left):
    pixels = noise(height, width)
    found = make_eval_transform(224, "central")(encode(pixels), np.random.default_rng(0))
    np.testing.assert_array_equal(found, pixels[top : top + 224, left : left + 224])


def test_central_crop_halves_an_image_of_512():
    # A ramp along x: pixel i averages source pixels around 32 + 2i + 0.5, each half its place.
    ramp = np.broadcast_to((np.arange(512) // 2).astype(np.uint8)[None, :, None], (512, 512, 3))
    found = make_eval_transform(224, "central")(
        encode(np.ascontiguousarray(ramp)), np.random.default_rng(0)
    )
    expected = (32 + 2 * np.arange(224)) // 2
    np.testing.assert_allclose(found[7, :, 1], expected, atol=1)


def test_evaluation_is_antialiased_in_every_crop():
    # One-pixel stripes shrunk by eight are gray; without antialiasing they would be black or white.
    stripes = np.zeros((128, 128, 3), np.uint8)
    stripes[:, ::2] = 255
    for crop in ("central", "resize"):
        found = make_eval_transform(16, crop)(encode(stripes), np.random.default_rng(0))
        assert np.abs(found.astype(int) - 128).max() <= 5


def test_evaluation_by_squashing_keeps_an_image_of_the_right_size():
    pixels = noise(8, 8)
    found = make_eval_transform(8, "resize")(encode(pixels), np.random.default_rng(0))
    np.testing.assert_array_equal(found, pixels)
    wide = make_eval_transform(8, "resize")(encode(noise(9, 30)), np.random.default_rng(0))
    assert wide.shape == (8, 8, 3)


def test_evaluation_draws_nothing():
    rng = np.random.default_rng(0)
    make_eval_transform(8, "central")(encode(noise(9, 9)), rng)
    assert rng.integers(2**62) == np.random.default_rng(0).integers(2**62)


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1)])
@pytest.mark.parametrize("crop", ["inception", "pad", "resize", "central"])
def test_the_thinnest_images_are_no_trouble(size, crop):
    encoded = encode(noise(*size))
    if crop == "central":
        transform = make_eval_transform(16, crop)
    else:
        transform = make_train_transform(16, AugmentConfig(crop=crop))
    assert transform(encoded, np.random.default_rng(0)).shape == (16, 16, 3)
