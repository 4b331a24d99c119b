"""Selections: compare runs on a dev split, and repeat the best with several seeds."""

import dataclasses
import functools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from vit_jax.config.durations import is_same_duration
from vit_jax.config.evaluation import METRICS
from vit_jax.config.run import Config
from vit_jax.config.split_overlap import may_overlap, overlap
from vit_jax.data.benchmarks import find_benchmark
from vit_jax.errors import SweepError, nearest
from vit_jax.evaluation.metric_kinds import MetricKind, kind_of
from vit_jax.run.metrics import split_of
from vit_jax.sweep.jobs import Job, Overrides, as_job, check_choice, check_name, derive_names

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Selection:
    """Runs candidates, selects the best by a metric, and repeats it with several seeds.

    The selection is made when all candidates are finished; of equal scores, the first wins. The
    final runs use the config and overrides of the selected candidate. `final_config` and
    `final_overrides` override them, usually to train on the whole training split and to evaluate
    the test split. Candidates are named search/NAME/..., final runs final/NAME/seed0, ...

    Source: arXiv:2010.11929, sections 4.1 and B.1.1: hyperparameters are selected on a dev split;
    results are reported on the test split.

    Attributes:
        name: of the selection; may contain "/".
        candidates: training jobs or (config, overrides) pairs.
        metric: key of result.json, e.g. "eval/dev/accuracy_top1".
        mode: whether the largest or the smallest value is best; None: as the metric has it.
        seeds: one final run per seed; empty: no final runs.
        final_config: config of the final runs; None: the candidate's.
        final_overrides: overrides of the final runs, on top of the candidate's. "{seed}" in a text
            stands for the seed, such as in {"init_from": "job:pretrain/seed{seed}"}.
        labels: of all jobs of the selection.
        on_failed: "wait": the selection waits until failed candidates have been run again; "skip":
            it ignores failed candidates.
        choose_on_test: allows selection by a metric on a split that the final runs report.

    Raises:
        SweepError: an attribute is invalid.
    """

    name: str
    candidates: Sequence[Any]
    metric: str
    mode: Literal["max", "min"] | None = None
    seeds: Sequence[int] = (0, 1, 2)
    final_config: str | None = None
    final_overrides: Overrides = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    on_failed: Literal["wait", "skip"] = "wait"
    choose_on_test: bool = False

    def __post_init__(self):
        where = f"selection {self.name!r}"
        check_name(self.name, where)
        if self.mode is not None:
            check_choice(where, "mode", self.mode, ("max", "min"))
        check_choice(where, "on_failed", self.on_failed, ("wait", "skip"))
        if len(set(self.seeds)) < len(self.seeds):
            raise SweepError(
                f"{where} has the seeds {list(self.seeds)}", "different seeds", "remove one"
            )
        object.__setattr__(self, "candidates", tuple(as_job(c, where) for c in self.candidates))
        if not self.candidates:
            raise SweepError(f"{where} has no candidates", "at least one", "add some")
        if any(job.command != "train" for job in self.candidates):
            raise SweepError(
                f"{where} has candidates that do not train",
                "training runs",
                "make them jobs of their own that refer to job:final/NAME/seed0, ...",
            )
        if len(self.candidate_jobs) < len(self.candidates):
            raise SweepError(
                f"{where} has two candidates with the same name or settings",
                "different candidates with different names",
                "remove one, or pass them as Job(config, overrides, name=...)",
            )

    @functools.cached_property
    def candidate_jobs(self) -> dict[str, Job]:
        """Name -> candidate."""
        return {
            f"search/{self.name}/{name}": dataclasses.replace(
                job, labels={**self.labels, **job.labels}, stage="search"
            )
            for name, job in zip(derive_names(self.candidates), self.candidates, strict=True)
        }

    @property
    def final_names(self) -> list[str]:
        """Names of the final runs."""
        return [f"final/{self.name}/seed{seed}" for seed in self.seeds]

    def final_jobs(self, candidate: str) -> dict[str, Job]:
        """Returns name -> final run with the settings of a candidate."""
        job, changed = self.candidate_jobs[candidate], self.final_overrides
        given = [key for key, value in changed.items() if value is not None]
        kept = {
            key: value
            for key, value in job.overrides.items()
            if key not in changed and not any(is_same_duration(key, one) for one in given)
        }
        return {
            name: dataclasses.replace(
                job,
                config=self.final_config or job.config,
                overrides={**kept, **_of_seed(changed, seed), "seed": seed},
                labels=dict(self.labels),
                stage="final",
            )
            for name, seed in zip(self.final_names, self.seeds, strict=True)
        }


def _of_seed(overrides: Overrides, seed: int) -> Overrides:
    """Returns overrides with the seed in place of "{seed}" in their texts."""
    return {
        key: value.replace("{seed}", str(seed)) if isinstance(value, str) else value
        for key, value in overrides.items()
    }


