"""The order of examples: a permutation of each epoch, from the seed alone."""

import numpy as np
import psutil
import pytest
from scipy.stats import chisquare

from vit_jax.data import order as order_module
from vit_jax.data.order import ExampleOrder, order_version, permute

LARGE = 303_000_000


@pytest.mark.parametrize("max_in_memory", [10**6, 0])
@pytest.mark.parametrize("size", [1, 1000])
def test_the_order_of_an_epoch_is_a_permutation(size, max_in_memory, monkeypatch):
    monkeypatch.setattr(order_module, "_MAX_IN_MEMORY", max_in_memory)
    order = ExampleOrder(size, seed=3)
    first, second = order(range(size)), order(range(size, 2 * size))
    assert sorted(first) == sorted(second) == list(range(size))
    # Two random permutations agree in one place on average.
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10
    # Any place by itself, whatever was asked before.
    place = size // 2
    one, other = second[place], first[place]
    assert order([size + place, place, size + place]) == [one, other, one]
    assert order([]) == []
    assert size == 1 or ExampleOrder(size, seed=4)(range(100)) != first[:100]


def test_every_size_has_a_permutation():
    near_powers_of_two = [2**k + more for k in range(8, 19) for more in (-1, 0, 1)]
    for size in [*range(1, 200), *near_powers_of_two]:  # Squares too: 4^k, and those below 200.
        found = permute(np.arange(size, dtype=np.uint64), size, seed=1, epoch=size)
        np.testing.assert_array_equal(np.sort(found), np.arange(size), err_msg=str(size))


def p_value(numbers, size, bins):
    """The p-value of a chi-square test that the numbers are uniform in 0, ..., size - 1."""
    return chisquare(np.bincount(numbers.astype(np.int64) * bins // size, minlength=bins)).pvalue


# With two rounds instead of eight, some of these p-values are below 1e-30 for every size.
@pytest.mark.parametrize("size", [1000, 2**21 + 1, 4**11 + 1, LARGE])
def test_the_computed_order_is_uniform_over_places_epochs_and_seeds(size):
    places = np.arange(min(size, 100_000), dtype=np.uint64)
    first, next_epoch, next_seed = (
        permute(places, size, seed, epoch).astype(np.int64)
        for seed, epoch in [(3, 0), (3, 1), (4, 0)]
    )
    for numbers in (first, np.diff(first), next_epoch - first, next_seed - first):
        assert p_value(numbers % size, size, 100) > 1e-4
    assert p_value(first % 64, 64, 64) > 1e-4
    for place in (0, size - 1):
        one = np.array([place], np.uint64)
        over_seeds = np.concatenate([permute(one, size, seed, 0) for seed in range(400)])
        over_epochs = np.concatenate([permute(one, size, 0, epoch) for epoch in range(400)])
        assert p_value(over_seeds, size, 10) > 1e-4
        assert p_value(over_epochs, size, 10) > 1e-4


def test_the_computed_order_equals_the_golden_one():
    # A change here changes the data of every run: raise the version of the order, too.
    assert order_version(2**21 + 1) == {"order": 2}
    assert order_version(2**21) == {}
    assert ExampleOrder(2**21 + 1, seed=0)(range(4)) == [2095282, 1147633, 202328, 348358]
    order = ExampleOrder(LARGE, seed=2**32 - 1)
    found = order([0, LARGE - 1, LARGE, 1000 * LARGE])
    assert found == [228501477, 31451910, 20500183, 137478176]


def test_the_largest_order_in_memory_equals_the_golden_one():
    assert ExampleOrder(2**21, seed=0)(range(4)) == [215292, 86248, 574563, 872245]


def test_the_order_of_303_million_examples_takes_no_memory():
    order = ExampleOrder(LARGE, seed=0)
    order(range(1000))  # Memory that only the first use takes.
    process = psutil.Process()
    before = process.memory_info().rss
    # From the beginning, the middle and over the end of the epoch.
    starts = (0, LARGE // 2, LARGE - 2000)
    seen = [order(range(start, start + 3000)) for start in starts]
    grown = (process.memory_info().rss - before) / 1e6
    assert grown < 3, f"{grown} MB"  # A shuffled array would be 1,212 MB.
    within = {*seen[0], *seen[1], *seen[2][:2000]}
    assert len(within) == 8_000
    assert LARGE - 100_000 < max(within) < LARGE


def test_an_order_in_memory_has_more_than_65536_examples():
    assert sorted(ExampleOrder(70_000, seed=0)(range(70_000))) == list(range(70_000))
