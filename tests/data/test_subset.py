import hashlib
import itertools
import json
import os

import numpy as np
import pytest
from data.files import Labelled

from vit_jax.config.data import SUBSET_PRESETS, SubsetConfig
from vit_jax.data.sources import TfdsSource
from vit_jax.data.sources import labels as labels_module
from vit_jax.data.sources.labels import cached_labels
from vit_jax.data.sources.subset import apportion, take_subset
from vit_jax.errors import MemoryLimitError
from vit_jax.storage.paths import cache_dir

# 7 classes of very different sizes, 3,000 examples in mixed order.
SIZES = [1500, 900, 400, 150, 40, 9, 1]
SKEWED = Labelled(np.random.default_rng(0).permutation(np.repeat(range(7), SIZES)), "abcdefg")


def positions(source, **rule) -> list[int]:
    subset, _ = take_subset(source, SubsetConfig(**rule))
    return [int(e.id) for e in subset.read(range(len(subset)))]


def counts(source, **rule) -> list[int]:
    return take_subset(source, SubsetConfig(**rule))[1]["examples_per_class"]


def test_subsets_are_nested_and_have_exactly_the_configured_size():
    fractions = [0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.99, 1.0]
    taken = [positions(SKEWED, fraction=f) for f in fractions]
    assert [len(t) for t in taken] == [9, 30, 90, 300, 900, 1500, 2970, 3000]
    for smaller, larger in itertools.pairwise(taken):
        assert set(smaller) < set(larger)
    assert set(taken[3]) < set(positions(SKEWED, examples=301))
    assert positions(SKEWED, examples=300) == taken[3]


def test_every_class_keeps_its_share_and_none_is_lost():
    # 10 % of 1500, 900, 400, 150, 40, 9 (0.9), 1 (0.1): the largest gives one to the smallest.
    assert counts(SKEWED, fraction=0.1) == [149, 90, 40, 15, 4, 1, 1]
    # 1 %: 15, 9, 4, 1.5, 0.4, 0.09, 0.01; three of the 30 go to the smallest, which none may lack.
    assert counts(SKEWED, fraction=0.01) == [14, 8, 4, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("examples", "taken"),
    [(3, [1, 1, 1]), (4, [2, 1, 1]), (5, [2, 2, 1]), (6, [3, 2, 1]), (120, [60, 40, 20])],
)
def test_apportioning_by_hand(examples, taken):
    # After one each: keys (2k + 1) / 2n of 60: 3/120, 5/120, ...; of 40: 3/80, ...; of 20: 3/40.
    assert apportion(np.array([60, 40, 20]), examples).tolist() == taken


def test_more_examples_never_take_fewer_of_a_class():
    sizes = np.random.default_rng(0).integers(0, 40, size=8)
    last = (sizes > 0).astype(int)
    for examples in range(int(last.sum()), int(sizes.sum()) + 1):
        taken = apportion(sizes, examples)
        assert taken.sum() == examples
        assert (last <= taken).all()
        assert (taken <= sizes).all()
        last = taken


def test_classes_of_equal_size_differ_by_one_at_most():
    for examples in range(10, 1000, 7):
        taken = apportion(np.full(10, 100), examples)
        assert taken.max() - taken.min() <= 1


def test_another_seed_takes_other_examples_but_equally_many_of_each_class():
    one, other = (positions(SKEWED, fraction=0.3, seed=s) for s in (0, 1))
    assert counts(SKEWED, fraction=0.3) == counts(SKEWED, fraction=0.3, seed=1)
    # 30 % of 30 % in common.
    assert 0.25 < len(set(one) & set(other)) / len(one) < 0.35


def test_examples_are_drawn_evenly_over_the_split():
    taken = np.array(positions(SKEWED, fraction=0.1))
    assert (np.diff(taken) > 0).all()
    in_tenths = np.histogram(taken, bins=10, range=(0, 3000))[0]
    assert in_tenths.min() >= 15  # 30 expected, standard deviation 5.


def test_the_whole_split_is_the_source_itself():
    subset, manifest = take_subset(SKEWED, SubsetConfig(preset="100_percent"))
    assert subset is SKEWED
    assert manifest["examples"] == manifest["of"] == 3000


