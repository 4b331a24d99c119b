"""The data frame behind a report: one row per run, one column per label, setting and figure.

The index holds the `Run` objects. If a name occurs more than once, labels of the sweep come first,
then COLUMNS, config keys by their dotted name, and final metrics. A label called name, state or
stage is not a column.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from vit_jax.errors import ConfigError, first_few, nearest
from vit_jax.report.labels import JOIN, format_value, natural_key
from vit_jax.report.run import COLUMNS, Run


def run_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """Returns a data frame with a row for each run; a missing value is None."""
    rows = []
    for run in runs:
        computed = {name: getattr(run, name) for name in COLUMNS}
        fixed = {name: computed[name] for name in ("name", "state", "stage")}
        rows.append({**run.figures, **run.config, **computed, **run.labels, **fixed})
    frame = pd.DataFrame(rows, index=pd.Index(list(runs), dtype=object), dtype=object)
    return frame.where(frame.notna(), None)


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


def place(frame: pd.DataFrame, where: Mapping[str, str], **axes: str | None) -> pd.DataFrame:
    """Selects rows and says where each of them is shown.

    `where` maps a column to the value that the rows must have. An axis of a table or picture, such
    as "rows", shows a column; None: it has one place. The result has a column of text for each
    axis, named as the axis after an "@".
    """
    for axis, name in axes.items():
        _check_column(frame, name, axis)
    for name, wanted in where.items():
        _check_column(frame, name, "where")
        found = text_column(frame, name)
        if len(frame) and wanted not in set(found):
            raise ConfigError(
                f"where.{name}={wanted}: no remaining run has it",
                f"one of {first_few(sorted(set(found), key=natural_key), 8)}",
                f"did you mean {nearest(wanted, set(found))!r}?",
            )
        frame = frame[found == wanted]
    places = {f"@{axis}": text_column(frame, name) if name else "" for axis, name in axes.items()}
    return frame.assign(**places)


def _check_column(frame: pd.DataFrame, column: str | None, option: str) -> None:
    """Raises ConfigError if a column, or one of several joined by "+", does not exist."""
    known = {name for name in frame.columns if not name.startswith("@")}
    for name in {*(column or "").split("+")} - known - {""}:
        damaged = [run.name for run in frame.index if run.problems]
        if damaged:
            raise ConfigError(
                f"{option}={name}: only runs with damaged files may have it"
                f" ({first_few(damaged, 3)})",
                "runs with intact files",
                "restore the files that the warnings name, or give other folders",
            )
        labels = sorted({label for run in frame.index for label in run.labels})
        raise ConfigError(
            f"{option}={name}: no run has such a label, setting or metric",
            f"a label ({first_few(labels or ['model', 'dataset', 'seed', 'family'], 6)}), a key"
            " of config.json or a metric",
            f"did you mean {nearest(name, known)!r}?",
        )


def in_natural_order(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Returns the rows ordered by some columns, with numbers inside texts by their size."""
    return frame.sort_values(list(keys), key=lambda values: values.map(natural_key), kind="stable")


def differing(mappings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the keys, sorted, whose values differ; a missing value is None."""
    keys = sorted({key for mapping in mappings for key in mapping})
    return [key for key in keys if any(m.get(key) != mappings[0].get(key) for m in mappings)]


def differing_starts(runs: Iterable[Run]) -> list[str]:
    """Returns the config keys of other weights than those of another seed that runs start from."""
    return differing([run.start for run in runs if run.config])


def differing_data(runs: Iterable[Run]) -> list[str]:
    """Returns in which data runs differ, or may differ, beside the settings of their data.

    If a fingerprint of training examples is not known, other folders count as other examples.
    """
    configured = [run for run in runs if run.config]
    found = differing([run.places for run in configured])
    prints = {run.fingerprint for run in configured}
    is_set = any(key.startswith("data.") for key in differing_settings(configured))
    if is_set or None not in prints:
        found = [key for key in found if key != "data.data_dir"]
    return found + ["training examples"] * (len(prints - {None}) > 1 and not is_set)


def differing_settings(runs: Iterable[Run]) -> list[str]:
    """Returns the config keys in which runs differ, except the seed and bookkeeping."""
    return differing([run.settings for run in runs if run.config])
