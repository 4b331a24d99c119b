"""What tables and pictures can be made of: fields of runs, metrics whose names hold fields."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vit_jax.errors import ConfigError, first_few, nearest
from vit_jax.report.lineage import Effort, effort_fields
from vit_jax.report.runs import Run, natural
from vit_jax.report.words import family, join, number, show

_OWN = ("name", "stage", "state", "seed", "step", "wall_time_s", "device", "revision", "family")
_MEASURES = (
    "train_examples", "examples_seen", "train_exaflops", "pretrain_examples", "pretrain_exaflops",
)  # fmt: skip
# Words of labels and what says the same in the config of a run without labels.
_SAME_AS = {"model": "model.name", "dataset": "data.name"}
# Settings that say where a run lies and how it was watched, not what was trained.
BOOKKEEPING = re.compile(
    r"(checkpoint|logging|divergence)(\..*)?|.*\.(data_dir|num_threads|num_workers|prefetch_batches"
    r"|hash)|mesh\..*|evaluation\.(batch_size|interval_.*)|init_from.*|compiler_options.*|load.*"
)


class Fields:
    """Looks up fields of runs by name.

    A name means, in this order: a label of the sweep (but for "stage"); name, stage, state, seed,
    step, wall_time_s, device, revision, family (ViT, hybrid, ResNet); a measure of data or compute;
    a setting of the config by its dotted key; a final figure. "a+b" joins several.

    Args:
        runs: all runs of the report.
        efforts: of these runs, by folder.
    """

    def __init__(self, runs: Sequence[Run], efforts: dict[Path, Effort]):
        self.runs, self.efforts = list(runs), efforts

    def of(self, run: Run, name: str) -> Any:
        """Returns the value of a field of a run; None: it has none."""
        if "+" in name:
            names = name.split("+")
            return join(names, [self.of(run, part) for part in names])
        if name in run.labels and name != "stage":
            return run.labels[name]
        if name == "family":
            return family(self.of(run, "model"))
        if name == "revision":
            return run.environment.get("git_revision")
        if name in _OWN:
            return getattr(run, name)
        if name in _MEASURES:
            return effort_fields(self.efforts[run.path])[name]
        if name in run.config:
            return run.config[name]
        if name in _SAME_AS:
            return run.config.get(_SAME_AS[name], (run.result or {}).get(name))
        return run.figures.get(name)

    def names(self) -> set[str]:
        """Returns the names of all fields of all runs."""
        found = {*_OWN, *_MEASURES}
        for run in self.runs:
            found |= {*run.labels, *run.config, *run.figures}
            known = {*run.config, *(run.result or {})}
            found |= {name for name, key in _SAME_AS.items() if known & {key, name}}
        return found

    def metrics(self) -> set[str]:
        """Returns the names of all figures of all runs."""
        return {name for run in self.runs for name in run.figures}

    def check(self, name: str, what: str, bound: Iterable[str] = ()) -> None:
        """Raises ConfigError where no run has a field.

        Args:
            name: of the field, or several joined by "+".
            what: where it was given, e.g. "rows".
            bound: fields that the metric's name brings along.
        """
        known = self.names() | set(bound)
        for part in name.split("+"):
            if part not in known:
                labels = sorted({label for run in self.runs for label in run.labels} | set(bound))
                labels = labels or sorted([*_SAME_AS, "seed", "family"])
                raise ConfigError(
                    f"{what}={part}: no run has such a label, setting or figure",
                    f"a label ({first_few(labels, 6)}), a key of config.json or a metric",
                    f"did you mean {nearest(part, known)!r}?",
                )

    def check_metric(self, pattern: str, what: str) -> None:
        """Raises ConfigError where no run has a metric."""
        known = self.metrics() | set(_MEASURES) | {"wall_time_s", "step"}
        compiled = metric_regex(pattern)
        if not any(compiled.fullmatch(name) for name in known):
            raise ConfigError(
                f"{what}={pattern}: no run has such a metric",
                "a figure of result.json or metrics.jsonl; {word} in its name stands for any part",
                f"did you mean {nearest(pattern, known)!r}?",
            )

    def observations(self, runs: Iterable[Run], pattern: str) -> list["Observation"]:
        """Returns what finished runs have of a metric, one for each name that fits the pattern."""
        compiled = metric_regex(pattern)
        found = []
        for run in runs:
            if not run.finished:
                continue
            named = run.figures
            if not compiled.groups and pattern not in named:
                value = self.of(run, pattern)
                named = {pattern: value} if isinstance(value, (int, float)) else {}
            for name in sorted(named, key=natural):
                match = compiled.fullmatch(name)
                if match is not None:
                    bound = {k: number(v) for k, v in match.groupdict().items()}
                    found.append(Observation(run, name, float(named[name]), bound))
        return found

    def value(self, observation: "Observation", name: str) -> Any:
        """Returns a field of an observation: of the metric's name, else of its run."""
        if "+" in name:
            names = name.split("+")
            return join(names, [self.value(observation, part) for part in names])
        if name in observation.bound:
            return observation.bound[name]
        return self.of(observation.run, name)


