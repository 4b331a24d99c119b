"""Labels of a dataset are matched by name to the classes of a trained head."""

import unicodedata

import numpy as np
import pytest

from vit_jax.data.class_names import head_columns, match_classes
from vit_jax.data.sources.base import Example
from vit_jax.errors import DataError

HEAD = ("cat", "dog", "owl")


class Listed:
    """Examples with these labels."""

    name, fingerprint = "photos", "0"

    def __init__(self, class_names, labels):
        self.class_names, self._labels = class_names, labels

    def __len__(self):
        return len(self._labels)

    def __getitem__(self, index):
        return Example(b"", self._labels[index], f"{index}")

    def read(self, indices):
        return [self[index] for index in indices]


def columns(classes, **options):
    return head_columns(classes, HEAD, data="photos", model="RUN", **options)


def test_the_same_names_need_no_columns():
    assert columns(HEAD) is None
    assert columns(()) is None
    assert head_columns(HEAD, (), data="photos", model="RUN") is None
    accents = [unicodedata.normalize(form, "crème") for form in ("NFC", "NFD")]
    assert head_columns(accents[:1], accents[1:], data="photos", model="RUN") is None


def test_the_same_set_in_another_order_is_matched():
    np.testing.assert_array_equal(columns(("owl", "cat", "dog")), [2, 0, 1])


def test_a_subset_is_matched_only_where_it_may_be():
    np.testing.assert_array_equal(columns(("dog", "owl"), subset=True), [1, 2])
    with pytest.raises(DataError, match="photos lacks cat, compared with the classes of RUN"):
        columns(("dog", "owl"))


def test_another_class_is_named():
    with pytest.raises(DataError, match="photos has zebra and lacks cat, compared"):
        columns(("dog", "owl", "zebra"))


def test_labels_become_columns():
    source = match_classes(Listed(("owl", "dog"), [0, 1, -1]), HEAD, "RUN")
    assert source.class_names == HEAD
    assert [example.label for example in source.read([0, 1, 2])] == [2, 1, -1]
    assert source[0].label == 2
    assert len(source) == 3
    plain = Listed(HEAD, [0])
    assert match_classes(plain, HEAD, "RUN") is plain
