"""The data frame behind a report: a row a run, and how its columns are selected and joined.

Columns are, in order of precedence: the labels of the sweep, COLUMNS, config keys by their dotted
name, and final metrics. The index holds the `Run` objects themselves.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from vit_jax.errors import ConfigError, UserError, first_few, nearest
from vit_jax.report.labels import family, is_number, join, natural, show
from vit_jax.report.runs import Run

# Names for columns that runs without labels have under another config key.
_ALIASES = {"model": "model.name", "dataset": "data.name"}
# Columns that `observations` adds.
METRIC, VALUE = "@metric", "@value"
# Config keys that say where a run is stored or how it is logged, not what is trained.
_BOOKKEEPING = re.compile(
    r"(checkpoint|logging|divergence)(\..*)?|.*\.(data_dir|num_threads|num_workers|prefetch_batches"
    r"|hash)|mesh\..*|evaluation\.(batch_size|interval_.*)|init_from.*|compiler_options.*|load.*"
)


def _family(run: Run) -> str | None:
    return family((_alias_values(run) | run.config | run.labels).get("model"))


def _train_examples(run: Run) -> int | None:
    """Number of distinct examples in the training split."""
    return (run.result or {}).get("train_examples", run.subset.get("examples"))


def _examples_seen(run: Run) -> int | None:
    """Steps times batch size."""
    seen = (run.result or {}).get("examples_seen")
    batch_size = run.config.get("data.global_batch_size")
    if seen is None and batch_size and run.step and "optimizer.learning_rate" in run.config:
        return batch_size * run.step
    return seen


def _train_exaflops(run: Run) -> float | None:
    """Forward and backward, in 1e18 operations; from the config if result.json does not say."""
    exaflops, seen = (run.result or {}).get("train_exaflops"), _examples_seen(run)
    if exaflops is None and seen is not None:
        per_image = _flops_per_image(run)
        return None if per_image is None else per_image * seen / 1e18
    return exaflops


def _pretrain_examples(run: Run) -> int | None:
    """The largest training split of its ancestors; its own if it has none."""
    return _over_ancestors(run, _train_examples, max)


def _pretrain_exaflops(run: Run) -> float | None:
    """The compute of all its ancestors; its own if it has none."""
    return _over_ancestors(run, _train_exaflops, sum)


# Column -> function of a run. A new column is one function and one line here.
COLUMNS: dict[str, Callable[[Run], Any]] = {
    "name": lambda run: run.name,
    "stage": lambda run: run.stage,
    "state": lambda run: run.state,
    "seed": lambda run: run.seed,
    "step": lambda run: run.step,
    "wall_time_s": lambda run: run.wall_time_s,
    "device": lambda run: run.device,
    "revision": lambda run: run.environment.get("git_revision"),
    "family": _family,
    "train_examples": _train_examples,
    "examples_seen": _examples_seen,
    "train_exaflops": _train_exaflops,
    "pretrain_examples": _pretrain_examples,
    "pretrain_exaflops": _pretrain_exaflops,
}
# Columns that can be asked for as a metric.
_METRIC_COLUMNS = (*list(COLUMNS)[-5:], "wall_time_s", "step")


def run_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """Returns a data frame with a row for each run; a missing value is None."""
    rows = []
    for run in runs:
        labels = {name: value for name, value in run.labels.items() if name != "stage"}
        computed = {name: make(run) for name, make in COLUMNS.items()}
        rows.append(run.figures | _alias_values(run) | run.config | computed | labels)
    index = pd.Index(list(runs), dtype=object)
    frame = pd.DataFrame(rows, index=index, dtype=object)
    return frame.where(frame.notna(), None)


def unknown_lineage(run: Run) -> str:
    """Returns why the pre-training of a run is not known; "" if it is."""
    if run.unknown_init or not run.ancestors:
        return run.unknown_init
    known = _pretrain_examples(run) is not None and _pretrain_exaflops(run) is not None
    return "" if known else f"{run.ancestors[0].name} does not say what it was trained on"


def observations(frame: pd.DataFrame, pattern: str) -> pd.DataFrame:
    """Returns a row for each finished run and each of its metrics that match a pattern.

    Args:
        frame: of runs.
        pattern: name of a metric; {word} in it matches any part and becomes a column.

    Returns:
        The columns of `frame`, one for each {word}, and METRIC and VALUE.
    """
    compiled, rows, index = metric_regex(pattern), [], []
    for run, row in zip(frame.index, frame.to_dict("records"), strict=True):
        if not run.finished:
            continue
        figures = run.figures
        if not compiled.groups and pattern not in figures:
            figures = {pattern: row[pattern]} if is_number(row.get(pattern)) else {}
        for name in sorted(figures, key=natural):
            if match := compiled.fullmatch(name):
                words = {k: int(v) if v.isdigit() else v for k, v in match.groupdict().items()}
                rows.append({**row, **words, METRIC: name, VALUE: float(figures[name])})
                index.append(run)
    columns = [*dict.fromkeys([*frame.columns, *compiled.groupindex, METRIC, VALUE])]
    return pd.DataFrame(rows, index=pd.Index(index, dtype=object), columns=columns, dtype=object)


def column(frame: pd.DataFrame, name: str) -> pd.Series:
    """Returns a column; "a+b" joins several into labels. A missing column is all None."""
    names = name.split("+")
    values = [frame[n].tolist() if n in frame else [None] * len(frame) for n in names]
    joined = values[0] if len(names) == 1 else [join(names, v) for v in zip(*values, strict=True)]
    return pd.Series(joined, index=frame.index, dtype=object)


def texts(frame: pd.DataFrame, name: str) -> pd.Series:
    """Returns a column, or several that are joined, as text."""
    return column(frame, name).map(show)


def select(frame: pd.DataFrame, where: Iterable[tuple[str, str]]) -> pd.DataFrame:
    """Returns the rows whose columns have the given values.

    Raises:
        ConfigError: no such column, or no row has the value.
    """
    for name, wanted in where:
        check_columns(frame, where=name)
        found = texts(frame, name)
        if len(frame) and wanted not in set(found):
            raise ConfigError(
                f"where.{name}={wanted}: no remaining run has it",
                f"one of {first_few(sorted(set(found), key=natural), 8)}",
                f"did you mean {nearest(wanted, set(found))!r}?",
            )
        frame = frame[found == wanted]
    return frame


def check_columns(frame: pd.DataFrame, **options: str | None) -> None:
    """Raises ConfigError if a column, or one of several joined by "+", does not exist.

    Args:
        frame: of runs or observations.
        options: option in which the column was given -> column.
    """
    known = {str(name) for name in frame.columns if name not in (METRIC, VALUE)}
    for option, value in options.items():
        for name in (value or "").split("+"):
            if name and name not in known:
                labels = sorted({label for run in frame.index for label in run.labels})
                labels = labels or sorted([*_ALIASES, "seed", "family"])
                raise ConfigError(
                    f"{option}={name}: no run has such a label, setting or metric",
                    f"a label ({first_few(labels, 6)}), a key of config.json or a metric",
                    f"did you mean {nearest(name, known)!r}?",
                )


def check_metric(frame: pd.DataFrame, pattern: str, option: str) -> None:
    """Raises ConfigError if no run has a metric that matches a pattern."""
    known = {name for run in frame.index for name in run.figures}.union(_METRIC_COLUMNS)
    if not any(map(metric_regex(pattern).fullmatch, known)):
        raise ConfigError(
            f"{option}={pattern}: no run has such a metric",
            "a metric in result.json or metrics.jsonl; {word} in its name matches any part",
            f"did you mean {nearest(pattern, known)!r}?",
        )


@functools.cache
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
    keys = sorted({key for run in runs for key in run.config})
    configs = [run.config for run in runs if run.config]
    return [
        key for key in keys
        if key != "seed" and not _BOOKKEEPING.fullmatch(key)
        and any(config.get(key) != configs[0].get(key) for config in configs[1:])
    ]  # fmt: skip


def differing_within(groups: Iterable[pd.DataFrame]) -> list[str]:
    """Returns the labels and settings, except the seed, in which runs of one group differ."""
    found = set()
    for group in groups:
        runs = list(group.index)
        found |= set(differing_settings(runs))
        labels = {name for run in runs for name in run.labels} - {"seed"}
        found |= {n for n in labels if len({show(run.labels.get(n)) for run in runs}) > 1}
    return sorted(found)


def _alias_values(run: Run) -> dict[str, Any]:
    result = run.result or {}
    return {
        name: run.config.get(key, result.get(name)) for name, key in _ALIASES.items()
        if key in run.config or name in result
    }  # fmt: skip


def _over_ancestors(run: Run, figure: Callable[[Run], Any], merge: Callable[[Any], Any]) -> Any:
    if run.unknown_init:
        return None
    values = [figure(one) for one in run.ancestors or [run]]
    return None if None in values else merge(values)


def _flops_per_image(run: Run) -> int | None:
    """Returns the operations of one training step a image, of a classifier whose sizes are known."""
    from vit_jax.config.model import ModelConfig
    from vit_jax.models.flops import forward_macs, training_flops

    size = run.config.get("data.image_size")
    num_classes = run.config.get("data.num_classes") or run.num_classes
    if size is None or num_classes is None:
        return None
    try:
        mapping = json.loads((run.path / "config.json").read_text())
        if mapping.get("task", "classification") != "classification":
            return None
        model = ModelConfig.from_mapping(mapping["model"])
        return training_flops(forward_macs(model, num_classes=num_classes, image_size=(size, size)))
    except (UserError, KeyError, OSError):
        return None
