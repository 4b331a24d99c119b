import numpy as np
import pytest
from images import photo
from PIL import Image, ImageFilter

from vit_jax.data.augment.three_augment import ThreeAugment, blur

PIXELS = np.ascontiguousarray(photo()[100:164, 200:264])


class Draws(np.random.Generator):
    """A generator whose choice and share are given beforehand."""

    def __init__(self, choice: int, share: float = 0.5):
        super().__init__(np.random.PCG64(0))
        self.choice, self.share = choice, share

    def integers(self, high: int) -> int:
        assert high == 3
        return self.choice

    def random(self) -> float:
        return self.share


def three(choice: int, share: float = 0.5) -> np.ndarray:
    return np.asarray(ThreeAugment()(Image.fromarray(PIXELS), Draws(choice, share))).astype(int)


def test_the_first_operation_is_grayscale():
    weights = PIXELS @ np.array([0.299, 0.587, 0.114])
    assert np.abs(three(0) - weights[..., None]).max() <= 1


def test_the_second_operation_is_solarize():
    np.testing.assert_array_equal(three(1), np.where(PIXELS < 128, PIXELS, 255 - PIXELS))


def test_the_third_operation_blurs_by_a_sigma_of_0_1_to_2():
    for share, sigma in ((0.0, 0.1), (0.5, 1.05), (1.0, 2.0)):
        np.testing.assert_array_equal(
            three(2, share), np.asarray(blur(Image.fromarray(PIXELS), sigma))
        )
    np.testing.assert_array_equal(three(2, 0.0), PIXELS)  # No pixel sees another.


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_a_point_blurs_to_a_gaussian(sigma):
    point = np.zeros((17, 17, 3), np.uint8)
    point[8, 8] = 255
    found = np.asarray(blur(Image.fromarray(point), sigma))[..., 0].astype(float)
    x = np.arange(-8, 9)
    line = np.exp(-(x**2) / (2 * sigma**2))
    expected = 255 * np.outer(line, line) / line.sum() ** 2
    assert np.abs(found - expected).max() <= 1.5  # OpenCV's weights have eight bits.


@pytest.mark.parametrize("radius", [0.5, 1.0, 2.0])
def test_blur_is_close_to_pillows_which_deit_uses(radius):
    image = Image.fromarray(PIXELS)
    expected = np.asarray(image.filter(ImageFilter.GaussianBlur(radius))).astype(int)
    assert np.abs(np.asarray(blur(image, radius)) - expected).mean() < 2


def test_each_operation_is_drawn_a_third_of_the_time():
    rng = np.random.default_rng(0)
    gray, solarized = three(0), three(1)
    counts = [0, 0, 0]
    for _ in range(600):
        found = np.asarray(ThreeAugment()(Image.fromarray(PIXELS), rng))
        counts[0 if (found == gray).all() else 1 if (found == solarized).all() else 2] += 1
    # 200 expected, standard deviation 12.
    assert all(150 < count < 250 for count in counts)
