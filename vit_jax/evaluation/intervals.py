"""95 % intervals of means over images: bootstrap and Wilson's."""

import numpy as np
from jaxtyping import Float

from vit_jax.rng import generator

DRAWS = 4000
"""Number of draws."""


def resample_means(values: Float[np.ndarray, "M *N"], images: str) -> Float[np.ndarray, "D *N"]:
    """Returns DRAWS means over images that are drawn with replacement.

    The same name `images` of a set and the same number of images give the same draws, so that
    differences of two results are paired.
    """
    rng, size = generator(0, f"images: {images}", 0), len(values)
    return np.array([values[rng.integers(size, size=size)].mean(0) for _ in range(DRAWS)])


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
