"""The data frame behind a report, one row per run: making, joining and filtering its columns.

Columns are, in order of precedence: the labels of the sweep, COLUMNS, config keys by their dotted
name, and final metrics. The index holds the `Run` objects themselves.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from vit_jax.errors import ConfigError, UserError, first_few, nearest
from vit_jax.report.labels import family, format_value, is_number, join, natural_key
from vit_jax.report.runs import Run

# Label of a sweep -> the config key that gives it for runs without labels.
_ALIASES = {"model": "model.name", "dataset": "data.name"}
# Columns that `observations` adds.
METRIC, VALUE = "@metric", "@value"
# Config keys that change where a run is stored or how it is logged, but not what is trained.
_BOOKKEEPING = re.compile(
    r"seed|(checkpoint|logging|divergence)(\..*)?|.*\.(data_dir|num_threads|num_workers|hash"
    r"|prefetch_batches)|mesh\..*|evaluation\.(batch_size|interval_.*)|init_from.*"
    r"|compiler_options.*|load.*"
)


def train_examples(run: Run) -> int | None:
    """Returns the number of distinct examples in the training split."""
    return run.result.get("train_examples", run.subset.get("examples"))


def examples_seen(run: Run) -> int | None:
    """Returns steps times batch size."""
    seen, batch_size = run.result.get("examples_seen"), run.config.get("data.global_batch_size")
    if seen is None and batch_size and run.step and "optimizer.learning_rate" in run.config:
        return batch_size * run.step
    return seen


def train_exaflops(run: Run) -> float | None:
    """Returns the training compute in 1e18 FLOPs; computed if result.json has none."""
    seen = examples_seen(run)
    if "train_exaflops" in run.result or seen is None:
        return run.result.get("train_exaflops")
    per_image = _flops_per_image(run)
    return None if per_image is None else per_image * seen / 1e18


def _pretraining(figure: Callable[[Run], Any], merge: Callable[[Any], Any]) -> Callable[[Run], Any]:
    """Returns a column that merges a figure over a run's ancestors, or takes the run's own."""

    def over_ancestors(run: Run) -> Any:
        values = [figure(one) for one in run.ancestors or [run]]
        return None if run.unknown_init or None in values else merge(values)

    return over_ancestors


# Column -> function of a run. To add a column, write a function and add a line here.
COLUMNS: dict[str, Callable[[Run], Any]] = {
    "name": lambda run: run.name,
    "stage": lambda run: run.stage,
    "state": lambda run: run.state,
    "seed": lambda run: run.seed,
    "step": lambda run: run.step,
    "wall_time_s": lambda run: run.wall_time_s,
    "device": lambda run: run.device,
    "revision": lambda run: run.revision,
    "family": lambda run: family({**_aliases(run), **run.config, **run.labels}.get("model")),
    "train_examples": train_examples,
    "examples_seen": examples_seen,
    "train_exaflops": train_exaflops,
    "pretrain_examples": _pretraining(train_examples, max),
    "pretrain_exaflops": _pretraining(train_exaflops, sum),
}


def run_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """Returns a data frame with a row for each run; a missing value is None."""
    rows = []
    for run in runs:
        labels = {name: value for name, value in run.labels.items() if name != "stage"}
        computed = {name: make(run) for name, make in COLUMNS.items()}
        rows.append({**run.figures, **_aliases(run), **run.config, **computed, **labels})
    frame = pd.DataFrame(rows, index=pd.Index(list(runs), dtype=object), dtype=object)
    return frame.where(frame.notna(), None)


def unknown_pretraining(run: Run) -> str:
    """Returns why the pre-training of a run is not known; "" if it is."""
    known = None not in (COLUMNS["pretrain_examples"](run), COLUMNS["pretrain_exaflops"](run))
    if known or run.unknown_init or not run.ancestors:
        return run.unknown_init
    return f"{run.ancestors[0].name} does not say what it was trained on"


def observations(frame: pd.DataFrame, pattern: str) -> pd.DataFrame:
    """Returns one row per finished run and metric that matches a pattern.

    Args:
        frame: of runs.
        pattern: name of a metric; {word} matches any part of a name and becomes a column.

    Returns:
        The columns of `frame`, one column per {word}, and METRIC and VALUE.
    """
    compiled, rows, index = metric_regex(pattern), [], []
    for run, row in zip(frame.index, frame.to_dict("records"), strict=True):
        figures = run.figures if run.finished else {}
        if run.finished and pattern in row and pattern not in figures:
            figures = {pattern: row[pattern]} if is_number(row[pattern]) else {}
        for name in sorted(figures, key=natural_key):
            if match := compiled.fullmatch(name):
                words = {k: int(v) if v.isdigit() else v for k, v in match.groupdict().items()}
                rows.append({**row, **words, METRIC: name, VALUE: float(figures[name])})
                index.append(run)
    columns = list(dict.fromkeys([*frame.columns, *compiled.groupindex, METRIC, VALUE]))
    return pd.DataFrame(rows, index=pd.Index(index, dtype=object), columns=columns, dtype=object)


def column(frame: pd.DataFrame, name: str) -> pd.Series:
    """Returns a column; "a+b" joins several into labels. A missing column is all None."""
    names = name.split("+")
    values = [frame[n].tolist() if n in frame else [None] * len(frame) for n in names]
    joined = values[0] if len(names) == 1 else [join(names, v) for v in zip(*values, strict=True)]
    return pd.Series(joined, index=frame.index, dtype=object)


def text_column(frame: pd.DataFrame, name: str) -> pd.Series:
    """Returns a column, or several joined columns, as text."""
    return column(frame, name).map(format_value)


def group_by(frame: pd.DataFrame, keys: Sequence[pd.Series]) -> dict[tuple[Any, ...], pd.DataFrame]:
    """Returns the rows of each combination of keys that occurs."""
    return {tuple(key): group for key, group in frame.groupby(list(keys), sort=False)}


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
    known = {*frame.columns} - {METRIC, VALUE}
    for option, value in options.items():
        for name in {*(value or "").split("+")} - known - {""}:
            labels = sorted({label for run in frame.index for label in run.labels})
            raise ConfigError(
                f"{option}={name}: no run has such a label, setting or metric",
                f"a label ({first_few(labels or [*_ALIASES, 'seed', 'family'], 6)}), a key of"
                " config.json or a metric",
                f"did you mean {nearest(name, known)!r}?",
            )


def check_metric(frame: pd.DataFrame, pattern: str, option: str) -> None:
    """Raises ConfigError if no run has a metric that matches a pattern."""
    known = {name for run in frame.index for name in run.figures}
    known |= {name for name in COLUMNS if name.endswith(("_examples", "_exaflops", "_seen", "_s"))}
    if not any(map(metric_regex(pattern).fullmatch, {*known, "step"})):
        raise ConfigError(
            f"{option}={pattern}: no run has such a metric",
            "a metric in result.json or metrics.jsonl; {word} in its name matches any part",
            f"did you mean {nearest(pattern, known)!r}?",
        )


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


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Returns the config keys in which runs differ, except the seed and bookkeeping."""
    configs = [run.config for run in runs if run.config]
    keys = sorted({key for config in configs for key in config if not _BOOKKEEPING.fullmatch(key)})
    return [k for k in keys if any(c.get(k) != configs[0].get(k) for c in configs[1:])]


