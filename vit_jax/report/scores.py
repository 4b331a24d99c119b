"""The scores that tables and plots show, and their means over runs that differ only by their seed.

An observation is one value of a metric: of one finished run, and of one metric if the request is
for several.
"""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from vit_jax.errors import ConfigError, first_few, nearest
from vit_jax.evaluation.metric_kinds import class_of, kind_of
from vit_jax.report.frame import (
    differing,
    differing_data,
    differing_settings,
    differing_starts,
    place,
)
from vit_jax.report.labels import FROZEN_FEATURES, is_number, natural_key
from vit_jax.report.run import COLUMNS, Run

# Columns of observations.
VALUE, WITHIN, METRIC, POOL = "@value", "@within", "@metric", "@pool"
_OBSERVED = (VALUE, WITHIN, METRIC)
_IMAGENET_CLASSES = 1000


def observe(
    frame: pd.DataFrame,
    pattern: str,
    where: Mapping[str, str],
    *,
    option: str = "metric",
    pool: str = "dataset",
    **axes: str | None,
) -> pd.DataFrame:
    """Returns the observations of a table or plot.

    In `pattern`, the name of a metric, {word} matches any part of a name and becomes a column.
    `where` and `axes` are those of `place`. Deviations over seeds are pooled separately for each
    value of the column `pool`. `option`, the command-line option of the pattern, is named in
    errors.

    Returns:
        The columns of `frame`, one column per {word}, one per axis, VALUE, WITHIN (the standard
        deviation over the draws of examples inside the run, or None), METRIC (the metric's name)
        and POOL (the value of `pool`).
    """
    observed = place(_find_values(frame, pattern, option), where, pool=pool, **axes)
    for _, cell in observed.groupby([f"@{axis}" for axis in axes]):
        if len(names := sorted({*cell[METRIC]}, key=natural_key)) > 1:
            raise ConfigError(
                f"{option}={pattern} puts several metrics into one place: {first_few(names, 3)}",
                "each {word} in one of " + ", ".join(axes),
                "add it, as in columns=dataset+shots, or name one metric",
            )
    return observed


def _find_values(frame: pd.DataFrame, pattern: str, option: str) -> pd.DataFrame:
    """Returns all observations of a metric."""
    matching = metric_regex(pattern)
    known = {name for run in frame.index for name in run.figures}
    known |= {name for name in COLUMNS if frame[name].dropna().map(is_number).all()}
    if not any(map(matching.fullmatch, known)):
        alike = {name for name in known if kind_of(name).lower == kind_of(pattern).lower}
        raise ConfigError(
            f"{option}={pattern}: no run has such a metric",
            "a metric in result.json or metrics.jsonl; {word} in its name matches any part",
            f"did you mean {nearest(pattern, alike or known)!r}?",
        )
    rows, index = [], []
    for run, row in zip(frame.index, frame.to_dict("records"), strict=True):
        figures = {pattern: row.get(pattern), **run.figures} if run.finished else {}
        for name in sorted(figures, key=natural_key):
            match = matching.fullmatch(name)
            if match and is_number(figures[name]):
                words = {k: _number_or_text(v) for k, v in match.groupdict().items()}
                # A class may be named "leaf_std".
                within = None if class_of(name)[1] else figures.get(f"{name}_std") or None
                found = {VALUE: float(figures[name]), WITHIN: within, METRIC: name}
                rows.append({**row, **words, **found})
                index.append(run)
    columns = list(dict.fromkeys([*frame.columns, *matching.groupindex, *_OBSERVED]))
    return pd.DataFrame(rows, index=pd.Index(index, dtype=object), columns=columns, dtype=object)


def _number_or_text(word: str) -> int | str:
    """Returns a word as a number, unless that would change how it is written, as of "01"."""
    is_number = word.isascii() and word.isdecimal() and str(int(word)) == word
    return int(word) if is_number else word


