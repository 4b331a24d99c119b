"""95 % intervals of means over images: bootstrap and Wilson's.

Draws come from the raw bits of Philox, whose stream NumPy promises to keep. The streams of the
methods of `np.random.Generator` change between NumPy's versions, and intervals with them.
"""

import itertools
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int, UInt32

from vit_jax.rng import generator

DRAWS = 4000
"""Number of draws."""


def resample_means(values: Float[np.ndarray, "M *N"], images: str) -> Float[np.ndarray, "D *N"]:
    """Returns DRAWS means over images that are drawn with replacement.

    The same name `images` of a set and the same number of images give the same draws, so that
    differences of two results are paired.
    """
    draws = zip(range(DRAWS), _resamples(f"images: {images}", len(values)), strict=False)
    return np.array([values[indices].mean(0) for _, indices in draws])


def _resamples(name: str, size: int) -> Iterator[Int[np.ndarray, " M"]]:
    """Yields sets of `size` indices below `size`, drawn with replacement, without end.

    Source: Lemire, 2019, doi:10.1145/3230636.
    """
    skipped, drawn = (2**32 - size) % size, np.empty(0, np.int64)
    words = _words(name, size)
    while True:
        while len(drawn) < size:
            products = next(words).astype(np.uint64) * np.uint64(size)
            kept = products[products % np.uint64(2**32) >= skipped]
            drawn = np.concatenate([drawn, (kept >> np.uint64(32)).astype(np.int64)])
        yield drawn[:size]
        drawn = drawn[size:]


def in_random_order(values: Float[np.ndarray, " M"], name: str) -> Float[np.ndarray, " M"]:
    """Returns the values in an order that the name decides (Fisher and Yates)."""
    words = itertools.chain.from_iterable(block.tolist() for block in _words(name, len(values)))
    order = list(range(len(values)))
    for last in range(len(values) - 1, 0, -1):
        bits = (1 << last.bit_length()) - 1
        place = next(number for word in words if (number := word & bits) <= last)
        order[last], order[place] = order[place], order[last]
    return values[order]


def _words(name: str, count: int) -> Iterator[UInt32[np.ndarray, " N"]]:
    """Yields the random 32-bit words of a stream, at least `count` at a time."""
    bits = generator(0, name, 0).bit_generator
    while True:
        yield bits.random_raw((count + 1) // 2).astype("<u8").view("<u4")


def interval(draws: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Returns the ends of the interval that holds the middle part of the draws.

    >>> interval(np.arange(5.0), 0.5)
    (0.75, 3.25)
    """
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], method="hazen")
    return float(low), float(high)


def bootstrap_interval(
    values: Float[np.ndarray, "M *N"],
) -> tuple[Float[np.ndarray, "*N"], Float[np.ndarray, "*N"]]:
    """Returns the ends of the 95 % intervals of means over images; both the mean for one image."""
    draws = resample_means(values, "all")
    low, high = np.quantile(draws, [0.025, 0.975], axis=0, method="hazen")
    return low, high


def wilson_interval(share: float, total: int) -> tuple[float, float]:
    """Returns the 95 % Wilson score interval of a share, a multiple of 1 / total in [0, 1].

    Source: Wilson, 1927, doi:10.1080/01621459.1927.10502953.

    >>> low, high = wilson_interval(0.8, 10)
    >>> f"{low:.4f} {high:.4f}"
    '0.4902 0.9433'
    """
    from scipy import stats

    found = stats.binomtest(round(share * total), total).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)
