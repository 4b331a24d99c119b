"""Intervals of mean scores and of their differences: what other test images and seeds would change.

Every interval comes from draws of the mean score of a cell of a table (or point of a plot):

- Test images are drawn with replacement, the same draws for all runs that were evaluated on the
  same images, so that differences between models are paired. They are not drawn for a mean over
  runs that are known to have been evaluated on different images, such as folds. A run without
  `report/correct-SPLIT.json` gets draws of its own, from its numbers of right and of all images.
  Accuracies of classes, and their mean, have these numbers from `report/confusion-SPLIT.csv`; runs
  with equal images are paired by the order of the draws.
- Seeds: two or three runs are too few to draw from. The mean of n runs is moved by s / sqrt(n)
  times a draw of Student's t distribution instead. s is the standard deviation over seeds, pooled
  over all cells with the same metric and dataset in the table or plot; t has the degrees of freedom
  of s. Trivial baselines vary less than models and are not pooled with them.

The interval is the middle 95 % of the draws. A mean whose uncertainty has no known source (one run
of a loss, seeds that all agree) has no interval, and no difference from it is certain.
"""

import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vit_jax.errors import FileError, first_few
from vit_jax.evaluation.by_class import confusion_file, read_confusion
from vit_jax.evaluation.correct import Correctness, correct_file, read_correct
from vit_jax.evaluation.intervals import (
    DRAWS,
    LEVELS,
    in_random_order,
    interval,
    mean_share_quantiles,
    resample_means,
    shared_order,
)
from vit_jax.evaluation.metric_kinds import kind_of
from vit_jax.report.labels import BLOCK_MEANS, lower_first, title_of
from vit_jax.report.run import Run
from vit_jax.report.scores import METRIC, POOL, VALUE, values_by_seed

log = logging.getLogger(__name__)

APART = (
    "Means over runs that were tested on different images, such as folds, have no interval over"
    " test images."
)
# Columns of `draw_means`.
_DRAWN = ["draws", "images", "paired", "freedom", "pooled", "source"]
# A figure of result.json is a ratio of counts, and may have been rounded to float32.
_ROUNDING = 1e-6
# A class with fewer images shows too little of its variance.
_FEW_IN_CLASS = 10
_DIGITS = 10
_SOURCES = ("images", "seeds")


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
        interval(draws) if source else (np.nan, np.nan)
        for draws, source in zip(drawn["draws"], drawn["source"], strict=True)
    ]
    low, high = np.array(ends).reshape(-1, 2).T
    bounds = kind_of(metric).bounds
    values = pd.concat([means["mean"], observed[VALUE].astype(float)])
    if values.between(*bounds).all():  # Not a metric of another unit with such a name.
        low, high = np.clip((low, high), *bounds)  # Student's t does not know them.
    # The last digits differ between versions of SciPy and NumPy.
    low, high = np.round((low, high), _DIGITS)
    return means.join(drawn.assign(low=low, high=high))


