"""Patches moved by hand, and classifiers whose predictions are known."""

import logging

import jax.numpy as jnp
import numpy as np
import pytest
from random_models import random_images, random_model

from vit_jax.analysis import patch_permutation, permute_patches
from vit_jax.analysis.catalogue import ANALYSES, Request
from vit_jax.analysis.images import Images
from vit_jax.analysis.permutation import (
    check_permutation,
    permutation_grids,
    permutation_output,
    random_orders,
)
from vit_jax.errors import DataError, ModelError
from vit_jax.evaluation.intervals import wilson_interval

pytestmark = pytest.mark.slow

TINY = {"width": 16, "depth": 1, "mlp_dim": 16, "num_heads": 2}


def test_patches_by_hand():
    image = np.arange(16).reshape(1, 4, 4, 1)
    # 2 x 2 patches: upper left 0 1 4 5, upper right 2 3 6 7, lower left 8 9 12 13, ...
    found = permute_patches(image, (2, 2), np.asarray([[3, 0, 1, 2]]))
    want = [[10, 11, 0, 1], [14, 15, 4, 5], [2, 3, 8, 9], [6, 7, 12, 13]]
    assert found[0, :, :, 0].tolist() == want
    rectangular = permute_patches(image, (1, 2), np.asarray([[1, 0]]))
    assert rectangular[0, 0, :, 0].tolist() == [2, 3, 0, 1]
    same = permute_patches(image, (2, 2), np.arange(4)[None])
    np.testing.assert_array_equal(same, image)


def test_every_image_has_its_own_order_that_only_depends_on_seed_and_index():
    orders = random_orders(0, 50, (4, 4))
    np.testing.assert_array_equal(np.sort(orders), np.tile(np.arange(16), (50, 1)))
    assert len(np.unique(orders, axis=0)) == 50
    np.testing.assert_array_equal(random_orders(0, 7, (4, 4)), orders[:7])
    assert not np.array_equal(random_orders(1, 7, (4, 4)), orders[:7])
    # Each of 4 patches is at each place in a quarter of 2,000 orders; the deviation is 0.0097.
    places = random_orders(0, 2000, (2, 2))
    shares = (places[:, :, None] == np.arange(4)).mean(0)
    np.testing.assert_allclose(shares, 0.25, atol=0.04)


@pytest.mark.parametrize(
    ("name", "size", "grids"),
    [
        ("ViT-Ti/4", (16, 32), ((4, 8), (2, 4))),
        ("ViT-Ti/4", (12, 12), ((3, 3),)),  # One patch of all 12 pixels is left out.
        ("ViT-Ti/2", (14, 14), ((7, 7), (2, 2))),  # 14 pixels are not divided by 3.
        ("BiT-R-Nano", (32, 32), ((8, 8), (4, 4))),
        ("BiT-R-Nano", (28, 28), ((7, 7), (2, 2))),
    ],
)
def test_the_patches_are_tokens_or_an_eighth_of_the_side_and_twice_that(name, size, grids):
    options = TINY if name.startswith("ViT") else {}
    assert permutation_grids(random_model(name, image_size=size, **options)) == grids


def test_a_vit_without_positions_predicts_the_same_for_permuted_tokens():
    options = {"num_classes": 50, "pooling": "gap", **TINY}
    model = random_model("ViT-Ti/4", position_embedding="none", **options)
    # Images of different colours, so that their predicted classes differ.
    colours = 3 * np.random.default_rng(0).standard_normal((40, 1, 1, 3), dtype=np.float32)
    pixels = random_images(40) + colours
    found = patch_permutation(model, pixels, batch_size=16)
    assert found.patch_sizes == [(4, 4), (8, 8)]
    assert len(np.unique(found.predicted)) >= 5
    assert found.unchanged.tolist() == [1, 1]  # Larger patches consist of whole tokens.
    assert found.accuracy is None
    assert found.change is None
    labelled = patch_permutation(model, pixels, labels=found.predicted)
    assert labelled.accuracy.tolist() == [1, 1, 1]
    assert labelled.change.tolist() == [[0, 0]] * 3  # Mean and both ends of the interval.
    learned = random_model("ViT-Ti/4", **{**options, "pooling": "flatten"})
    assert (patch_permutation(learned, pixels).unchanged < 1).all()


