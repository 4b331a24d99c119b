import io

import numpy as np
import pytest
from images import encode, noise, photo
from PIL import Image

from vit_jax.config.data import DataConfig
from vit_jax.data import decode as decode_module
from vit_jax.data.augment.color_jitter import ColorJitter
from vit_jax.data.augment.randaugment import RandAugment
from vit_jax.data.augment.three_augment import ThreeAugment
from vit_jax.data.boxes import central_box
from vit_jax.data.crops import CROPS
from vit_jax.data.crops.inception import paper_box, torchvision_box
from vit_jax.data.jpeg import UnsupportedJpegError
from vit_jax.data.randaugment_timm import randaugment_timm
from vit_jax.data.resize import resize
from vit_jax.data.transforms import make_eval_transform, make_train_transform


def train(
    encoded: bytes, size: int, seed: int = 0, crop: str = "inception", augment=None, **options
) -> np.ndarray:
    """Options are those of the crop, but for interpolation and antialias."""
    sampling = {n: options.pop(n) for n in ("interpolation", "antialias") if n in options}
    augment = {"crop": {"name": crop, **options}, **(augment or {})}
    data = DataConfig(name="", global_batch_size=1, augment=augment, **sampling)
    return make_train_transform(size, data)(encoded, np.random.default_rng(seed))


def evaluate(encoded: bytes, size: int, crop: str = "central", **options) -> np.ndarray:
    return make_eval_transform(size, crop, **options)(encoded, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("flavour", "draw"), [("paper", paper_box), ("torchvision", torchvision_box)]
)
def test_inception_crop_takes_the_drawn_box_of_its_flavour(flavour, draw):
    pixels = noise(40, 50)
    left, top, right, bottom = draw((50, 40), np.random.default_rng(3), 0.3)
    found = train(encode(pixels), 16, 3, min_area=0.3, flavour=flavour)
    np.testing.assert_array_equal(found, resize(pixels[top:bottom, left:right], 16))


def test_pad_crop_shifts_the_image_by_the_drawn_pixels_and_fills_with_black():
    pixels = noise(8, 8) | 1  # No black in the image itself.
    seen = set()
    for seed in range(60):
        dx, dy = np.random.default_rng(seed).integers(-2, 3, size=2)
        found = train(encode(pixels), 8, seed, crop="pad", pixels=2)
        padded = np.pad(pixels, ((2, 2), (2, 2), (0, 0)))
        np.testing.assert_array_equal(found, padded[2 + dy : 10 + dy, 2 + dx : 10 + dx])
        seen |= {(int(dx), int(dy))}
    assert {dx for dx, _ in seen} == {dy for _, dy in seen} == {-2, -1, 0, 1, 2}


def test_central_crop_equals_that_of_evaluation():
    encoded = encode(noise(60, 90))
    for fraction in (0.875, 0.5):
        found = train(encoded, 24, crop="central", fraction=fraction)
        np.testing.assert_array_equal(found, evaluate(encoded, 24, central_fraction=fraction))


def test_central_crop_is_resize_small_and_crop_in_one_step():
    pixels = photo()  # 640 wide, 427 high.
    small = Image.fromarray(pixels).resize((384, 256), Image.Resampling.BILINEAR)
    expected = np.asarray(small)[16:240, 80:304].astype(int)
    found = evaluate(encode(pixels), 224)
    # Half a pixel apart at most; the photo is full of edges.
    assert np.abs(found - expected).mean() < 4
    assert np.abs(evaluate(encode(pixels), 224, central_fraction=0.8) - expected).mean() > 15


STRIPES = np.zeros((128, 128, 3), np.uint8)
STRIPES[:, ::2] = 255


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_training_and_evaluation_are_antialiased_in_every_crop_unless_switched_off(kind):
    # One-pixel stripes shrunk by eight are gray; without antialiasing they are black or white.
    encoded = encode(STRIPES, kind, **({"quality": 95} if kind == "JPEG" else {}))

    def crops(**antialias):
        for crop in ("central", "resize"):
            yield evaluate(encoded, 13, crop, **antialias).astype(int)
        for crop in ("central", "resize", "inception"):
            area = {"min_area": 0.8} if crop == "inception" else {}
            yield train(encoded, 13, crop=crop, **area, **antialias).astype(int)

    assert all(np.abs(found - 128).max() <= 6 for found in crops())
    assert all(found.std() > 60 for found in crops(antialias=False))


