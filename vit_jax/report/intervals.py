"""Intervals of mean scores and of their differences: what other test images and seeds would change.

Every interval comes from draws of the mean score of a cell of a table (or point of a plot):

- Test images are drawn with replacement, the same draws for all runs that were evaluated on the
  same images, so that differences between models are paired. A run without
  `report/correct-SPLIT.json` gets binomial draws of its own, from its number of images.
- Seeds: two or three runs are too few to draw from. The mean of n runs is moved by s / sqrt(n)
  times a draw of Student's t distribution instead. s is the standard deviation over seeds, pooled
  over all cells with the same metric and dataset in the table or plot; t has the degrees of freedom
  of s. Trivial baselines vary less than models and are not pooled with them.

The interval is the middle 95 % of the draws.
"""

import functools
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vit_jax.errors import FileError
from vit_jax.evaluation.correct import Correctness, correct_file, read_correct
from vit_jax.evaluation.intervals import (
    DRAWS,
    in_random_order,
    interval,
    resample_means,
    wilson_interval,
)
from vit_jax.report.labels import BLOCK_MEANS, bounds, is_fraction, lower_first, title_of
from vit_jax.report.run import Run
from vit_jax.report.scores import METRIC, POOL, VALUE

log = logging.getLogger(__name__)

# Columns of `draw_means`.
_DRAWN = ["draws", "images", "paired", "freedom", "pooled"]
# A figure of result.json is a ratio of counts, and may have been rounded to float32.
_ROUNDING = 1e-6


def with_intervals(
    means: pd.DataFrame,
    observed: pd.DataFrame,
    sets: Mapping[str, Sequence[str]],
    keys: list[str],
    metric: str,
) -> pd.DataFrame:
    """Adds 95 % intervals to means.

    Args:
        means: `summarize` of the observations and of their means over sets of datasets.
        observed: the observations alone.
        sets: name of a mean over datasets -> the datasets.
        keys: columns of a cell; the first one holds the dataset.
        metric: name of the metric; intervals end at its bounds.

    Returns:
        `means` with the columns of `draw_means`, and low and high (NaN if nothing is known about
        the uncertainty of a mean).
    """
    drawn = draw_means(observed, keys)
    over = [at for at in means.index if at[0] in sets]
    if over:
        drawn = pd.concat([drawn, draw_means_over(sets, drawn, over)])
    ends = [
        _ends(draws, images, metric)
        for draws, images in zip(drawn["draws"], drawn["images"], strict=True)
    ]
    low, high = np.array(ends).reshape(-1, 2).T
    low, high = np.clip((low, high), *bounds(metric))  # Student's t does not know them.
    return means.join(drawn.assign(low=low, high=high))


def _ends(draws: np.ndarray, images: int, metric: str) -> tuple[float, float]:
    """Returns the ends of an interval. If all images are right, or all wrong, they are Wilson's."""
    if np.ptp(draws):
        return interval(draws)
    if images and is_fraction(metric) and draws[0] in (0, 1):
        return wilson_interval(draws[0], images)
    return np.nan, np.nan