def differing_within(groups: Iterable[pd.DataFrame]) -> list[str]:
    """Returns the labels and settings, except the seed, in which runs of one group differ."""
    found = set()
    for runs in ([*group.index] for group in groups):
        labels = {name for run in runs for name in run.labels} - {"seed"}
        found |= {n for n in labels if len({format_value(run.labels.get(n)) for run in runs}) > 1}
        found |= {*differing_settings(runs)}
    return sorted(found)


def _aliases(run: Run) -> dict[str, Any]:
    values = {n: run.config.get(key, run.result.get(n)) for n, key in _ALIASES.items()}
    return {name: value for name, value in values.items() if value is not None}


def _flops_per_image(run: Run) -> int | None:
    """Returns the operations of training on one image, for classifiers of known sizes."""
    from vit_jax.config.upgrade import upgrade_model
    from vit_jax.models.flops import forward_macs, training_flops
    from vit_jax.models.registry import model_options

    size = run.config.get("data.image_size")
    num_classes = run.config.get("data.num_classes") or len(run.classes)
    if not size or not num_classes or run.config.get("task", "classification") != "classification":
        return None
    try:
        mapping = json.loads((run.path / "config.json").read_text())
        model = model_options(**upgrade_model(mapping["model"]))
        return training_flops(forward_macs(model, num_classes=num_classes, image_size=(size, size)))
    except (UserError, KeyError, TypeError, OSError):
        return None
