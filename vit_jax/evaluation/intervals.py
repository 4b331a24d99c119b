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


def shared_order(
    values: Float[np.ndarray, " D"],
    weights: Float[np.ndarray, " N"],
    images: str,
    noise: Float[np.ndarray, " D"],
) -> Float[np.ndarray, " D"]:
    """Returns rising values in the order of sums over images with random signs, plus noise.

    The same name `images` of a set gives the same signs, so that differences of two results are
    paired: two sums are correlated as the weights are over the images.
    """
    bits, size = generator(0, f"signs: {images}", 0).bit_generator, len(weights)
    sums = np.empty(len(values))
    for draw in range(len(values)):
        raw = bits.random_raw(-(-size // 64)).astype("<u8").view(np.uint8)
        signs = np.unpackbits(raw, count=size)
        sums[draw] = 2 * (signs @ weights) - weights.sum()
    found = np.empty(len(values))
    found[np.argsort(sums + noise, kind="stable")] = values
    return found


def _words(name: str, count: int) -> Iterator[UInt32[np.ndarray, " N"]]:
    """Yields the random 32-bit words of a stream, at least `count` at a time."""
    bits = generator(0, name, 0).bit_generator
    while True:
        yield bits.random_raw((count + 1) // 2).astype("<u8").view("<u4")


# Numbers of images of classes near which `mean_share_quantiles` takes a fine grid.
_EDGES = 50

LEVELS = (np.arange(DRAWS) + 0.5) / DRAWS
"""Levels of DRAWS equally likely quantiles."""


def mean_share_quantiles(
    right: Float[np.ndarray, " K"], totals: Int[np.ndarray, " K"]
) -> Float[np.ndarray, " D"]:
    """Returns quantiles of the mean of K shares, at LEVELS: its confidence distribution.

    Their middle 95 % is the score interval of the mean: it holds the values m for which
    |found - m| is at most 1.96 sqrt(sum_k p_k (1 - p_k) / n_k) / K, where the p_k are the most
    likely shares whose mean is m. With a single share this is Wilson's interval. Unlike intervals
    from the found shares, it is right for shares of 0 and 1 and for small n_k. With several shares
    each variance has the factor n_k / (n_k - 1), because the shares are fitted to the examples.

    Args:
        right: number of right examples of each class, at most the total; a mean over several runs
            need not be whole.
        totals: number of examples of each class, at least 1.

    Source: Yan and Su, Statistics in Biopharmaceutical Research 2, 2010,
    doi:10.1198/sbr.2009.0049.
    """
    from scipy import stats

    found, classes = (right / totals).mean(), len(totals)
    (right, totals), times = np.unique([right, totals], axis=1, return_counts=True)
    # The Lagrange multiplier c decides the mean: the p_k solve c p^2 - (n_k + c) p + right_k = 0.
    # A share of 1 changes from c = n_k on, and one of 0 from c = -n_k on.
    steps = np.geomspace(1e-4, 1e4, 500) * np.sqrt(totals.max())
    edges = np.unique(totals[(right == 0) | (right == totals)])
    edges = edges[:: len(edges) // _EDGES + 1, None] + np.geomspace(1e-3, 1e2, 100)
    multiplier = np.concatenate([steps, edges.ravel()])
    multiplier = np.concatenate([-multiplier, multiplier])[:, None]
    linear = totals + multiplier
    root = np.sqrt(np.maximum(linear**2 - 4 * multiplier * right, 0))
    larger = (linear - root) / (2 * multiplier)
    with np.errstate(divide="ignore", invalid="ignore"):
        smaller = 2 * right / (linear + root)
    shares = np.clip(np.where(linear > 0, smaller, larger), 0, 1)
    means = shares @ times / classes
    free = np.maximum(totals - 1, 1) if classes > 1 else totals
    deviations = np.sqrt((shares * (1 - shares) / free) @ times) / classes
    known = deviations > 0
    scores = np.append((means[known] - found) / deviations[known], 0)
    order = np.argsort(scores)
    return np.interp(stats.norm.ppf(LEVELS), scores[order], np.append(means[known], found)[order])


def interval(draws: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Returns the ends of the interval that holds the middle part of the draws.

    >>> interval(np.arange(5.0), 0.5)
    (0.75, 3.25)
    """
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], method="hazen")
    return float(low), float(high)


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
