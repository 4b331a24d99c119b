"""The choice of the best of several jobs: by which split, and which."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.config.run import Config
from vit_jax.config.split_overlap import may_share, shares
from vit_jax.errors import SweepError, nearest
from vit_jax.sweep.jobs import Selection, better


def split_of(metric: str) -> str | None:
    """Returns the split that a metric is measured on, as evaluation.splits names it.

    >>> split_of("eval/dev/accuracy_top1")
    'dev'
    >>> split_of("knn/pets/accuracy_top1")
    """
    parts = metric.split("/")
    return parts[1] if parts[0] == "eval" and len(parts) > 2 else None


def check_choice(selection: Selection, search: Sequence[Config], final: Sequence[Config]) -> None:
    """Checks that a choice can be made and is not made on what is then reported.

    Args:
        selection: the choice.
        search: configs of its candidates.
        final: configs of its final runs.

    Raises:
        SweepError: the metric's split is not evaluated, or shares examples with a reported one or
            with what a candidate trains on.
    """
    where, name = f"selection {selection.name!r}", split_of(selection.metric)
    if name is not None:
        for config in search:
            if name not in config.evaluation.all_splits:
                known = ", ".join(config.evaluation.all_splits) or "none"
                raise SweepError(
                    f"{where} is by {selection.metric!r}, and a candidate evaluates no {name!r}"
                    f" (evaluation.splits: {known})",
                    "a split that every candidate evaluates",
                    f"did you mean {nearest(name, config.evaluation.all_splits)!r}?"
                    if config.evaluation.all_splits
                    else f"set evaluation.splits.{name} in their config",
                )
            _refuse_trained_on(selection, name, config)
    if selection.choose_on_test or not final:
        return
    if name is None:
        raise SweepError(
            f"{where} is by {selection.metric!r}, which does not say its split",
            "a metric such as eval/dev/accuracy_top1",
            "name one, or set choose_on_test=True if it is not measured on test examples",
        )
    for one in search:
        chosen_on = one.evaluation.all_splits[name]
        for other in final:
            _refuse_shared(where, name, chosen_on, _reported(other, name))


def _refuse_trained_on(selection: Selection, name: str, config: Config) -> None:
    """A candidate that trains on what it is scored on is chosen for how well it remembers."""
    trained, scored = config.data.train_split, config.evaluation.all_splits[name]
    if selection.choose_on_test or config.data.mixture or not shares(trained, scored):
        return
    raise SweepError(
        f"selection {selection.name!r} chooses on {name!r} ({scored}), and a candidate trains on"
        f" {trained!r}",
        "examples that no candidate trains on",
        "set data.train_split of the candidates to the rest, e.g. 'train[:90%]'",
    )


def _reported(config: Config, chosen_on: str) -> dict[str, str]:
    """Returns the splits that a final run is reported on.

    All but the one that the choice was made on, if it is there to stop the run early.
    """
    stops = split_of(config.early_stopping.metric or "")
    left_out = chosen_on if stops == chosen_on else None
    return {n: split for n, split in config.evaluation.all_splits.items() if n != left_out}


def _refuse_shared(where: str, name: str, split: str, reported: Mapping[str, str]) -> None:
    if name == "test":
        clash = "test"
    elif name in reported:
        clash = name
    else:
        clash = next((n for n, other in reported.items() if may_share(split, other)), None)
    if clash is not None:
        raise SweepError(
            f"{where} chooses on {name!r} ({split}), and the final runs are reported on"
            f" {clash!r} ({reported.get(clash, split)})",
            "a dev split, of examples that are not reported on",
            "split some off train, or say choose_on_test=True",
        )


def choose(
    selection: Selection, results: Sequence[tuple[str, Mapping[str, Any] | None]]
) -> dict[str, Any]:
    """Returns what job.json says of the choice.

    Args:
        selection: how to choose.
        results: (name of the candidate, its result.json; None where it failed), all of them.

    Raises:
        SweepError: no candidate has a finite score.

    >>> pick = Selection("x", [("a.py", {})], metric="eval/dev/loss", mode="min")
    >>> choose(pick, [("a", {"eval/dev/loss": 2.0}), ("b", {"eval/dev/loss": 1.0})])["chosen"]
    'b'
    """
    scores = [(name, None if r is None else _score(r, selection.metric)) for name, r in results]
    chosen, best = None, None
    for name, score in scores:
        if better(score, best, selection.mode):
            chosen, best = name, score
    if chosen is None:
        known = sorted({m for _, r in results if r for m in r if "/" in m})
        raise SweepError(
            f"selection {selection.name!r}: no candidate has a finite {selection.metric!r}",
            f"one of {', '.join(known) or 'the metrics of result.json'}",
            f"did you mean {nearest(selection.metric, known)!r}?" if known else "check the jobs",
        )
    return {
        "metric": selection.metric,
        "mode": selection.mode,
        "split": split_of(selection.metric),
        "chosen": chosen,
        "score": best,
        "candidates": [[name, score] for name, score in scores],
    }


def _score(result: Mapping[str, Any], metric: str) -> float | None:
    value = result.get(metric)
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
