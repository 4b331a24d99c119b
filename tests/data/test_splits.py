import pytest
import tensorflow_datasets as tfds

from vit_jax.data.sources.splits import Span, expand_presets, read_split

SHARDS = {"train": [60, 40], "test": [7]}


@pytest.mark.parametrize(
    ("split", "spans"),
    [
        ("train", [Span("train", 0, 100)]),
        ("train[:98%]", [Span("train", 0, 98)]),
        ("train[10%:20%]+test", [Span("train", 10, 20), Span("test", 0, 7)]),
        ("test[-3:]+train[5:7]", [Span("test", 4, 7), Span("train", 5, 7)]),
        ("train[1shard:]", [Span("train", 60, 100)]),
        ("all", [Span("train", 0, 100), Span("test", 0, 7)]),
    ],
)
def test_a_split_string_names_parts_in_order(split, spans):
    assert read_split(split, SHARDS, "photos") == spans


def test_percentages_are_rounded_as_tfds_rounds_them(digits_dir):
    builder = tfds.builder_from_directory(str(digits_dir / "digits" / "1.0.0"))
    shards = {name: list(s.shard_lengths) for name, s in builder.info.splits.items()}
    for percent in range(1, 100):
        split = f"train[{percent}%:]"
        (span,) = read_split(split, shards, "digits")
        assert span.stop - span.start == builder.info.splits[split].num_examples


def test_a_part_may_be_empty_if_another_has_examples():
    assert len(read_split("train[:0]+test", SHARDS, "photos")) == 2


@pytest.mark.parametrize(
    ("name", "sizes", "val200"),
    [
        # task_adaptation: the rest after 90, 80 or 60 % of train, or the first of validation.
        ("cifar100", {"train": 50_000, "test": 10_000}, "train[45000:45200]"),
        ("caltech101", {"train": 3059, "test": 6085}, "train[2753:2953]"),
        ("oxford_iiit_pet", {"train": 3680, "test": 3669}, "train[2944:3144]"),
        ("svhn_cropped", {"train": 73_257, "test": 26_032, "extra": 1}, "train[65931:66131]"),
        ("eurosat", {"train": 27_000}, "train[16200:16400]"),
        ("resisc45", {"train": 31_500}, "train[18900:19100]"),
        ("dsprites", {"train": 737_280}, "train[589824:590024]"),
        ("clevr", {"train": 70_000, "validation": 15_000, "test": 1}, "train[63000:63200]"),
        ("smallnorb", {"train": 24_300, "test": 24_300}, "test[:200]"),
        ("dtd", {"train": 1880, "validation": 1880, "test": 1880}, "validation[:200]"),
        # Not in VTAB.
        ("photos", {"train": 2000, "test": 10}, "train[1800:2000]"),
        ("photos", {"train": 2000, "validation": 900}, "validation[:200]"),
    ],
)
def test_vtab_1k_is_the_first_800_of_train_and_the_first_200_of_validation(name, sizes, val200):
    assert expand_presets("train800", sizes, name) == "train[:800]"
    assert expand_presets("val200", sizes, name) == val200
    assert expand_presets("train800val200", sizes, name) == f"train[:800]+{val200}"
    assert expand_presets("train800+val200", sizes, name) == f"train[:800]+{val200}"
    spans = read_split(f"train[:800]+{val200}", {k: [n] for k, n in sizes.items()}, name)
    assert sum(span.stop - span.start for span in spans) == 1000


@pytest.mark.parametrize(
    ("name", "test"),
    [("cifar100", "test"), ("eurosat", "train[80%:]"), ("clevr", "validation"),
     ("dsprites", "train[90%:]"), ("smallnorb", "test[50%:]")],
)  # fmt: skip
def test_the_test_split_of_vtab_is_the_published_one(name, test):
    assert expand_presets("vtab_test", {"train": 1000}, name) == test


def test_a_split_of_the_dataset_takes_precedence_over_a_preset():
    assert expand_presets("val200", {"train": 5000, "val200": 200}, "x") == "val200"
