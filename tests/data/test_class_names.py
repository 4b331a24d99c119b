"""Labels of a dataset are matched by name to the classes of a trained head."""

import unicodedata

import numpy as np
import pytest
from data.files import Labelled

from vit_jax.data.benchmarks import imagenet_classes
from vit_jax.data.class_names import head_columns, match_classes, with_spare_names
from vit_jax.errors import DataError

HEAD = ("cat", "dog", "owl")


def columns(classes, **options):
    return head_columns(classes, HEAD, data="photos", model="RUN", **options)


def test_the_same_names_in_the_same_order_need_no_columns():
    assert columns(HEAD) is None
    assert columns(()) is None
    assert head_columns(HEAD, (), data="photos", model="RUN") is None
    twice = ("crane", "owl", "crane")
    assert head_columns(twice, twice, data="photos", model="RUN") is None
    accents = [unicodedata.normalize(form, "crème") for form in ("NFC", "NFD")]
    assert head_columns(accents[:1], accents[1:], data="photos", model="RUN") is None


def test_another_order_is_matched_and_a_subset_only_where_it_may_be():
    np.testing.assert_array_equal(columns(("owl", "cat", "dog")), [2, 0, 1])
    np.testing.assert_array_equal(columns(("dog", "owl"), subset=True), [1, 2])


def test_spare_classes_of_a_head_need_no_examples():
    """`data.num_classes` may be larger than the number of names; the names still count."""
    head = with_spare_names(("dog", "owl"), 4)
    assert head == ("dog", "owl", "class 2", "class 3")
    found = head_columns(("owl", "dog"), head, data="photos", model="RUN")
    np.testing.assert_array_equal(found, [1, 0, 2, 3])
    with pytest.raises(DataError, match="lacks the class 'dog'"):
        head_columns(("owl",), head, data="photos", model="RUN")


def test_the_numbers_of_imagenet_stand_for_names_in_the_same_order():
    numbers = [str(number) for number in imagenet_classes()["wnid"]]
    words = [f"word {k // 2}" for k in range(1000)]  # Some names are repeated.
    assert head_columns(numbers, words, data="imagenet2012", model="FILE") is None
    with pytest.raises(DataError, match="which FILE was not trained on"):
        head_columns(numbers[::-1], HEAD, data="imagenet2012", model="FILE")


def test_labels_become_columns():
    source = match_classes(Labelled([0, 1, -1], ("owl", "dog")), HEAD, "RUN")
    assert source.class_names == HEAD
    assert [example.label for example in source.read([0, 1, 2])] == [2, 1, -1]
    assert source[0].label == 2
    assert len(source) == 3
    plain = Labelled([0], HEAD)
    assert match_classes(plain, HEAD, "RUN") is plain
    assert not source.remote