def has_metric(frame: pd.DataFrame, pattern: str) -> bool:
    """Whether a finished run, or a column, has a metric that matches a pattern."""
    matching = metric_regex(pattern)
    names = {name for run in frame.index if run.finished for name in run.figures} | {*COLUMNS}
    return any(map(matching.fullmatch, names))


def metric_regex(pattern: str) -> re.Pattern[str]:
    """Returns the regular expression for a metric in which {word} matches any one part.

    >>> metric_regex("fewshot/{dataset}/{shots}_shot/l2").fullmatch("fewshot/pets/5_shot/l2")[2]
    '5'
    """
    text = ""
    for i, part in enumerate(re.split(r"\{([a-z_]+)\}", pattern)):
        seen = f"(?P<{part}>" in text
        # The name of a class may have slashes.
        any_text = ".+?" if text.endswith("accuracy_class/") else "[^/]+?"
        text += (
            re.escape(part) if i % 2 == 0 else f"(?P={part})" if seen else f"(?P<{part}>{any_text})"
        )
    return re.compile(text)


def find_chances(observed: pd.DataFrame) -> pd.Series:
    """Returns the accuracy of guessing one of the classes; NaN if their number is not known."""
    pairs = zip(observed.index, observed[METRIC], strict=True)
    return pd.Series([_chance(*pair) for pair in pairs], index=observed.index, dtype=float)


def _chance(run: Run, metric: str) -> float:
    if not metric.endswith("/accuracy_top1"):
        return math.nan
    kind, name, *_ = metric.split("/")
    if kind in FROZEN_FEATURES:
        count = run.figures.get(f"{kind}/{name}/classes")
    else:
        count = _classes_among(run, name)
    return 1 / count if count else math.nan


def _classes_among(run: Run, name: str) -> int | None:
    """Returns how many classes an evaluation chooses among; None: several may be right."""
    if len(run.classes) != _IMAGENET_CLASSES:
        return len(run.classes)
    from vit_jax.data.benchmarks import BENCHMARKS, find_benchmark

    preset = find_benchmark(run.evaluated_split(name) or name)
    return _IMAGENET_CLASSES if preset is None else BENCHMARKS[preset[0]].num_classes


