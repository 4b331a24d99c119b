"""The data frame behind a report: one row per run, one column per label, setting and figure.

The index holds the `Run` objects. If a name occurs more than once, labels of the sweep come first,
then COLUMNS, config keys by their dotted name, and final metrics. A label called name, state or
stage is not a column.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from vit_jax.errors import ConfigError, first_few, nearest
from vit_jax.report.columns import COLUMNS
from vit_jax.report.labels import JOIN, format_value, is_number, natural_key
from vit_jax.report.runs import Run

# Columns that `observations` adds.
VALUE, WITHIN = "@value", "@within"


def run_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """Returns a data frame with a row for each run; a missing value is None."""
    rows = []
    for run in runs:
        computed = {name: make(run) for name, make in COLUMNS.items()}
        fixed = {name: computed[name] for name in ("name", "state", "stage")}
        rows.append({**run.figures, **run.config, **computed, **run.labels, **fixed})
    frame = pd.DataFrame(rows, index=pd.Index(list(runs), dtype=object), dtype=object)
    return frame.where(frame.notna(), None)


def observations(frame: pd.DataFrame, pattern: str, option: str = "metric") -> pd.DataFrame:
    """Returns one row per finished run and metric that matches a pattern.

    Args:
        frame: of runs.
        pattern: name of a metric; {word} matches any part of a name and becomes a column.
        option: command-line option that gave the pattern, for the error.

    Returns:
        The columns of `frame`, one column per {word}, VALUE, and WITHIN: the standard deviation
        over the draws of examples inside the run, or None.

    Raises:
        ConfigError: no run has such a metric.
    """
    matching = metric_regex(pattern)
    known = {name for run in frame.index for name in run.figures}
    known |= {name for name in COLUMNS if frame[name].dropna().map(is_number).all()}
    if not any(map(matching.fullmatch, known)):
        raise ConfigError(
            f"{option}={pattern}: no run has such a metric",
            "a metric in result.json or metrics.jsonl; {word} in its name matches any part",
            f"did you mean {nearest(pattern, known)!r}?",
        )
    rows, index = [], []
    for run, row in zip(frame.index, frame.to_dict("records"), strict=True):
        figures = {pattern: row.get(pattern), **run.figures} if run.finished else {}
        for name in sorted(figures, key=natural_key):
            match = matching.fullmatch(name)
            if match and is_number(figures[name]):
                words = {k: int(v) if v.isdigit() else v for k, v in match.groupdict().items()}
                found = {VALUE: float(figures[name]), WITHIN: figures.get(f"{name}_std") or None}
                rows.append({**row, **words, **found})
                index.append(run)
    columns = list(dict.fromkeys([*frame.columns, *matching.groupindex, VALUE, WITHIN]))
    return pd.DataFrame(rows, index=pd.Index(index, dtype=object), columns=columns, dtype=object)


def metric_regex(pattern: str) -> re.Pattern[str]:
    """Returns the regular expression for a metric in which {word} matches any one part.

    >>> metric_regex("fewshot/{dataset}/{shots}_shot/l2").fullmatch("fewshot/pets/5_shot/l2")[2]
    '5'
    """
    text = ""
    for i, part in enumerate(re.split(r"\{([a-z_]+)\}", pattern)):
        seen = f"(?P<{part}>" in text
        text += re.escape(part) if i % 2 == 0 else f"(?P={part})" if seen else f"(?P<{part}>[^/]+?)"
    return re.compile(text)


def column(frame: pd.DataFrame, name: str) -> pd.Series:
    """Returns a column; "a+b" joins several into labels. A missing column is all None.

    >>> column(pd.DataFrame({"dataset": ["pets"], "shots": [5]}), "dataset+shots").item()
    'pets · 5-shot'
    """
    names = name.split("+")
    values = frame.reindex(columns=names).astype(object)
    values = values.where(values.notna(), None)
    if len(names) == 1:
        return values[name]
    texts = values.map(format_value)
    if "shots" in names:
        texts["shots"] = values["shots"].map(lambda n: f"{n}-shot", na_action="ignore")
    joined = [JOIN.join(filter(None, row)) or None for row in texts.itertuples(index=False)]
    return pd.Series(joined, index=frame.index, dtype=object)


def text_column(frame: pd.DataFrame, name: str) -> pd.Series:
    """Returns a column, or several joined columns, as text."""
    return column(frame, name).map(format_value)


def select(frame: pd.DataFrame, where: Mapping[str, str]) -> pd.DataFrame:
    """Returns the rows whose columns have the given values.

    Raises:
        ConfigError: no such column, or no row has the value.
    """
    for name, wanted in where.items():
        check_columns(frame, where=name)
        found = text_column(frame, name)
        if len(frame) and wanted not in set(found):
            raise ConfigError(
                f"where.{name}={wanted}: no remaining run has it",
                f"one of {first_few(sorted(set(found), key=natural_key), 8)}",
                f"did you mean {nearest(wanted, set(found))!r}?",
            )
        frame = frame[found == wanted]
    return frame


def check_columns(frame: pd.DataFrame, **options: str | None) -> None:
    """Raises ConfigError if a column, or one of several joined by "+", does not exist.

    Args:
        frame: of runs or observations.
        options: command-line option -> the column given in it.
    """
    known = {*frame.columns} - {VALUE, WITHIN}
    for option, value in options.items():
        for name in {*(value or "").split("+")} - known - {""}:
            labels = sorted({label for run in frame.index for label in run.labels})
            raise ConfigError(
                f"{option}={name}: no run has such a label, setting or metric",
                f"a label ({first_few(labels or ['model', 'dataset', 'seed', 'family'], 6)}), a key"
                " of config.json or a metric",
                f"did you mean {nearest(name, known)!r}?",
            )


def in_natural_order(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Returns the rows ordered by some columns, with numbers inside texts by their size."""
    rows = zip(*(frame[key].map(natural_key) for key in keys), range(len(frame)), strict=True)
    return frame.iloc[[row[-1] for row in sorted(rows)]]


def differing(mappings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the keys, sorted, whose values differ; a missing value is None."""
    keys = sorted({key for mapping in mappings for key in mapping})
    return [key for key in keys if any(m.get(key) != mappings[0].get(key) for m in mappings)]


def differing_settings(runs: Iterable[Run]) -> list[str]:
    """Returns the config keys in which runs differ, except the seed and bookkeeping."""
    return differing([run.settings for run in runs if run.config])


def differing_within(observed: pd.DataFrame, keys: list[str]) -> list[str]:
    """Returns the labels and settings, except the seed, in which runs with equal `keys` differ."""
    found: set[str] = set()
    for _, group in observed.groupby(keys):
        found |= {*differing([run.labels for run in group.index]), *differing_settings(group.index)}
    return sorted(found - {"seed"})
