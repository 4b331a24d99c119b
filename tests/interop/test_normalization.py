"""Weights for ImageNet-normalised images take images in [-1, 1] after loading."""

import json

import numpy as np
import pytest
from interop.files import logits
from weight_files import random_loaded, random_weights

from vit_jax.errors import WeightsError
from vit_jax.interop.load import load
from vit_jax.interop.save import save

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)).astype(np.float32)


def normalised(images):
    return (((images + 1) / 2 - MEAN) / STD).astype(np.float32)


def change_json(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def assert_folded(folded, plain):
    want = logits(plain.model, normalised(IMAGES))
    found = logits(folded.model, IMAGES)
    np.testing.assert_allclose(found, want, atol=2e-5 * np.abs(want).max())


def test_a_normalisation_given_by_the_caller(ours_path):
    plain, folded = random_loaded(), load(ours_path, normalization=(MEAN, STD))
    assert_folded(folded, plain)
    assert np.abs(logits(folded.model, IMAGES) - logits(plain.model, IMAGES)).max() > 0.01


def test_a_normalisation_in_the_config_of_timm(tmp_path, capsys):
    save(random_loaded(), tmp_path / "timm", "timm")
    assert load(tmp_path / "timm").report.normalization is None  # 0.5 and 0.5: nothing to fold.
    change_json(tmp_path / "timm" / "config.json", pretrained_cfg={"mean": MEAN, "std": STD})
    folded = load(tmp_path / "timm")
    assert_folded(folded, random_loaded())
    folded.report.print()
    assert "(0.485, 0.456, 0.406)" in capsys.readouterr().err


def test_a_normalisation_in_the_preprocessor_config_of_transformers(tmp_path):
    save(random_loaded(), tmp_path / "hf", "transformers")
    change_json(tmp_path / "hf" / "preprocessor_config.json", image_mean=MEAN, image_std=STD)
    assert_folded(load(tmp_path / "hf"), random_loaded())


def test_a_normalisation_cannot_be_folded_into_a_padded_first_layer(tmp_path):
    random_weights(tmp_path / "ours", "R+ViT-Nano/4")
    with pytest.raises(WeightsError, match="with a first layer that pads"):
        load(tmp_path / "ours", normalization=(MEAN, STD))