def test_the_manifest_lists_the_examples(digits_dir):
    source = TfdsSource("digits", "train", str(digits_dir))
    subset, manifest = take_subset(source, SubsetConfig(fraction=0.1))
    examples = subset.read(range(len(subset)))
    taken = np.array([int(e.id.split()[0]) for e in examples], "<u8")
    assert json.loads(json.dumps(manifest)) == {
        "dataset": "digits/1.0.0 train",
        "fingerprint": source.fingerprint,
        "rule": {"fraction": 0.1},
        "seed": 0,
        "examples": 144,
        "of": 1437,
        "examples_per_class": np.bincount([e.label for e in examples]).tolist(),
        "indices_sha256": hashlib.sha256(taken.tobytes()).hexdigest(),
        "hash": subset.fingerprint,
    }
    # Golden: the same on every machine.
    assert taken[:10].tolist() == [4, 7, 10, 14, 17, 40, 43, 45, 52, 70]
    assert subset.fingerprint == "cf6ab7e0e0c9d2e5"
    assert subset.name == "digits/1.0.0 train, fraction 0.1, seed 0"
    assert subset.class_names == source.class_names
    assert subset[3] == source[14]


def test_the_hash_differs_by_rule_seed_and_dataset():
    rules = [{"fraction": 0.1}, {"fraction": 0.11}, {"examples": 300}, {"fraction": 0.1, "seed": 1}]
    made = [take_subset(SKEWED, SubsetConfig(**rule)) for rule in rules]
    other = Labelled(SKEWED.labels()[::-1], "abcdefg")
    made.append(take_subset(other, SubsetConfig(**rules[0])))
    assert len({manifest["hash"] for _, manifest in made}) == 5


def test_presets_are_the_sizes_of_the_paper():
    rules = {SubsetConfig(preset=name).rule for name in SUBSET_PRESETS}
    fractions, sizes = (0.01, 0.03, 0.1, 0.3, 1.0), (9, 30, 90, 303)
    assert rules == {("fraction", share) for share in fractions} | {
        ("examples", millions * 10**6) for millions in sizes
    }
    assert counts(SKEWED, preset="30_percent") == counts(SKEWED, fraction=0.3)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Labels are cached however few they are, in a separate folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(labels_module, "_MIN_CACHED", 1)
    return tmp_path / "cache" / "vit_jax" / "labels"


def test_labels_of_a_prepared_dataset_are_those_of_its_examples(digits_dir):
    for split in ("train", "test[10:20]+train[:50%]"):
        source = TfdsSource("digits", split, str(digits_dir))
        expected = [e.label for e in source.read(range(len(source)))]
        assert source.labels().tolist() == expected


def test_labels_are_read_once_and_again_when_the_files_change(digits_dir, cache, monkeypatch):
    source = TfdsSource("digits", "test", str(digits_dir))
    first = source.labels()
    (kept,) = cache.iterdir()
    assert first.dtype == np.uint8
    again = TfdsSource("digits", "test", str(digits_dir))
    with monkeypatch.context() as patch:
        patch.setattr(TfdsSource, "_read_records", None)
        np.testing.assert_array_equal(again.labels(), first)
    kept.write_bytes(b"damaged")
    np.testing.assert_array_equal(again.labels(), first)
    (path,) = (digits_dir / "digits" / "1.0.0").glob("digits-test.*")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    np.testing.assert_array_equal(again.labels(), first)
    assert len(list(cache.iterdir())) == 2


def test_many_labels_are_read_in_order_from_several_threads(cache):
    expected = np.random.default_rng(0).integers(0, 70_000, size=10_000)
    found = cached_labels("many", "many", 10_000, lambda indices: expected[list(indices)].tolist())
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.uint32


def test_labels_that_do_not_fit_the_memory_are_refused(cache):
    with pytest.raises(MemoryLimitError, match=r"4.0 EB for the labels of 1,000,\S+ examples of x"):
        cached_labels("x", "x", 10**18, lambda indices: [7] * len(indices))


def test_labels_are_read_without_a_writable_cache(cache, monkeypatch):
    (cache_dir().parent).mkdir()
    cache_dir().write_text("a file")
    found = cached_labels("x", "x", 3, lambda indices: [7] * len(indices))
    assert found.tolist() == [7, 7, 7]