def draw_means(observed: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Draws the mean score of every cell, which the columns `keys` define.

    Deviations over seeds are pooled over cells with the same metric and the same value in column
    POOL, and images are paired over all cells.

    Returns:
        `keys` as the index, and the columns draws (f64[DRAWS]), images (number of test images; 0:
        not known), paired (name of the set of test images; "": draws of its own), freedom (degrees
        of freedom of the deviation over seeds), pooled (number of cells that it is pooled over) and
        source (of the uncertainty: "images", "seeds", "images and seeds"; "": it is not known).
    """
    cells = _groups(observed, keys)
    pools: dict[Any, dict[str, np.ndarray]] = {}
    for cell in cells.values():
        pools.setdefault(_pool(cell), {})[_identity(cell)] = np.array(values_by_seed(cell))
    rows = []
    for cell in cells.values():
        name, pool = _identity(cell), [*pools[_pool(cell)].values()]
        freedom = sum(len(values) - 1 for values in pool)
        draws, images, paired = _draw_images(cell, name)
        draws = np.mean(values_by_seed(cell)) + draws
        # Not if all seeds agree, up to rounding.
        vary = any(np.ptp(values) > _ROUNDING * np.abs(values).max() for values in pool)
        if vary:
            squares = sum(float(np.var(values)) * len(values) for values in pool)
            deviation = np.sqrt(squares / freedom / len(values_by_seed(cell)))
            draws = draws + deviation * _draw_t(freedom, f"seeds: {name}")
        several = sum(len(values) > 1 for values in pool)
        source = " and ".join(["images"] * bool(images) + ["seeds"] * vary)
        rows.append((draws, images, paired, freedom, several, source))
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
        draws, images, paired, freedom, pooled, sources = zip(
            *(one.values() for one in members), strict=True
        )
        mean = np.mean(draws, axis=0)
        source = " and ".join(one for one in _SOURCES if all(one in each for each in sources))
        count = sum(images) if "images" in source else 0
        rows.append((mean, count, " ".join(paired), min(freedom), min(pooled), source))
    index = pd.MultiIndex.from_tuples(list(cells), names=drawn.index.names)
    return pd.DataFrame(rows, index=index, columns=_DRAWN)


def are_comparable(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> bool:
    """Whether the uncertainty of the difference of two means of `draw_means` is known.

    It is not if only one of them has draws of its test images.
    """
    sources = first["source"], second["source"]
    return all(sources) and len({"images" in source for source in sources}) == 1


def tested_apart(observed: pd.DataFrame, keys: list[str]) -> list[Any]:
    """Returns the values of `keys` with runs that are known to have different test images."""
    return [
        at for at, cell in _groups(observed, keys).items() if _are_apart(cell, _all_tested(cell))
    ]


def all_comparable(means: pd.DataFrame) -> pd.Series:
    """Returns for each mean whether `are_comparable` holds for all pairs of its column."""
    columns = means["source"].groupby(level=0)
    known = columns.transform(lambda sources: bool((sources != "").all()))
    alike = columns.transform(lambda sources: sources.str.contains("images").nunique() == 1)
    return known & alike


def is_alike(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> bool:
    """Whether two means of `draw_means` do not differ significantly, as far as that is known."""
    return are_comparable(first, second) and not is_told_apart(first["draws"], second["draws"])


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
    runs = means["values"].map(len)
    single = bool(runs.max() == 1)
    first = "One run each" if single else f"Means of n = {_range(means['n'])} runs"
    if (runs > means["n"]).any():
        first = f"Means of {_range(runs)} runs (n = {_range(means['n'])}, the number of seeds)"
    images = means["images"][means["images"] > 0]
    sources = [f"{_range(images)} test images"] * bool(len(images))
    sources += ["seeds"] * bool(means["source"].str.contains("seeds").any())
    if not sources:
        return (
            f"{first}, too little for an interval"
            if single
            else f"{first}, whose uncertainty is not known"
        )
    drawn = means[means["source"].str.contains("images")]
    unpaired = "; images are not paired" * bool((drawn["paired"] == "").any())
    fewer = ""
    for source in _SOURCES if len(sources) > 1 else ():
        alone = means.index[means["source"] == source]
        names = [" ".join(filter(None, map(str, at[:2]))) for at in alone]
        fewer += f"; over {source} alone: {first_few(names, 5)}" * bool(names)
    return f"{first} [95 % interval over {' and '.join(sources)}{unpaired}{fewer}]"


def describe_seeds(means: pd.DataFrame, pool: str) -> list[str]:
    """Returns a sentence on the deviation over seeds; none if there is a single seed.

    The values of the column `pool` were pooled separately.
    """
    several = means[means["source"].str.contains("seeds")]
    if several.empty:
        return []
    freedom = f"{_range(several['freedom'])} degrees of freedom"
    freedom = "1 degree of freedom" if several["freedom"].max() == 1 else freedom
    if several["pooled"].max() == 1:
        if (several["n"] > 1).all():
            return [f"The seed deviation is that of each cell alone, with {freedom}."]
        return [
            f"The seed deviation is that of a single cell, with {freedom}, assuming that it is the"
            f" same for all models of the same {lower_first(title_of(pool))}."
        ]
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


@dataclasses.dataclass(frozen=True)
class _Tested:
    """What is known of the test images behind a score: a mean over classes of shares of images."""

    right: np.ndarray  # f64[K], number of right images of each class
    totals: np.ndarray  # i64[K], number of images of each class
    examples: Correctness | None = None  # right or wrong by image
    classes: np.ndarray | None = None  # i64[K], labels; None: a single class of all images

    def of_images(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns right or wrong of each image that counts, and the index of its class."""
        assert self.examples is not None
        found, counted = self.examples, self.examples.counted
        if self.classes is None:
            return found.correct[counted].astype(float), np.zeros(counted.sum(), int)
        counted = counted & np.isin(found.classes, self.classes)
        index = np.searchsorted(self.classes, found.classes[counted])
        return found.correct[counted].astype(float), index


def _draw_images(cell: pd.DataFrame, name: str) -> tuple[np.ndarray, int, str]:
    """Returns deviations of a cell's mean f64[DRAWS], its number of images and their name."""
    found = _all_tested(cell)
    tested = [one for one in found if one is not None]
    other = len({one.totals.tobytes() for one in tested}) > 1 or _are_apart(cell, found)
    if len(tested) < len(found) or other:
        return np.zeros(DRAWS), 0, ""
    totals, right = tested[0].totals, np.mean([one.right for one in tested], axis=0)
    if len(totals) > 1 and not _enough_images(totals):
        return np.zeros(DRAWS), 0, ""
    quantiles = mean_share_quantiles(right, totals) - (right / totals).mean()
    test_sets = {one.examples.test_set if one.examples else "" for one in tested}
    test_set = test_sets.pop() if len(test_sets) == 1 else ""
    if not test_set:
        return in_random_order(quantiles, f"images: {name}"), int(totals.sum()), ""
    values, index = tested[0].of_images()
    values = np.mean([one.of_images()[0] for one in tested], axis=0)
    if tested[0].classes is None and np.ptp(values):
        return resample_means(values, test_set) - values.mean(), len(values), test_set
    draws = _in_order_of_images(quantiles, values, index, totals, test_set, name)
    return draws, len(values), test_set


def _all_tested(cell: pd.DataFrame) -> list[_Tested | None]:
    rows = zip(cell.index, cell[METRIC], cell[VALUE], strict=True)
    return [_tested(run, metric, value) for run, metric, value in rows]


def _are_apart(cell: pd.DataFrame, tested: Sequence[_Tested | None]) -> bool:
    """Whether some runs of a cell are known to have been evaluated on different images."""
    known = [run.test_data(metric) for run, metric in zip(cell.index, cell[METRIC], strict=True)]
    sets = [(one.examples.test_set,) if one and one.examples else (None,) for one in tested]
    facts = zip(*((*a, *b) for a, b in zip(known, sets, strict=True)), strict=True)
    return any(len({*values} - {None}) > 1 for values in facts)


def _enough_images(totals: np.ndarray) -> bool:
    """Whether the interval of a mean over classes is right for these numbers of images (ours).

    Of classes with very few images nothing shows the variance, so they must not decide the whole.
    """
    of_class = 1 / totals
    return bool(of_class[totals < _FEW_IN_CLASS].sum() <= of_class.sum() / 4)


def _in_order_of_images(
    quantiles: np.ndarray,
    values: np.ndarray,
    index: np.ndarray,
    totals: np.ndarray,
    test_set: str,
    name: str,
) -> np.ndarray:
    """Orders draws by those of the images, so that runs on the same images are paired.

    `values` are f64[N], right or wrong by image, and `index` i64[N] their classes. Each class gets
    the noise of two more images, which are not paired: a few images of a small class on which two
    models differ by chance would otherwise be taken for a difference (ours, by simulation:
    `tests/report/test_class_means.py`).
    """
    from scipy import stats

    shares = np.bincount(index, values) / totals
    weights = (values - shares[index]) / totals[index] / len(totals)
    smoothed = (shares * totals + 1) / (totals + 2)
    deviation = np.sqrt((2 * smoothed * (1 - smoothed) / totals**2).sum()) / len(totals)
    noise = deviation * in_random_order(stats.norm.ppf(LEVELS), f"noise: {name}")
    return shared_order(quantiles, weights, test_set, noise)


def _tested(run: Run, metric: str, value: float) -> _Tested | None:
    """Returns what is known of the test images behind a score; None: not how many they are."""
    images = kind_of(metric).images
    if not images or not isinstance(run, Run):
        return None
    found = (_of_all_images if images == "mean" else _of_classes)(run, metric, value)
    # A later evaluation than the one in result.json may have written the files.
    same = found is not None and abs((found.right / found.totals).mean() - value) < _ROUNDING
    return found if same else None


def _of_all_images(run: Run, metric: str, value: float) -> _Tested | None:
    # Of an evaluated split "eval/SPLIT", or of frozen features "fewshot/DATASET".
    examples = int(run.figures.get(f"{'/'.join(metric.split('/')[:2])}/examples", 0))
    match = re.fullmatch(r"eval/(.+)/accuracy_top1", metric)
    found = match and _read(read_correct, correct_file(run.path / "report", match[1]))
    same_number = found and examples in (0, found.counted.sum())
    if found and same_number and abs(found.accuracy - value) < _ROUNDING:
        right, total = found.correct.sum(), found.counted.sum()
        return _Tested(np.array([float(right)]), np.array([total]), found)
    share = min(max(value, 0.0), 1.0)
    if examples <= 0:
        return None
    return _Tested(np.array([share * examples]), np.array([examples]))


def _of_classes(run: Run, metric: str, value: float) -> _Tested | None:
    match = re.fullmatch(r"eval/([^/]+)/accuracy_(?:per_class_mean|class/(.*))", metric, re.DOTALL)
    table = match and _read(read_confusion, confusion_file(run.path / "report", match[1]))
    if match is None or table is None:
        return None
    names, _, counts = table
    totals, right = counts.sum(1), np.diagonal(counts).astype(float)
    asked = totals > 0
    if match[2] is not None:
        asked &= np.array([name == match[2] for name in names])
    if not asked.any():
        return None
    found = _read(read_correct, correct_file(run.path / "report", match[1]))
    classes = np.flatnonzero(asked)
    if found is not None:
        same = np.bincount(found.classes[found.counted], minlength=len(names))
        hits = np.bincount(found.classes[found.correct], minlength=len(names))
        found = found if np.array_equal(same, totals) and np.array_equal(hits, right) else None
    return _Tested(right[asked], totals[asked], found, classes)


def _draw_t(freedom: int, name: str) -> np.ndarray:
    """Returns DRAWS quantiles of Student's t distribution, equally likely, in random order."""
    from scipy import stats

    return in_random_order(stats.t.ppf(LEVELS, freedom), name)


@functools.lru_cache(maxsize=4096)
def _read(read: Callable[[Path], Any], path: Path) -> Any:
    """Reads a file of a report folder; None: it is not there, or damaged."""
    if not path.is_file():
        return None
    try:
        return read(path)
    except FileError as error:
        log.warning("intervals without %s: %s", path, error.got)
        return None
