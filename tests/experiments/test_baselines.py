"""experiments/baselines/pixels.py: mean colours by hand, and its figures against scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from experiments.baselines import pixels
from vit_jax.config.fewshot import FewshotConfig
from vit_jax.data.decode import decode
from vit_jax.data.sources import TfdsSource
from vit_jax.evaluation.draws import class_orders, draw_shots


def test_block_means_by_hand():
    image = np.zeros((1, 16, 16, 3), np.uint8)
    image[0, :2, 2:4, 1] = 255  # All of the second block, in green.
    image[0, 15, 15, 2] = 255  # A quarter of the last block, in blue.
    means = pixels.block_means(image).reshape(8, 8, 3)
    np.testing.assert_allclose(means[0, 1], [-1, 1, -1])
    np.testing.assert_allclose(means[7, 7], [-1, -1, -0.5])


def test_least_squares_is_ridge_regression_on_the_pixels(digits_dir, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(digits_dir))
    config = FewshotConfig(shots=(5,), seeds=(3,), l2=2.0)
    found = pixels.score("digits", 8, "train[:300]", config)
    splits = []
    for split in ("train[:300]", "test"):
        source = TfdsSource("digits", split, str(digits_dir))
        images = [np.array(decode(e.image).convert("RGB")) for e in source.read(range(len(source)))]
        splits.append((np.reshape(images, (len(images), -1)) / 127.5 - 1, source.labels()))
    (train, labels), (test, wanted) = splits
    chosen = draw_shots(class_orders(labels.astype(np.int32), 10, 3), 5)
    mean, deviation = train[chosen].mean(0), train[chosen].std(0) + 1e-5
    train, test = ((x - mean) / deviation for x in (train, test))
    ridge = Ridge(alpha=2).fit(train[chosen], np.eye(10)[labels[chosen]])
    accuracy = (ridge.predict(test).argmax(1) == wanted).mean()
    assert found["fewshot/digits/5_shot/accuracy_top1"] == pytest.approx(accuracy, abs=0.011)
