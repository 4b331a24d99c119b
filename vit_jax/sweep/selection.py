"""Selects the best of several runs, and checks that the selection uses no test examples."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.config.run import Config
from vit_jax.config.split_overlap import may_overlap, overlap
from vit_jax.errors import SweepError, nearest
from vit_jax.sweep.sweep_file import Selection


def split_of(metric: str) -> str | None:
    """Returns the name in evaluation.splits of the split that a metric is measured on, or None.

    >>> split_of("eval/dev/accuracy_top1")
    'dev'
    >>> split_of("knn/pets/accuracy_top1")
    """
    parts = metric.split("/")
    return parts[1] if parts[0] == "eval" and len(parts) > 2 else None


def check_selection(
    selection: Selection, candidates: Sequence[Config], finals: Sequence[Config]
) -> None:
    """Checks that all candidates evaluate the metric's split, and that it is used for nothing else.

    `finals` are the possible configs of the final runs.

    Raises:
        SweepError: a candidate does not evaluate the metric's split, a candidate trains on it, or
            the final runs report it.
    """
    name = split_of(selection.metric)
    if name is not None:
        for config in candidates:
            _check_candidate(selection, name, config)
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
    trained = config.data.train_split
    checked = not selection.choose_on_test and not config.data.mixture
    if checked and overlap(trained, splits[name]):
        raise SweepError(
            f"{where} selects on {name!r} ({splits[name]}), and a candidate trains on {trained!r}",
            "examples that no candidate trains on",
            "train the candidates on the rest, e.g. data.train_split 'train[:90%]'",
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

    Args:
        selection: what to select by.
        results: (candidate, its result.json; None if it failed) for every candidate.

    Raises:
        SweepError: no candidate has a finite score.

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
    # Of equal scores, the first wins.
    chosen = (max if selection.mode == "max" else min)(known, key=lambda name: known[name])
    return {
        "metric": metric,
        "mode": selection.mode,
        "split": split_of(metric),
        "chosen": chosen,
        "score": known[chosen],
        "candidates": [list(pair) for pair in scores],
    }


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
