"""Sizes of classes, and an order for classes of unequal size."""

from collections import Counter

import numpy as np
import pytest

from vit_jax.config.run import Config
from vit_jax.data.balance import build_balance
from vit_jax.data.order import BalancedOrder
from vit_jax.data.sources import TfdsSource
from vit_jax.errors import DataError

LABELS = np.random.default_rng(0).permutation(np.repeat([0, 2, 3], [50, 7, 3]))


def test_every_round_has_each_class_once_and_cycles_through_its_examples():
    order = BalancedOrder(LABELS, seed=1)
    indices = order(range(3 * 100))
    classes = LABELS[indices].reshape(100, 3)
    assert (np.sort(classes, axis=1) == [0, 2, 3]).all()
    assert len({tuple(row) for row in classes}) == 6  # In every order.
    times = Counter(indices)
    assert set(times) == set(range(60))
    for label, count in ((0, 50), (2, 7), (3, 3)):
        mine = [times[i] for i in np.flatnonzero(label == LABELS)]
        # 100 draws of n examples in turn.
        assert set(mine) <= {100 // count, -(-100 // count)}


def test_the_order_depends_only_on_seed_and_position():
    whole = BalancedOrder(LABELS, seed=1)(range(300))
    piecewise = BalancedOrder(LABELS, seed=1)
    backwards = [piecewise([p])[0] for p in reversed(range(300))][::-1]
    assert backwards == whole
    assert BalancedOrder(LABELS, seed=2)(range(300)) != whole
    # Two rounds of a class differ in their order.
    twos = [i for i in whole if LABELS[i] == 2]
    assert twos[:7] != twos[7:14]
    assert sorted(twos[:7]) == sorted(twos[7:14])


def test_examples_without_a_class_are_never_drawn():
    labels = np.where(np.arange(60) == 5, -1, LABELS)
    assert 5 not in BalancedOrder(labels, seed=0)(range(600))


def config_of(**options):
    return Config.from_mapping(
        {
            "model": {"name": "ViT-Ti/4"},
            "data": {"name": "digits", "global_batch_size": 8, **options.pop("data", {})},
            "optimizer": {"learning_rate": 0.1},
            "train_steps": 1,
            **options,
        }
    )


def test_the_config_chooses_counts_and_order(digits_dir):
    source = TfdsSource("digits", "train[:100]", str(digits_dir))
    balance = build_balance(config_of(), source, 10)
    assert (balance.counts, balance.order) == (None, None)
    balance = build_balance(config_of(loss={"class_weights": "balanced"}), source, 12)
    np.testing.assert_array_equal(balance.counts, np.bincount(source.labels(), minlength=12))
    assert balance.order is None
    balance = build_balance(config_of(data={"sampling": "balanced"}), source, 10)
    labels = source.labels()[balance.order(range(200))]
    assert (np.bincount(labels) == 20).all()


def test_more_labels_than_classes_cannot_be_balanced(digits_dir):
    source = TfdsSource("digits", "train[:100]", str(digits_dir))
    with pytest.raises(DataError, match=r"set data\.num_classes to the number of classes"):
        build_balance(config_of(data={"sampling": "balanced"}), source, 5)
