import numpy as np
import pytest

from vit_jax.errors import DataError
from vit_jax.evaluation.draws import check_shots, class_orders, draw_held_out, draw_shots, hold_out

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), [40, 30, 50, 26, 45]))


def test_shots_are_balanced_nested_and_reproducible():
    for seed in (0, 1, 2**32 - 1):
        orders = class_orders(LABELS, 5, seed)
        before: set[int] = set()
        for shots in (1, 5, 10, 25):
            drawn = draw_shots(orders, shots)
            assert np.bincount(LABELS[drawn]).tolist() == [shots] * 5
            assert before <= set(drawn.tolist())
            before = set(drawn.tolist())
        again = class_orders(LABELS.copy(), 5, seed)
        assert all((a == b).all() for a, b in zip(orders, again, strict=True))


def test_draws_equal_the_golden_ones():
    # They must never change: figures of other versions are compared.
    found = [draw_shots(class_orders(LABELS, 5, seed), 1).tolist() for seed in (0, 1)]
    assert found == [[40, 7, 45, 52, 73], [122, 116, 5, 180, 81]]


def test_every_example_is_drawn_by_some_seed():
    drawn = [draw_shots(class_orders(LABELS, 5, seed), 5).tolist() for seed in range(60)]
    assert set().union(*drawn) == set(range(len(LABELS)))


def test_held_out_examples_are_never_shots():
    orders = class_orders(LABELS, 5, 0)
    held_out = draw_held_out(orders, 25, 10)
    assert not set(held_out.tolist()) & set(draw_shots(orders, 25).tolist())
    assert np.bincount(LABELS[held_out]).tolist() == [10, 5, 10, 1, 10]


def test_a_fraction_of_every_class_is_held_out():
    kept, held_out = hold_out(LABELS, 5, 0.1, 0)
    assert np.bincount(LABELS[held_out]).tolist() == [4, 3, 5, 3, 4]  # 4.5 is rounded to even.
    assert sorted([*kept, *held_out]) == list(range(len(LABELS)))
    few = np.array([0, 0, 1])
    kept, held_out = hold_out(few, 2, 0.1, 0)
    assert few[kept].tolist() == [0, 1]
    assert few[held_out].tolist() == [0]


def check(counts, needed, held_out, tested=(5, 5, 5)):
    names, about = ("cat", "dog", "owl"), {"held_out": held_out, "dataset": "pets train"}
    check_shots(np.array(counts), np.array(tested), names, needed, **about)


def test_the_error_names_the_class_with_too_few_examples():
    check([10, 11, 10], 10, 0)
    with pytest.raises(DataError, match=r"class 'dog' of pets train has 9 examples.*at least 10"):
        check([10, 9, 10], 10, 0)
    with pytest.raises(DataError, match=r"'cat'.*10 examples.*at least 11.*fixed l2"):
        check([10, 11, 11], 10, 1)
    with pytest.raises(DataError, match="'owl' of pets train has 0 examples"):
        check([10, 10, 0], 1, 0)
    check([10, 10, 0], 10, 0, tested=(5, 5, 0))  # A name without an example anywhere.