def corner_model():
    """A linear classifier: 1 if the upper left of 4 x 4 blocks is bright, else 0."""
    model = random_model("BlockMeans-4", num_classes=2)
    kernel = np.zeros(model.head.linear.kernel.shape, np.float32)
    kernel[0, 1] = 1
    model.head.linear.kernel.set_value(jnp.asarray(kernel))
    model.head.linear.bias.set_value(jnp.asarray([0.5, 0], jnp.float32))
    return model


def corner_images(count):
    """Images of which every second has a bright upper left corner; all else is dark."""
    images = np.full((count, 16, 16, 3), -1, np.float32)
    labels = (np.arange(count) % 2).astype(np.int32)
    images[labels == 1, :4, :4] = 1
    return images, labels


def test_the_accuracy_of_a_classifier_of_one_corner():
    """A bright corner stays in place only if the permutation leaves it there."""
    images, labels = corner_images(200)
    found = patch_permutation(corner_model(), images, labels=labels, batch_size=64, seed=3)
    assert found.grids == ((8, 8), (4, 4))
    # Patches of 2 pixels: all four of the block would have to stay. Of 4: the order keeps it.
    kept = random_orders(3, 200, (4, 4))[:, 0] == 0
    want = [1, 0.5, 0.5 + (kept & (labels == 1)).sum() / 200]
    np.testing.assert_allclose(found.accuracy, want)
    np.testing.assert_allclose(found.unchanged, want[1:])

    pixels = ((images + 1) * 127.5).astype(np.uint8)
    output = permutation_output(found, pixels)
    assert "top-1 accuracy of 200 images, chance 50.0%" in output.summary
    first, second, _ = output.rows
    assert (first["patches"], first["accuracy"], first["images"]) == ("", "1", 200)
    assert (second["patches"], second["patch_height_px"], second["chance"]) == (64, 2, "0.5")
    # Half of the images, 100 of 200, become wrong. Pairs differ by -1 or 0 with deviation 1/2.
    assert (first["change"], second["change"]) == ("0", "-0.5")
    half = 1.96 * 0.5 / 200**0.5
    assert float(second["change_low"]) == pytest.approx(-0.5 - half, abs=0.01)
    assert float(second["change_high"]) == pytest.approx(-0.5 + half, abs=0.01)
    low, high = wilson_interval(0.5, 200)
    assert float(second["accuracy_low"]) == pytest.approx(low, rel=1e-5)
    assert float(second["accuracy_high"]) == pytest.approx(high, rel=1e-5)


def request(model, images, labels, num_classes):
    pixels = ((images + 1) * 127.5).astype(np.uint8)
    names = tuple(map(str, range(len(images))))
    return Request(model, "x", Images(pixels, names, "here", labels, num_classes), 16, 0)


def test_labels_of_other_classes_are_left_out_with_a_warning(caplog):
    (analysis,) = (a for a in ANALYSES if a.name == "permutation")
    images, labels = corner_images(8)
    model = corner_model()
    with caplog.at_level(logging.WARNING):
        output = analysis.run(request(model, images, labels, 3))
    assert "here has 3 classes, the model has 2" in caplog.text
    assert output.summary.startswith("share of 8 images whose predicted class stays the same")
    assert "accuracy" not in output.rows[0]
    assert "labels" not in output.arrays
    output = analysis.run(request(model, images, labels, 2))
    assert output.rows[0]["accuracy"] == "1"
    assert output.arrays["labels"].tolist() == labels.tolist()


def test_images_keep_their_labels_in_subsets():
    pixels = np.zeros((4, 2, 2, 3), np.uint8)
    images = Images(pixels, tuple("abcd"), "here", np.arange(4, dtype=np.int32), 4)
    assert images.subset(2).labels.tolist() == [0, 2]


def test_models_that_do_not_classify_are_errors():
    with pytest.raises(ModelError, match="a model without a head; expected a trained classifier"):
        check_permutation(random_model("ViT-Ti/4", num_classes=0, **TINY))
    model = corner_model()
    model.head.linear.kernel.set_value(jnp.zeros_like(model.head.linear.kernel[...]))
    with pytest.raises(ModelError, match="whose head is zero, as before training"):
        check_permutation(model)
    with pytest.raises(ModelError, match="with a single patch"):
        check_permutation(random_model("ViT-Ti/16", **TINY))
    images, labels = corner_images(4)
    with pytest.raises(DataError, match="label 5 for a model of 2 classes; expected 0 to 1"):
        patch_permutation(corner_model(), images, labels=np.int32([0, 1, 5, 0]))
    with pytest.raises(DataError, match="3 labels of 4 images"):
        patch_permutation(corner_model(), images, labels=labels[:3])
