"""Dense probes: mean IoU and correspondences by hand, masks that do not fit, the digit scenes."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from vit_jax.__main__ import main
from vit_jax.data.builders.digit_scenes import CLASSES, draw_scene
from vit_jax.data.masked_images import MaskedImages, MaskSource, cell_classes, check_masks
from vit_jax.errors import DataError
from vit_jax.evaluation.correspondence import correspondences
from vit_jax.evaluation.segmentation_probe import (
    constant_iou,
    count_classes,
    mean_iou,
    segmentation_probe,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _implicit_promotion():
    """optax.adam raises a float to an int power, which strict promotion forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def test_mean_iou_by_hand():
    # Class 0: 6 of 6 + 2 + 1 pixels; class 1: 1 of 1 + 1 + 2; class 2 does not occur.
    confusion = np.array([[6, 2, 0], [1, 1, 0], [0, 0, 0]])
    assert mean_iou(confusion) == pytest.approx((6 / 9 + 1 / 4) / 2)
    masks = np.array([[[0, 0, 0, 1], [2, 255, 0, 0]]], np.uint8)
    # Background everywhere: 5 of 7 pixels, and two classes with 0.
    assert constant_iou(masks, 3, 255) == pytest.approx(5 / 7 / 3)


def _two_colours(count, side=8):
    """Returns masks of blocks of two classes, and feature maps that tell them apart."""
    rng = np.random.default_rng(0)
    cells = rng.integers(0, 2, (count, 2, 2)).astype(np.uint8)
    masks = cells.repeat(side // 2, 1).repeat(side // 2, 2)
    maps = np.stack([cells, rng.standard_normal(cells.shape)], -1).astype(np.float32)
    return maps, masks


def test_a_probe_finds_classes_that_features_tell_apart():
    maps, masks = _two_colours(80)
    found = segmentation_probe(maps[:60], masks[:60], maps[60:], masks[60:], num_classes=2)
    own = cell_classes(masks[60:], (2, 2))
    # Upsampling blurs the borders of the blocks, but not their middles.
    assert found.accuracy > 0.85
    assert found.confusion.sum((1, 2)).tolist() == [64] * 20
    low, high = found.interval()
    assert low <= found.mean_iou <= high
    noise = segmentation_probe(
        maps[:60, ..., 1:], masks[:60], maps[60:, ..., 1:], masks[60:], num_classes=2
    )
    assert abs(noise.accuracy - 0.5) < 0.15
    assert own.shape == (20, 2, 2)


def test_ignored_pixels_do_not_count():
    maps, masks = _two_colours(40)
    masks[:, :2] = 255
    found = segmentation_probe(maps[:30], masks[:30], maps[30:], masks[30:], num_classes=2)
    assert found.confusion.sum((1, 2)).tolist() == [48] * 10


def test_features_that_follow_the_pixels_correspond():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (3, 20, 20, 3)).astype(np.uint8)
    masks = np.ones((3, 20, 20), np.uint8)

    def maps_fn(images):  # Every pixel is a cell, with its colour as feature.
        return images.astype(np.float32) - 128

    found = correspondences(maps_fn, pixels, masks)
    # A shift by 0.15 of 20 pixels is 3 pixels: 17 x 17 points of 20 x 20 remain visible.
    for kind in ("shift", "flip"):
        assert found[kind].accuracy > 0.99
        assert found[kind].pck > 0.99
        assert found[kind].chance == pytest.approx(1 / 400)
    assert found["pair"].accuracy == found["pair"].chance == 1  # One class everywhere.
    random = correspondences(
        lambda images: np.random.default_rng(images.sum() % 97).standard_normal((3, 20, 20, 4)),
        pixels,
        masks,
    )
    assert random["flip"].accuracy < 0.05


def test_pairs_by_hand():
    pixels = np.zeros((2, 2, 2, 3), np.uint8)
    masks = np.array([[[1, 0], [0, 0]], [[1, 0], [2, 0]]], np.uint8)
    features = np.zeros((2, 2, 2, 2), np.float32)
    features[0, 0, 0] = [1, 0]  # The object of the first image ...
    features[1, 1, 0] = [1, 0]  # ... looks like class 2 of the second.
    features[1, 0, 0] = [0, 1]
    found = correspondences(lambda images: features, pixels, masks)["pair"]
    # Image 0: its only point is wrong, chance 1/4. Image 1: its point of class 1 is right, because
    # equal similarities give the first cell; its point of class 2 has no partner.
    assert (found.images, found.accuracy, found.chance) == (2, 0.5, 0.25)