@dataclasses.dataclass(frozen=True)
class Observation:
    """One figure of one run.

    Attributes:
        run: whose.
        metric: full name.
        value: the figure.
        bound: field -> value, read off the metric's name.
    """

    run: Run
    metric: str
    value: float
    bound: dict[str, Any]


T = TypeVar("T", Run, Observation)


def select(fields: Fields, items: Sequence[T], where: Sequence[tuple[str, str]]) -> list[T]:
    """Returns the observations, or runs, whose fields have the values asked for.

    Raises:
        ConfigError: a field that no run has, or a value that none of its runs has.
    """
    kept = list(items)
    bound = {name for o in kept if isinstance(o, Observation) for name in o.bound}

    def value(o: T, name: str) -> str:
        return show(fields.value(o, name) if isinstance(o, Observation) else fields.of(o, name))

    for name, wanted in where:
        fields.check(name, "where", bound)
        values = {value(o, name) for o in kept}
        if kept and wanted not in values:
            raise ConfigError(
                f"where.{name}={wanted}: no run that is left has it",
                f"one of {first_few(sorted(values, key=natural), 8)}",
                f"did you mean {nearest(wanted, values)!r}?",
            )
        kept = [o for o in kept if value(o, name) == wanted]
    return kept


def mixed_settings(groups: Sequence[Sequence[Observation]]) -> list[str]:
    """Returns the labels and settings, but for the seed, in which runs of one group differ."""
    mixed = set()
    for group in groups:
        runs = [o.run for o in group]
        mixed |= set(differing_settings(runs))
        names = {name for run in runs for name in run.labels} - {"seed"}
        mixed |= {n for n in names if len({show(run.labels.get(n)) for run in runs}) > 1}
    return sorted(mixed)


def metric_regex(pattern: str) -> re.Pattern[str]:
    """Returns the expression for a metric's name in which {word} stands for any one part.

    >>> metric_regex("fewshot/{dataset}/{shots}_shot/l2").fullmatch("fewshot/pets/5_shot/l2")[2]
    '5'
    """
    parts = re.split(r"\{([a-z_]+)\}", pattern)
    text = ""
    for i, part in enumerate(parts):
        if i % 2 == 0:
            text += re.escape(part)
        else:
            text += f"(?P={part})" if f"(?P<{part}>" in text else f"(?P<{part}>[^/]+?)"
    return re.compile(text)


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Returns the dotted keys of settings that differ, but for the seed and bookkeeping."""
    keys = sorted({key for run in runs for key in run.config})
    configs = [run.config for run in runs if run.config]
    return [
        key for key in keys
        if key != "seed" and not BOOKKEEPING.fullmatch(key)
        and any(c.get(key) != configs[0].get(key) for c in configs[1:])
    ]  # fmt: skip
