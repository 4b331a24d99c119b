"""experiments/dense: mean IoU and correspondence by hand, and the script on a folder of masks."""

import jax
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from experiments.dense import measure, segmentation
from experiments.dense.correspondence import correspondence


@pytest.fixture(autouse=True)
def _implicit_promotion():
    """optax.adam raises a float to an int power, which strict promotion forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def test_mean_iou_by_hand():
    # Class 0: 6 of 6 + 2 + 1 pixels; class 1: 1 of 1 + 1 + 2; class 2 does not occur.
    confusion = np.array([[6, 2, 0], [1, 1, 0], [0, 0, 0]])
    assert segmentation.mean_iou(confusion) == pytest.approx((6 / 9 + 1 / 4) / 2)
    masks = np.array([[[0, 0, 0, 1], [2, 255, 0, 0]]], np.uint8)
    # Background everywhere: 5 of 7 pixels, and two classes with 0.
    assert segmentation.constant_iou(masks) == pytest.approx(5 / 7 / 3)


def test_a_probe_finds_classes_that_features_tell_apart():
    rng = np.random.default_rng(0)
    cells = rng.integers(0, 2, (80, 2, 2)).astype(np.uint8)
    masks = cells.repeat(4, 1).repeat(4, 2)
    masks[:, 0] = segmentation.IGNORED
    maps = np.stack([cells, rng.standard_normal(cells.shape)], -1).astype(np.float32)

    def accuracy(maps):
        confusions = segmentation.probe(
            maps[:60], masks[:60], maps[60:], masks[60:], num_classes=2, epochs=20
        )
        assert confusions.sum((1, 2)).tolist() == [56] * 20  # Pixels that are not ignored.
        low, high = segmentation.iou_interval(confusions)
        assert low <= segmentation.mean_iou(confusions.sum(0)) <= high
        return np.trace(confusions.sum(0)) / confusions.sum()

    # Upsampling blurs the borders of the blocks, but not their middles.
    assert accuracy(maps) > 0.85
    assert abs(accuracy(maps[..., 1:]) - 0.5) < 0.15


def test_features_that_follow_the_pixels_correspond():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (3, 20, 20, 3)).astype(np.uint8)
    masks = np.ones((3, 20, 20), np.uint8)
    # Every pixel is a cell, with its colour as feature.
    found = correspondence(lambda images: images.astype(np.float32) - 128, pixels, masks)
    shift, flip, scale, pair = found
    assert [row[0] for row in found] == ["shift", "flip", "scale", "pair"]
    for _, share, low, high, chance in (shift, flip):
        assert low <= share <= high
        assert share > 0.99
        assert chance == pytest.approx(1 / 400)
    assert scale[4] == pytest.approx(1 / 400)
    assert pair[1:] == pytest.approx((1, 1, 1, 1))  # One class everywhere.


def test_pairs_by_hand():
    pixels = np.zeros((2, 2, 2, 3), np.uint8)
    masks = np.array([[[1, 0], [0, 0]], [[1, 0], [2, 0]]], np.uint8)
    features = np.zeros((2, 2, 2, 2), np.float32)
    features[0, 0, 0] = [1, 0]  # The object of the first image ...
    features[1, 1, 0] = [1, 0]  # ... looks like class 2 of the second.
    features[1, 0, 0] = [0, 1]
    *_, (_, share, _, _, chance) = correspondence(lambda images: features, pixels, masks)
    # Image 0: its only point is wrong, chance 1/4. Image 1: its point of class 1 is right, because
    # equal similarities give the first cell; its point of class 2 has no partner.
    assert (share, chance) == (0.5, 0.25)


def test_the_script_reads_a_folder_of_masks(tmp_path):
    rng = np.random.default_rng(0)
    colours = np.array([[200, 0, 0], [0, 200, 0], [0, 0, 200]], np.uint8)
    for split, count in (("train", 20), ("test", 6)):
        for name in ("images", "masks"):
            (tmp_path / name / split).mkdir(parents=True)
        for i in range(count):  # The colour tells the class.
            mask = rng.integers(0, 3, (4, 4)).astype(np.uint8).repeat(8, 0).repeat(8, 1)
            Image.fromarray(colours[mask]).save(tmp_path / "images" / split / f"{i}.png")
            Image.fromarray(mask).save(tmp_path / "masks" / split / f"{i}.png")
    output = tmp_path / "out.csv"
    measure.main(["colours", f"--data={tmp_path}", f"--output={output}"])
    table = pd.read_csv(output).set_index("measure")
    assert table.index.tolist() == ["mean IoU", "pixels right", "shift", "flip", "scale", "pair"]
    assert table.value["mean IoU"] > 0.6
    assert table.chance["mean IoU"] < 0.25
    measure.main(["untrained:ViT-Pico/4", f"--data={tmp_path}", "--layers=1", "--epochs=1"])