def test_scenes_have_digits_where_the_mask_says():
    digits = np.zeros((2, 8, 8), np.uint8)
    digits[:, 1:7, 2:6] = 255
    image, mask = draw_scene(digits, np.array([3, 8]), np.random.default_rng(0))
    assert image.shape == (32, 32, 3)
    assert set(np.unique(mask)) <= {0, 4, 9}
    assert 0.02 < (mask > 0).mean() < 0.6
    assert len(CLASSES) == 11


def _write(folder, split, masks, sizes=None):
    (folder / "images" / split).mkdir(parents=True)
    (folder / "masks" / split).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i, mask in enumerate(masks):
        size = mask.shape if sizes is None else sizes[i]
        pixels = rng.integers(0, 256, (*size, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / split / f"{i}.png")
        Image.fromarray(mask).save(folder / "masks" / split / f"{i}.png")
    return folder


def test_a_folder_of_masks_is_read(tmp_path):
    mask = np.zeros((8, 16), np.uint8)
    mask[:, 8:] = 2
    folder = _write(tmp_path, "train", [mask, mask])
    found = MaskSource(str(folder)).read("train", (8, 8))
    assert (found.masks[0, :, :4] == 0).all()
    assert (found.masks[0, :, 4:] == 2).all()
    assert count_classes(found, None, 255) == 3
    (folder / "classes.txt").write_text("sky\nsea\nland\ntree\n")
    assert count_classes(MaskSource(str(folder)).read("train", (8, 8)), None, 255) == 4


def test_masks_that_do_not_fit_are_one_line(tmp_path):
    mask = np.full((8, 8), 7, np.uint8)
    other = _write(tmp_path / "size", "train", [mask], sizes=[(8, 12)])
    with pytest.raises(DataError, match="mask of 8x8 pixels for an image of 12x8"):
        MaskSource(str(other)).read("train", (8, 8))
    there = _write(tmp_path / "class", "train", [mask])
    images = MaskSource(str(there)).read("train", (8, 8))
    with pytest.raises(DataError, match=r"mask 0 of .* has class 7; expected 0 to 4, or 255"):
        check_masks(images, 5, 255)
    check_masks(images, 5, 7)
    (there / "masks/train/0.png").unlink()
    with pytest.raises(DataError, match=r"0\.png"):
        MaskSource(str(there)).read("train", (8, 8))
    with pytest.raises(DataError, match="no folders images/val and masks/val"):
        MaskSource(str(there)).read("val", (8, 8))
    colours = _write(tmp_path / "rgb", "train", [np.zeros((8, 8, 3), np.uint8)], sizes=[(8, 8)])
    with pytest.raises(DataError, match="mode RGB"):
        MaskSource(str(colours)).read("train", (8, 8))


def test_a_dataset_without_masks_is_one_line(digits_dir):
    with pytest.raises(DataError, match="digits has no mask 'mask'"):
        MaskSource("digits", str(digits_dir)).read("train", (8, 8))


def test_the_command(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 6)):
        blocks = rng.integers(0, 3, (count, 4, 4)).astype(np.uint8)
        masks = list(blocks.repeat(8, 1).repeat(8, 2))
        _write(tmp_path / "data", split, masks)
        for i, mask in enumerate(masks):  # The colour tells the class.
            colours = np.array([[200, 0, 0], [0, 200, 0], [0, 0, 200]], np.uint8)[mask]
            Image.fromarray(colours).save(tmp_path / "data/images" / split / f"{i}.png")
    command = ["dense", "untrained:BlockMeans-8", f"--data={tmp_path / 'data'}"]
    output = tmp_path / "out.json"
    assert main([*command, "--layers=0", f"--output={output}", "--image_size=32"]) == 0
    shown = capsys.readouterr().out
    assert "most frequent class" in shown
    result = json.loads(output.read_text())
    constant, colours = result["segmentation"]
    assert constant["mean_iou"] < 0.25
    assert colours["mean_iou"] > 0.6
    assert [row["kind"] for row in result["correspondence"]] == ["shift", "flip", "scale", "pair"]
    for wrong, message in (
        ("--layers=3", "layer 3 of a BlockMeans with 0 layers"),
        ("--num_mask_classes=2", "has class 2; expected 0 to 1"),
        ("--what=depth", "unknown probe 'depth'"),
    ):
        assert main([*command, "--image_size=32", wrong]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("error: ")
        assert message in error


def test_classes_come_from_the_training_masks():
    masks = np.array([[[0, 4, 255]]], np.uint8)
    images = MaskedImages(np.zeros((1, 1, 3, 3), np.uint8), masks, "here")
    assert count_classes(images, None, 255) == 5
    assert count_classes(images, 9, 255) == 9
