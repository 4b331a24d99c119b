import json
import logging

import numpy as np
import pytest

from vit_jax.evaluation.feature_cache import FeatureCache
from vit_jax.evaluation.features import Features

KEY = {"weights": "abc", "image_size": 8, "crop": ["central", 0.875, True]}


def features(seed=0):
    rng = np.random.default_rng(seed)
    return Features(rng.normal(size=(5, 3)).astype(np.float32), np.arange(5, dtype=np.int32))


@pytest.fixture
def cache(tmp_path):
    made = FeatureCache(tmp_path / "features")
    made.store(KEY, features())
    return made


def entry(tmp_path):
    (found,) = (tmp_path / "features").iterdir()  # Nothing half-written is left beside it.
    return found


def test_stored_features_are_loaded_only_under_their_key(cache, tmp_path):
    found = cache.load(dict(reversed(KEY.items())))
    np.testing.assert_array_equal(found.values, features().values)
    np.testing.assert_array_equal(found.labels, features().labels)
    for name in KEY:
        assert cache.load({**KEY, name: "other"}) is None
    assert cache.load({**KEY, "more": 1}) is None
    assert sorted(p.name for p in entry(tmp_path).iterdir()) == [
        "about.json",
        "features.npy",
        "labels.npy",
    ]


@pytest.mark.parametrize("name", ["features.npy", "labels.npy"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "empty"])
def test_a_damaged_entry_is_replaced(cache, tmp_path, caplog, name, damage):
    path = entry(tmp_path) / name
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes({"flip": content, "cut": content[:-4], "empty": b""}[damage])
    with caplog.at_level(logging.WARNING, "vit_jax"):
        assert cache.load(KEY) is None
    assert "extracting again" in caplog.text
    cache.store(KEY, features(1))
    np.testing.assert_array_equal(cache.load(KEY).values, features(1).values)
    entry(tmp_path)


@pytest.mark.parametrize("about", ["", "[]", "{}", '{"key": {}}'])
def test_an_entry_without_a_valid_description_is_not_used(cache, tmp_path, about):
    (entry(tmp_path) / "about.json").write_text(about)
    assert cache.load(KEY) is None


def test_an_entry_with_another_key_is_not_used(cache, tmp_path):
    path = entry(tmp_path) / "about.json"
    about = json.loads(path.read_text())
    about["key"]["weights"] = "abd"
    path.write_text(json.dumps(about))
    assert cache.load(KEY) is None


def test_a_folder_that_cannot_be_written_only_logs_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = FeatureCache(tmp_path / "file")
    with caplog.at_level(logging.WARNING, "vit_jax"):
        cache.store(KEY, features())
    assert "cannot cache features" in caplog.text
    assert cache.load(KEY) is None
    FeatureCache(None).store(KEY, features())
    assert FeatureCache(None).load(KEY) is None
