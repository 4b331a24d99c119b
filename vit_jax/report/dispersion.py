"""Means, and standard deviations over seeds."""

import dataclasses
import statistics
from collections.abc import Sequence

from vit_jax.report.fields import Observation
from vit_jax.report.runs import natural


@dataclasses.dataclass(frozen=True)
class Summary:
    """Mean and dispersion of figures that differ by their seed alone.

    Attributes:
        mean: arithmetic mean.
        std: standard deviation with n - 1; None where n is 1.
        n: number of figures.
        values: the figures.
    """

    mean: float
    std: float | None
    n: int
    values: tuple[float, ...]


def summarize(values: Sequence[float]) -> Summary:
    """Returns mean and standard deviation.

    >>> summarize([1.0, 2.0, 3.0])
    Summary(mean=2.0, std=1.0, n=3, values=(1.0, 2.0, 3.0))
    """
    std = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), std, len(values), tuple(values))


def mean_over(groups: Sequence[Sequence[Observation]]) -> Summary:
    """Returns the mean over datasets; its dispersion is over seeds, where all have the same."""
    by_seed = [{o.run.seed: o.value for o in group} for group in groups]
    seeds = set(by_seed[0])
    paired = all(set(b) == seeds and len(b) == len(g) for b, g in zip(by_seed, groups, strict=True))
    if paired:
        each = [summarize([b[seed] for b in by_seed]).mean for seed in sorted(seeds, key=natural)]
        return summarize(each)
    return summarize([summarize([summarize([o.value for o in g]).mean for g in groups]).mean])


def within_run(group: Sequence[Observation]) -> float | None:
    """Returns the standard deviation that a single run states for its own draws of examples."""
    if len(group) != 1:
        return None
    return group[0].run.figures.get(f"{group[0].metric}_std") or None