def check_selection(
    selection: Selection, candidates: Sequence[Config], finals: Sequence[Config]
) -> None:
    """Checks that all candidates evaluate the metric's split, and that it is used for nothing else.

    No candidate may train on it. `finals` are the possible configs of the final runs, which must
    not report it.
    """
    name = split_of(selection.metric)
    kind = kind_of(selection.metric)
    better = "min" if kind.lower else "max"
    is_known = kind != MetricKind() or selection.metric.rpartition("/")[2] in METRICS
    if selection.mode not in (None, better) and is_known:
        words = {"max": "largest", "min": "smallest"}
        raise SweepError(
            f"selection {selection.name!r} selects the {words[str(selection.mode)]}"
            f" {selection.metric!r}",
            f"the {words[better]}, which is the best",
            f"set mode={better!r}, or name another metric",
        )
    if selection.metric.rpartition("/")[2] == "loss":
        formulas = {config.evaluated_loss for config in candidates}
        if len(formulas) > 1:
            raise SweepError(
                f"the candidates of selection {selection.name!r} have losses of several formulas:"
                f" {' and '.join(sorted(formulas))}",
                "one formula, because others do not compare",
                "select by another metric, such as accuracy_top1",
            )
    if name is not None:
        for config in candidates:
            _check_candidate(selection, name, config)
        measured = {config.evaluation.all_splits[name] for config in candidates}
        if len(measured) > 1:
            raise SweepError(
                f"the candidates of selection {selection.name!r} have different splits {name!r}:"
                f" {' and '.join(sorted(measured))}",
                "scores on the same images",
                f"evaluate the same {name!r} in all of them",
            )
        if find_benchmark(*measured) is None and len(data := set(map(_data_of, candidates))) > 1:
            log.warning(
                "the candidates of selection %r are scored on %r of different data: %s",
                *(selection.name, name, " and ".join(sorted(data))),
            )
    if selection.choose_on_test or not finals:
        return
    if name is None:
        raise SweepError(
            f"selection {selection.name!r} uses {selection.metric!r}, which names no split",
            "a metric such as eval/dev/accuracy_top1",
            "use such a metric, or set choose_on_test=True if it is not measured on test examples",
        )
    for selected_on in {config.evaluation.all_splits[name] for config in candidates}:
        for config in finals:
            _check_final_run(selection, name, selected_on, config)


def _data_of(config: Config) -> str:
    data = config.data
    return data.name if data.source == "tfds" else data.data_dir or data.name


def _check_candidate(selection: Selection, name: str, config: Config) -> None:
    """Checks that a candidate evaluates the split `name` and does not train on it."""
    where, splits = f"selection {selection.name!r}", config.evaluation.all_splits
    if name not in splits:
        raise SweepError(
            f"{where} uses {selection.metric!r}, and a candidate does not evaluate {name!r}"
            f" (evaluation.splits: {', '.join(splits) or 'none'})",
            "a split that every candidate evaluates",
            f"did you mean {nearest(name, splits)!r}?"
            if splits
            else f"set evaluation.splits.{name} in their config",
        )
    metric = selection.metric.removeprefix(f"eval/{name}/")
    known = (*config.task.accuracies, *config.evaluation.metrics)
    if known and metric not in (*known, "loss") and not metric.startswith("accuracy_class/"):
        raise SweepError(
            f"{where} uses {selection.metric!r}, which task {config.task.name} does not measure",
            ", ".join(f"eval/{name}/{one}" for one in known) + f", or eval/{name}/loss",
            f"did you mean 'eval/{name}/{nearest(metric, [*known, 'loss'])}'?",
        )
    trained = config.data.train_split
    shared = False if selection.choose_on_test else overlap(trained, splits[name])
    if shared is not False:
        unknown = "" if shared else ": whether they share examples depends on the dataset's size"
        raise SweepError(
            f"{where} selects on {name!r} ({splits[name]}), and a candidate trains on {trained!r}"
            + unknown,
            "examples that no candidate trains on",
            "train the candidates on the rest, e.g. data.train_split 'train[:90%]'"
            if shared
            else "write both slices with percentages, or both with numbers of examples",
        )


def _check_final_run(selection: Selection, name: str, selected_on: str, config: Config) -> None:
    """Checks that a final run does not report examples that the selection used.

    It may evaluate the selection's split if early stopping uses that split.
    """
    reported = dict(config.evaluation.all_splits)
    if split_of(config.early_stopping.metric or "") == name:
        reported.pop(name, None)
    if name == "test":
        reported = {name: selected_on, **reported}
    for other, split in reported.items():
        if other == name or may_overlap(selected_on, split):
            raise SweepError(
                f"selection {selection.name!r} selects on {name!r} ({selected_on}), and the final"
                f" runs report {other!r} ({split})",
                "a dev split that shares no examples with the reported splits",
                "split some examples off train, or set choose_on_test=True",
            )


def select_best(
    selection: Selection, results: Sequence[tuple[str, Mapping[str, Any] | None]]
) -> dict[str, Any]:
    """Returns the choice in the format of job.json.

    The results are (candidate, its result.json; None if it failed) for every candidate.

    >>> losses = Selection("x", [("a.py", {})], metric="eval/dev/loss", mode="min")
    >>> results = [("a", {"eval/dev/loss": 2.0}), ("b", {"eval/dev/loss": 1.0})]
    >>> select_best(losses, results)["chosen"]
    'b'
    """
    metric = selection.metric
    scores = [(name, _finite((result or {}).get(metric))) for name, result in results]
    known = {name: score for name, score in scores if score is not None}
    if not known:
        metrics = sorted({key for _, result in results for key in result or () if "/" in key})
        raise SweepError(
            f"selection {selection.name!r}: no candidate has a finite {metric!r}",
            f"one of {', '.join(metrics) or 'the metrics of result.json'}",
            f"did you mean {nearest(metric, metrics)!r}?" if metrics else "check the jobs",
        )
    mode = selection.mode or ("min" if kind_of(metric).lower else "max")
    chosen = (max if mode == "max" else min)(known, key=lambda name: known[name])
    return {
        "metric": metric,
        "mode": mode,
        "split": split_of(metric),
        "chosen": chosen,
        "score": known[chosen],
        "candidates": [list(pair) for pair in scores],
    }


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
