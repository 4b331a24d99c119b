"""Warnings about data from which nothing can be learned, or whose scores mean nothing."""

import numpy as np
import pytest
from image_files import write_folder

from vit_jax.config.data import SubsetConfig
from vit_jax.data.sources import TfdsSource
from vit_jax.data.sources.folder import FolderSource
from vit_jax.data.sources.listing import list_images
from vit_jax.data.sources.subset import take_subset
from vit_jax.data.suspicious import Split, split_warnings, training_warnings

NAMES = ("ant", "bee", "cat")


def split(name, counts):
    return Split(name, sum(counts), np.array(counts))


ONLY_BEE = [
    "all 6 examples of photos have class 'bee': there is nothing to learn, and any model is right",
    "2 of 3 classes have no example in photos: cat (2 evaluated), ant",
]


@pytest.mark.parametrize(
    ("train", "test", "told"),
    [
        ([5, 6, 7], [1, 1, 2], []),
        ([5, 6, 7], [1, 0, 2], ["test has no example of these classes: bee"]),
        ([0, 6, 0], [0, 0, 2], ONLY_BEE),
        (
            [5, 0, 7],
            [5, 0, 0],
            [
                "1 of 3 classes have no example in photos: bee",
                "test has no example of these classes: cat",
            ],
        ),
        (
            [5, 6, 7],
            [1, 0, 0],
            ["test has 1 example", "test has no example of these classes: bee, cat"],
        ),
    ],
)
def test_classes_and_sizes_are_told(train, test, told):
    assert split_warnings(split("photos", train), [split("test", test)], NAMES) == told
    one, two = Split("photos", 1, None), Split("test", 2, None)  # Without labels, sizes alone.
    assert split_warnings(one, [two], NAMES) == ["photos has 1 example"]


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path / "p" / "train", {"ant": 6})
    write_folder(tmp_path / "p" / "val", {"ant": 2, "bee": 3}, start=6)
    listing = list_images(tmp_path / "p")
    return lambda name: FolderSource(listing, name, "photos")


ONE_CLASS = [
    "all 6 examples of photos train have class 'ant': there is nothing to learn, and any model is"
    " right",
    "1 of 2 classes have no example in photos train: bee (3 evaluated)",
]


def test_a_folder_tells_its_classes_without_reading_an_image(folder, monkeypatch):
    monkeypatch.setattr(FolderSource, "__getitem__", pytest.fail)
    evaluated = {"val": folder("val")}
    assert training_warnings(folder("train"), evaluated, uses_labels=True) == ONE_CLASS
    assert training_warnings(folder("train"), evaluated, uses_labels=False) == []


@pytest.mark.parametrize("names", [("Bench", "Chair", "Mug"), ("Chair", "Mug")])
def test_a_split_with_other_classes_is_not_counted(folder, tmp_path, names):
    """As ObjectNet, which has classes of its own, beside ImageNet's training images."""
    write_folder(tmp_path / "own", dict.fromkeys(names, 2))
    other = FolderSource(list_images(tmp_path / "own"), "train", "own")
    evaluated = {"val": folder("val"), "own": other}
    assert training_warnings(folder("train"), evaluated, uses_labels=True) == ONE_CLASS


@pytest.mark.parametrize(
    ("train", "test", "shared"),
    [
        ("train", "train[90%:]", 144),
        ("train[:1000]", "train[:50%]", 718),
        ("train[:100]+test[:5]", "test", 5),
        ("train[:1000]", "train[1000:]", 0),
    ],
)
def test_examples_in_training_and_evaluation_data_are_counted(train, test, shared, digits_dir):
    one, other = (TfdsSource("digits", name, str(digits_dir)) for name in (train, test))
    told = (
        f"{shared} of the {len(other)} examples of evaluation split 'dev' (digits/1.0.0 {test}) are"
        " also training examples"
    )
    found = training_warnings(one, {"dev": other}, uses_labels=False)
    assert found == ([told] if shared else [])
    assert training_warnings(one, {"train_part": other}, uses_labels=True) == []


def test_labels_are_read_only_where_that_is_quick(digits_dir, monkeypatch):
    digits = TfdsSource("digits", "train", str(digits_dir))
    assert digits.quick_labels
    assert take_subset(digits, SubsetConfig(examples=20))[0].quick_labels
    monkeypatch.setattr("vit_jax.data.sources.tfds._FEW_EXAMPLES", 1000)
    large = TfdsSource("digits", "train", str(digits_dir))
    assert not large.quick_labels
    monkeypatch.setattr(TfdsSource, "labels", pytest.fail)
    assert training_warnings(large, {}, uses_labels=True) == []