def summarize(observed: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Returns means and standard deviations, one row per cell of a table or point of a plot.

    Returns:
        `keys` (which define a cell) as the index, and the columns values (one per run), n (number
        of seeds), mean and std over seeds (with n - 1; NaN if n is 1) and within (std over the
        draws of examples inside a single run, else NaN).
    """
    groups = observed.groupby(keys, sort=False)
    values = groups[VALUE].agg(tuple)
    of_seeds = pd.Series([values_by_seed(cell) for _, cell in groups], values.index, dtype=object)
    n = of_seeds.map(len).astype(int)
    std = of_seeds.map(lambda v: statistics.stdev(v) if len(v) > 1 else None).astype(float)
    within = groups[WITHIN].first().astype(float).where(values.map(len) == 1)
    mean = of_seeds.map(statistics.fmean).astype(float)
    return pd.DataFrame({"values": values, "n": n, "mean": mean, "std": std, "within": within})


def left_out(shown: str, runs: Iterable[Run], columns: Iterable[str], why: str = "") -> list[str]:
    """Returns a sentence that names the runs without a place in a table or plot."""
    names = sorted({run.name for run in runs}, key=natural_key)
    unknown = " or ".join(dict.fromkeys(columns))
    text = f"Not in the {shown}, because {unknown} is not known{why}: {first_few(names, 5)}."
    return [text] if names else []


def values_by_seed(cell: pd.DataFrame) -> tuple[float, ...]:
    """Returns one value for each seed of a cell: runs with equal seeds are averaged.

    They say nothing about other seeds. A run whose seed is not known counts by itself.
    """
    of_seed: dict[Any, list[float]] = {}
    for number, (value, seed) in enumerate(zip(cell[VALUE], cell["seed"], strict=True)):
        key = ("unknown", number) if pd.isna(seed) else seed
        of_seed.setdefault(key, []).append(float(value))
    return tuple(statistics.fmean(values) for values in of_seed.values())


def _evaluated_otherwise(observed: pd.DataFrame) -> list[str]:
    """Returns a sentence on observations that `eval` made with other settings than the run's."""
    pairs = zip(observed.index, observed[METRIC], strict=True)
    found = [(run.name, ", ".join(run.other_settings(metric))) for run, metric in pairs]
    named = [f"{name} ({settings})" for name, settings in found if settings]
    words = "Evaluated after training with settings that are not the run's"
    return [f"{words}: {first_few(named, 3)}."] if named else []


def doubts(observed: pd.DataFrame) -> list[str]:
    """Returns sentences on why observations may mislead, or may not be compared."""
    rows = [*zip(observed.index, observed[METRIC], strict=True)]
    chosen = [run.name for run, metric in rows if _is_chosen_on(run, metric)]
    losses = [run for run, metric in rows if metric.rpartition("/")[2] == "loss"]
    timed = [run for run, metric in rows if kind_of(metric).unit == "s" or "per_second" in metric]
    devices = {run.device for run in timed} - {None}
    notes = []
    if chosen:
        notes.append(
            "Too good: early stopping chose the weights by a score of the same split:"
            f" {first_few(chosen, 3)}."
        )
    notes += differing_losses(losses)
    if len(devices) > 1:
        notes.append(f"Measured on different devices: {first_few(sorted(devices), 5)}.")
    return notes + _evaluated_otherwise(observed)


def differing_losses(runs: Iterable[Run]) -> list[str]:
    """Returns a sentence if the losses of these runs have different formulas."""
    found = sorted({run.loss for run in runs if run.loss})
    if len(found) < 2:
        return []
    return [f"The losses differ in formula and do not compare: {first_few(found, 5)}."]


def _is_chosen_on(run: Run, metric: str) -> bool:
    """Whether early stopping chose a run's weights by the split on which a metric is measured."""
    chosen_by = str(run.config.get("early_stopping.metric") or "")
    return metric.split("/")[:2] == chosen_by.split("/")[:2]


def differing_within(observed: pd.DataFrame, keys: list[str]) -> list[str]:
    """Returns the labels and settings, except the seed, in which runs with equal `keys` differ."""
    found: set[str] = set()
    for _, group in observed.groupby(keys):
        found |= {*differing([run.labels for run in group.index]), *differing_settings(group.index)}
        found |= {*differing_starts(group.index), *differing_data(group.index)}
    return sorted(found - {"seed"})


def means_over(
    sets: Mapping[str, Sequence[str]], observed: pd.DataFrame, keys: list[str]
) -> pd.DataFrame:
    """Averages observations over sets of datasets, wherever all datasets of a set were measured.

    `sets` maps the name of a mean to the datasets, which the first of the `keys` of a cell holds.
    There is one mean per seed if all datasets have the same seeds, else one.
    """
    over, *rest = keys
    rows = []
    for name, members in sets.items():
        for at, group in observed[observed[over].isin(members)].groupby(rest, sort=False):
            if group[over].nunique() == len(members):
                rows += [[name, *at, value, None] for value in _means(group, over)]
    return pd.DataFrame(rows, columns=[*keys, VALUE, WITHIN], dtype=object)


def _means(group: pd.DataFrame, over: str) -> list[float]:
    """Returns the mean over datasets of every seed; the mean of all if their seeds differ."""
    seeds = [sorted(map(str, one)) for _, one in group.groupby(over)["seed"]]
    if all(one == seeds[0] and len({*one}) == len(one) for one in seeds):
        by_seed = group.groupby("seed", dropna=False)[VALUE]
        return [statistics.fmean(values) for _, values in by_seed]
    return [statistics.fmean(statistics.fmean(values) for _, values in group.groupby(over)[VALUE])]