def test_bicubic_crops_equal_pillows_in_training_and_evaluation():
    image = Image.fromarray(photo())
    box = central_box((640, 427), 0.875)
    expected = image.crop(box).resize((224, 224), Image.Resampling.BICUBIC)
    found = evaluate(encode(image), 224, interpolation="bicubic")
    np.testing.assert_array_equal(found, np.asarray(expected))
    found = train(encode(image), 224, crop="resize", interpolation="bicubic")
    np.testing.assert_array_equal(found, np.asarray(image.resize((224, 224))))
    # Of a JPEG that the decoder shrinks they stay close to Pillow's.
    encoded = encode(image, "JPEG", quality=95)
    whole = Image.open(io.BytesIO(encoded)).resize((64, 64), Image.Resampling.BICUBIC)
    found = train(encoded, 64, crop="resize", interpolation="bicubic").astype(int)
    assert np.abs(found - np.asarray(whole)).mean() < 1.5


def test_evaluation_is_deterministic():
    rng = np.random.default_rng(0)
    encoded = encode(noise(9, 9))
    found = make_eval_transform(8, "central")(encoded, rng)
    assert rng.integers(2**62) == np.random.default_rng(0).integers(2**62)
    np.testing.assert_array_equal(found, evaluate(encoded, 8))


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (2, 3)])
@pytest.mark.parametrize("crop", CROPS.names)
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_the_thinnest_images_work(size, crop, kind):
    encoded = encode(noise(*size), kind)
    assert train(encoded, 16, crop=crop).shape == (16, 16, 3)
    if crop in ("resize", "central"):
        assert evaluate(encoded, 16, crop).shape == (16, 16, 3)


def _unsupported(*args):
    raise UnsupportedJpegError


# Where the decoder shrinks the image, to an eighth or a quarter and by half, it does so from fewer
# DCT coefficients, which is not quite the mean over pixels.
@pytest.mark.parametrize(("size", "levels"), [(24, 4), (64, 1.5), (160, 0.1)])
def test_partial_and_full_decoding_agree_within_a_few_levels(monkeypatch, size, levels):
    encoded = encode(photo(), "JPEG")

    def images():
        trained = [train(encoded, size, seed).astype(int) for seed in range(12)]
        return [*trained, evaluate(encoded, size).astype(int)]

    fused = images()
    monkeypatch.setattr(decode_module, "decode_part", _unsupported)
    for one, other in zip(fused, images(), strict=True):
        assert np.abs(one - other).mean() < levels
        if size == 160:  # No crop is four times too large: the very same pixels.
            assert np.abs(one - other).max() <= 1


@pytest.mark.parametrize(
    ("augment", "steps"),
    [
        ({"randaugment": {"layers": 2, "magnitude": 7.0}},
         [RandAugment(layers=2, magnitude=7.0)]),
        ({"color_jitter": {"strength": 0.4}, "randaugment": {"layers": 1, "flavour": "timm"}},
         [lambda image, rng: randaugment_timm(image, 1, 10.0, rng),
          ColorJitter(strength=0.4)]),
        ({"three_augment": True, "color_jitter": True, "randaugment": {"layers": 1}},
         [RandAugment(layers=1), ThreeAugment(),
          ColorJitter(strength=0.3)]),
    ],
    ids=["randaugment", "timm+jitter", "all"],
)  # fmt: skip
def test_operations_come_after_the_crop_in_their_order(augment, steps):
    pixels = noise(40, 40)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        left, top, right, bottom = paper_box((40, 40), rng, 0.05)
        expected = Image.fromarray(resize(pixels[top:bottom, left:right], 24))
        for step in steps:
            expected = step(expected, rng)
        found = train(encode(pixels), 24, seed, augment=augment)
        np.testing.assert_array_equal(found, np.asarray(expected))
