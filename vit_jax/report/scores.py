"""Means and standard deviations of a metric over runs that differ only by their seed."""

import statistics
from collections.abc import Mapping, Sequence

import pandas as pd

from vit_jax.report.frame import VALUE, WITHIN


def summarize(observed: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Returns means and standard deviations, one row per cell of a table or point of a plot.

    Args:
        observed: observations.
        keys: columns whose values say which cell or point an observation belongs to.

    Returns:
        `keys` as the index, and the columns values (one per run), n, mean, std (with n - 1; NaN if
        n is 1) and within (std over the draws of examples inside a single run, else NaN).
    """
    groups = observed.groupby(keys, sort=False)
    values = groups[VALUE].agg(tuple)
    n = values.map(len).astype(int)
    std = values.map(lambda v: statistics.stdev(v) if len(v) > 1 else None).astype(float)
    within = groups[WITHIN].first().astype(float).where(n == 1)
    mean = values.map(statistics.fmean).astype(float)
    return pd.DataFrame({"values": values, "n": n, "mean": mean, "std": std, "within": within})


def means_over(
    sets: Mapping[str, Sequence[str]], observed: pd.DataFrame, keys: list[str]
) -> pd.DataFrame:
    """Averages observations over sets of datasets, wherever all datasets of a set were measured.

    Args:
        sets: name of the mean -> the datasets.
        observed: observations.
        keys: columns of a cell or point. The first one holds the dataset.

    Returns:
        Observations of the means: one per seed if all datasets have the same seeds, else one.
    """
    over, *rest = keys
    rows = []
    for name, members in sets.items():
        for place, group in observed[observed[over].isin(members)].groupby(rest, sort=False):
            if group[over].nunique() == len(members):
                rows += [[name, *place, value, None] for value in _means(group, over)]
    return pd.DataFrame(rows, columns=[*keys, VALUE, WITHIN], dtype=object)


def _means(group: pd.DataFrame, over: str) -> list[float]:
    """Returns the mean over datasets of every seed; the mean of all if their seeds differ."""
    seeds = [sorted(map(str, one)) for _, one in group.groupby(over)["seed"]]
    if all(one == seeds[0] and len({*one}) == len(one) for one in seeds):
        by_seed = group.groupby("seed", dropna=False)[VALUE]
        return [statistics.fmean(values) for _, values in by_seed]
    return [statistics.fmean(statistics.fmean(values) for _, values in group.groupby(over)[VALUE])]