def draw_means(observed: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Draws the mean score of every cell, which the columns `keys` define.

    Deviations over seeds are pooled over cells with the same metric and the same value in column
    POOL, and images are paired over all cells.

    Returns:
        `keys` as the index, and the columns draws (f64[DRAWS]), images (number of test images; 0:
        not known), paired (name of the set of test images; "": binomial draws), freedom (degrees of
        freedom of the deviation over seeds) and pooled (number of cells that it is pooled over).
    """
    cells = _groups(observed, keys)
    pools: dict[Any, dict[str, np.ndarray]] = {}
    for cell in cells.values():
        pools.setdefault(_pool(cell), {})[_identity(cell)] = cell[VALUE].to_numpy(float)
    rows = []
    for cell in cells.values():
        name, pool = _identity(cell), [*pools[_pool(cell)].values()]
        freedom = sum(len(values) - 1 for values in pool)
        draws, images, paired = _draw_images(cell, name)
        draws = cell[VALUE].mean() + draws
        if freedom:
            squares = sum(float(np.var(values)) * len(values) for values in pool)
            deviation = np.sqrt(squares / freedom / len(cell))
            draws = draws + deviation * _draw("t", f"seeds: {name}", freedom)
        rows.append((draws, images, paired, freedom, sum(len(values) > 1 for values in pool)))
    index = pd.MultiIndex.from_tuples(list(cells), names=keys)
    return pd.DataFrame(rows, index=index, columns=_DRAWN)


def draw_means_over(
    sets: Mapping[str, Sequence[str]], drawn: pd.DataFrame, cells: Sequence[tuple[Any, ...]]
) -> pd.DataFrame:
    """Draws the means over sets of datasets (name -> datasets) from the result of `draw_means`.

    The first key of `drawn` is the dataset, and of `cells` the name of a mean.
    """
    found, rows = drawn.to_dict("index"), []
    for name, *rest in cells:
        members = [found[member, *rest] for member in sets[name]]
        draws, images, paired, freedom, pooled = zip(
            *(one.values() for one in members), strict=True
        )
        mean = np.mean(draws, axis=0)
        rows.append((mean, sum(images), " ".join(paired), min(freedom), min(pooled)))
    index = pd.MultiIndex.from_tuples(list(cells), names=drawn.index.names)
    return pd.DataFrame(rows, index=index, columns=_DRAWN)


def is_told_apart(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether the 95 % interval of the difference of two means leaves out zero."""
    low, high = interval(first - second)
    return low > 0 or high < 0


def is_equal_within(margin: float, first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two one-sided tests at 5 % show a difference smaller than the margin."""
    low, high = interval(first - second, 0.9)
    return -margin < low and high < margin


def describe_means(means: pd.DataFrame) -> str:
    """Returns what the means of `with_intervals` and their intervals are, without a full stop."""
    single = bool(means["n"].max() == 1)
    first = "One run each" if single else f"Means of n = {_range(means['n'])} runs"
    images = means["images"][means["images"] > 0]
    sources = [f"{_range(images)} test images"] * bool(len(images))
    sources += ["seeds"] * bool(means["freedom"].any())
    if not sources:
        return f"{first}, so no interval" if single else first
    known = not len(images) or bool((means["paired"] != "").all())
    unpaired = "" if known else "; images are not paired"
    return f"{first} [95 % interval over {' and '.join(sources)}{unpaired}]"


def describe_seeds(means: pd.DataFrame, pool: str) -> list[str]:
    """Returns a sentence on the deviation over seeds; none if there is a single seed.

    The values of the column `pool` were pooled separately.
    """
    several = means[means["freedom"] > 0]
    if several.empty:
        return []
    freedom = f"{_range(several['freedom'])} degrees of freedom"
    freedom = "1 degree of freedom" if several["freedom"].max() == 1 else freedom
    if several["pooled"].max() == 1:
        return [f"The seed deviation is that of each cell alone, with {freedom}."]
    cells = f"{_range(several['pooled'])} cells of the same {lower_first(title_of(pool))}"
    return [
        f"The seed deviation is pooled over {cells}, with {freedom}, assuming that it is the same"
        " for all models."
    ]


def _range(values: pd.Series) -> str:
    low, high = f"{values.min():,}", f"{values.max():,}"
    return low if low == high else f"{low} to {high}"


def _pool(cell: pd.DataFrame) -> Any:
    """Returns what the cells have in common that a cell's deviation over seeds is pooled with."""
    is_trivial = cell["family"] == BLOCK_MEANS
    return frozenset(zip(cell[METRIC], cell[POOL], is_trivial, strict=True))


def _identity(cell: pd.DataFrame) -> str:
    """Returns a name for the scores of a cell, the same in every table and plot."""
    pairs = zip(cell.index, cell[METRIC], strict=True)
    return " ".join(sorted(f"{run.name} {metric}" for run, metric in pairs))


def _groups(observed: pd.DataFrame, keys: list[str]) -> dict[tuple[Any, ...], pd.DataFrame]:
    return {
        at if isinstance(at, tuple) else (at,): cell
        for at, cell in observed.groupby(keys, sort=False)
    }


def _draw_images(cell: pd.DataFrame, name: str) -> tuple[np.ndarray, int, str]:
    """Returns deviations of a cell's mean f64[DRAWS], its number of images and their name."""
    metrics, mean = cell[METRIC], float(cell[VALUE].mean())
    found = [
        _correctness(run, metric, value)
        for run, metric, value in zip(cell.index, metrics, cell[VALUE], strict=True)
    ]
    test_sets = {one.test_set if one else "" for one in found}
    kept = [one for one in found if one is not None]
    if len(kept) == len(found) and len(test_sets) == 1:
        counted, test_set = kept[0].counted, kept[0].test_set
        right = np.mean([one.correct[counted] for one in kept], axis=0)
        return resample_means(right, test_set) - right.mean(), len(right), test_set
    examples = {_number_of_images(*pair) for pair in zip(cell.index, metrics, strict=True)}
    images = examples.pop() if len(examples) == 1 else 0
    if not images:
        return np.zeros(DRAWS), 0, ""
    share = min(max(mean, 0.0), 1.0)
    draws = _draw("binom", f"images: {name}", images, share)
    return draws / images - share, images, ""


def _draw(distribution: str, name: str, *parameters: float) -> np.ndarray:
    """Returns DRAWS equally likely quantiles of a distribution of SciPy, in random order."""
    from scipy import stats

    levels = (np.arange(DRAWS) + 0.5) / DRAWS
    return in_random_order(getattr(stats, distribution).ppf(levels, *parameters), name)


def _correctness(run: Run, metric: str, value: float) -> Correctness | None:
    """Returns the predictions behind an accuracy; None if the run folder does not have them."""
    match = re.fullmatch(r"eval/(.+)/accuracy_top1", metric)
    if not isinstance(run, Run) or not match:
        return None
    found = _read(correct_file(run.path / "report", match[1]))
    # An evaluation after the one in result.json may have written the file.
    same = found is not None and abs(found.accuracy - value) < _ROUNDING
    return found if same else None


@functools.lru_cache(maxsize=4096)
def _read(path: Path) -> Correctness | None:
    if not path.is_file():
        return None
    try:
        return read_correct(path)
    except FileError as error:
        log.warning("intervals without %s: %s", path, error.got)
        return None


def _number_of_images(run: Run, metric: str) -> int:
    """Returns the number of test images of an accuracy; 0 if it is not known."""
    if not is_fraction(metric) or "/accuracy_class/" in metric:
        return 0
    # Of an evaluated split "eval/SPLIT", or of frozen features "fewshot/DATASET".
    return int(run.figures.get(f"{'/'.join(metric.split('/')[:2])}/examples", 0))
