"""Means and standard deviations of a metric over runs that differ only by their seed."""

import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from vit_jax.report.frame import METRIC, VALUE
from vit_jax.report.labels import natural_key

# A cell of a table, or a point of a plot. The first part is the one to take means over.
Key = tuple[Hashable, ...]
Groups = Mapping[Key, pd.DataFrame]


class Summary(NamedTuple):
    """Mean and standard deviation.

    Attributes:
        mean: arithmetic mean.
        std: standard deviation with n - 1; None if n is 1.
        values: one per run.
        within: standard deviation over the draws of examples within one run, if n is 1.
    """

    mean: float
    std: float | None
    values: tuple[float, ...]
    within: float | None = None


def summarize(values: Iterable[float], within: float | None = None) -> Summary:
    """Returns mean and standard deviation.

    >>> summarize([1.0, 2.0, 3.0])
    Summary(mean=2.0, std=1.0, values=(1.0, 2.0, 3.0), within=None)
    """
    values = tuple(values)
    std = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), std, values, within if std is None else None)


def group_by(observed: pd.DataFrame, *keys: pd.Series) -> dict[Key, pd.DataFrame]:
    """Returns the observations of each combination of keys that occurs."""
    return {tuple(key): group for key, group in observed.groupby(list(keys), sort=False)}


def summarize_groups(groups: Groups) -> dict[Key, Summary]:
    """Returns mean and standard deviation of each group of observations."""
    found = {}
    for key, group in groups.items():
        within = group.index[0].figures.get(f"{group[METRIC].iloc[0]}_std") or None
        found[key] = summarize(group[VALUE], within)
    return found


def means_over(sets: Mapping[str, Sequence[str]], groups: Groups) -> dict[Key, Summary]:
    """Returns means over datasets, wherever all datasets of a set were measured.

    Args:
        sets: name of the mean -> the datasets.
        groups: (dataset, *rest) -> its observations.

    Returns:
        (name of the mean, *rest) -> mean.
    """
    places = dict.fromkeys(key[1:] for key in groups)
    return {
        (name, *place): _mean_over_datasets([groups[member, *place] for member in members])
        for name, members in sets.items()
        for place in places
        if all((member, *place) in groups for member in members)
    }


def _mean_over_datasets(datasets: Sequence[pd.DataFrame]) -> Summary:
    """Returns the mean over datasets, with a deviation over seeds if all have the same seeds."""
    by_seed = [dict(zip(group["seed"], group[VALUE], strict=True)) for group in datasets]
    seeds = sorted(by_seed[0], key=natural_key)
    if all(
        {*scores} == {*seeds} and len(group) == len(seeds)
        for scores, group in zip(by_seed, datasets, strict=True)
    ):
        return summarize(statistics.fmean(scores[seed] for scores in by_seed) for seed in seeds)
    return summarize([statistics.fmean(statistics.fmean(group[VALUE]) for group in datasets)])
