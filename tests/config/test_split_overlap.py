"""Overlap of splits, compared with the indices of the examples that they contain."""

import itertools

import pytest

from vit_jax.config.split_overlap import may_overlap, overlap
from vit_jax.data.sources.splits import expand_presets, read_split

SIZES = {"train": 1000, "test": 300}
SPLITS = (
    "train", "test", "all", "train[:80%]", "train[80%:]", "train[10%:20%]+test", "train[:800]",
    "train[800:900]", "test[:50%]", "test[50%:]", "train[:90%]", "train[90%:]",
    "train[:50]+train[90%:]", "train[:-100]", "train[-100:]", "train[-300:-50]", "train[-20%:]",
)  # fmt: skip


def places(split):
    spans = read_split(expand_presets(split, SIZES, "mine"), {k: [n] for k, n in SIZES.items()}, "")
    return {(span.split, i) for span in spans for i in range(span.start, span.stop)}


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations_with_replacement(SPLITS, 2)))
def test_overlap_agrees_with_the_indices_of_the_examples(one, other):
    found = overlap(one, other)
    assert found == overlap(other, one)
    if found is None:  # Percentages, examples and examples from the end.
        assert may_overlap(one, other)
    else:
        assert found == bool(places(one) & places(other))


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ("train[:-100]", "train[-100:]", False),
        ("train[:-100]", "train[-101:]", True),
        ("train[:90%]", "train[:1000]", True),
        ("train[:90%]", "train[100:]", None),
        ("train[:-100]", "train[900:]", None),
        ("train800", "val200", False),
        ("train800val200", "vtab_test", False),
        ("train800val200", "val200", True),
        ("train800", "train", True),
        ("train[:800]", "train800", True),
        ("vtab_test", "test", None),
        ("vtab_test", "test[50%:]", None),
    ],
)
def test_ends_from_the_back_and_presets_of_vtab(one, other, said):
    assert overlap(one, other) is said
