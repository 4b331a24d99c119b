import numpy as np
import pytest

from vit_jax.data.boxes import central_box
from vit_jax.data.crops.inception import paper_box, torchvision_box
from vit_jax.data.crops.random_square import RandomSquare
from vit_jax.data.crops.squash_random import SquashRandom

BOTH = pytest.mark.parametrize("draw", [paper_box, torchvision_box])


def draw_many(draw, size, min_area, max_area, count=2000) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.array([draw(size, rng, min_area, max_area) for _ in range(count)])


@BOTH
@pytest.mark.parametrize("size", [(640, 480), (97, 301), (32, 32)])
def test_boxes_lie_inside_the_image_with_area_and_ratio_in_range(draw, size):
    width, height = size
    left, top, right, bottom = draw_many(draw, size, 0.2, 0.6).T
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


QUARTILES = [0.25, 0.5, 0.75]


def test_torchvision_draws_areas_and_log_ratios_uniformly():
    boxes = draw_many(torchvision_box, (2000, 2000), 0.2, 0.5, 4000)
    w, h = (boxes[:, 2] - boxes[:, 0]), (boxes[:, 3] - boxes[:, 1])
    area = np.quantile(w * h / 2000**2, QUARTILES)
    np.testing.assert_allclose(area, [0.275, 0.35, 0.425], atol=0.01)
    log_ratio = np.quantile(np.log(w / h), QUARTILES) / np.log(4 / 3)
    np.testing.assert_allclose(log_ratio, [-0.5, 0, 0.5], atol=0.05)


def test_the_paper_draws_heights_and_ratios_uniformly():
    boxes = draw_many(paper_box, (2000, 2000), 0.2, 0.5, 4000)
    w, h = (boxes[:, 2] - boxes[:, 0]), (boxes[:, 3] - boxes[:, 1])
    ratio = np.quantile(w / h, QUARTILES)  # Of 0.75 to 1.33.
    np.testing.assert_allclose(ratio, [0.895, 1.04, 1.185], atol=0.01)
    # The square root of the area then is uniform too, from sqrt(0.2) to sqrt(0.5).
    side = np.quantile(np.sqrt(w * h) / 2000, QUARTILES)
    np.testing.assert_allclose(side, [0.512, 0.577, 0.642], atol=0.006)


@BOTH
def test_boxes_cover_every_position(draw):
    boxes = draw_many(draw, (20, 20), 0.25, 0.25, 500)
    assert boxes[:, 0].min() == boxes[:, 1].min() == 0
    assert boxes[:, 2].max() == boxes[:, 3].max() == 20


@pytest.mark.parametrize(
    ("size", "central"),
    [
        # Ratio 100: as wide as 4/3 of the height allows, round(10 * 4/3) = 13, in the middle.
        ((1000, 10), (493, 0, 506, 10)),
        ((10, 1000), (0, 493, 10, 506)),
        # Every drawn side rounds to 0 or to more than the image has.
        ((1, 1), (0, 0, 1, 1)),
    ],
)
def test_if_no_box_fits_torchvision_takes_the_largest_central_one_and_the_paper_all(size, central):
    for seed in range(5):
        assert torchvision_box(size, np.random.default_rng(seed), 0.04, 0.2) == central
        assert paper_box(size, np.random.default_rng(seed), 0.5, 0.9) == (0, 0, *size)


@BOTH
def test_full_area_of_a_wide_image_falls_back_to_the_whole(draw):
    # Ratio 30/29 is allowed, and rarely is exactly this one drawn.
    for seed in range(20):
        assert draw((30, 29), np.random.default_rng(seed), 1.0) == (0, 0, 30, 29)


@pytest.mark.parametrize(
    ("size", "fraction", "expected"),
    [
        ((256, 256), 0.875, (16, 16, 240, 240)),
        ((512, 256), 0.875, (144, 16, 368, 240)),
        ((256, 400), 0.875, (16, 88, 240, 312)),
        ((101, 57), 1.0, (22, 0, 79, 57)),
        ((1, 300), 0.5, (0, 149, 1, 150)),
    ],
)
def test_the_central_box_is_a_square_in_the_middle(size, fraction, expected):
    assert central_box(size, fraction) == expected


def test_a_random_square_is_as_large_as_fits_and_at_any_position():
    rng = np.random.default_rng(0)
    wide, tall = (
        [RandomSquare().box(size, rng) for _ in range(400)] for size in ((14, 9), (9, 14))
    )
    assert set(wide) == {(left, 0, left + 9, 9) for left in range(6)}
    assert set(tall) == {(0, top, 9, top + 9) for top in range(6)}
    assert RandomSquare().box((7, 7), rng) == (0, 0, 7, 7)


def test_a_random_box_has_a_fixed_share_of_both_sides_and_any_position():
    rng = np.random.default_rng(0)
    boxes = np.array([SquashRandom(fraction=0.8).box((50, 100), rng) for _ in range(2000)])
    assert (boxes[:, 2] - boxes[:, 0] == 40).all()
    assert (boxes[:, 3] - boxes[:, 1] == 80).all()
    assert set(boxes[:, 0]) == set(range(11))
    assert set(boxes[:, 1]) == set(range(21))
    assert SquashRandom(fraction=0.1).box((3, 1), rng)[2:] >= (1, 1)
    assert SquashRandom(fraction=1.0).box((7, 9), rng) == (0, 0, 7, 9)
