"""Runs least squares, kNN and the linear probe on the features of one dataset.

Each method chooses its hyperparameter (l2, k, C) on held-out examples, never on the test split.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax.config.fewshot import FewshotConfig
from vit_jax.evaluation.draws import check_shots, class_orders, draw_held_out, draw_shots, hold_out
from vit_jax.evaluation.features import Features
from vit_jax.evaluation.fewshot import RidgePath, accuracies, fit_ridge
from vit_jax.evaluation.knn import knn_accuracies
from vit_jax.evaluation.linear_probe import fits_in_memory, probe_accuracies

MethodResult = tuple[dict[str, float], dict[str, Any]]


# Candidates for l2 of least squares.
_L2_GRID = tuple(2.0**i for i in range(-10, 21, 2))
# Candidates for k; they follow arXiv:2104.14294, section 4.1, and its code.
_NEIGHBOURS = (1, 5, 10, 20, 50, 100, 200)
# Without a held-out split: training examples of each class that are never shots, to choose l2 on;
# and the share of each class that is held out of the training split, to choose k and C on.
_HELD_OUT_PER_CLASS, _HELD_OUT_FRACTION = 20, 0.1
# Method -> how the names of its metrics start.
_PREFIXES = {"least_squares": "fewshot", "knn": "knn", "linear_probe": "linear_probe"}


@dataclasses.dataclass(frozen=True)
class Splits:
    """The features of a dataset."""

    train: Features
    test: Features  # used only to measure accuracy
    held_out: Features | None  # to choose hyperparameters on; None: hold out examples of `train`
    class_names: tuple[str, ...]  # in label order
    name: str  # of the training split, for messages

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


def run_methods(splits: Splits, config: FewshotConfig, name: str) -> MethodResult:
    """Runs the methods of a config.

    Returns:
        Metric name -> value, and method -> details of how its hyperparameter was chosen, for JSON.
    """
    run = {"least_squares": _least_squares, "knn": _knn, "linear_probe": _linear_probe}
    metrics: dict[str, float] = {}
    details: dict[str, Any] = {}
    for method in config.methods:
        found, details[method] = run[method](splits, config, name)
        metrics |= found
        at = f"{_PREFIXES[method]}/{name}"
        about = {
            "classes": splits.num_classes,
            "feature_width": splits.train.values.shape[1],
            "examples": len(splits.test.labels),
        }
        metrics |= {f"{at}/{key}": value for key, value in about.items()}
    return metrics, details


def _least_squares(splits: Splits, config: FewshotConfig, name: str) -> MethodResult:
    train, classes = splits.train, splits.num_classes
    most = max(config.shots)
    chooses = config.l2 is None and splits.held_out is None
    counts = np.bincount(train.labels, minlength=classes)
    tested = np.bincount(splits.test.labels, minlength=classes)
    check_shots(
        counts, tested, splits.class_names, most, held_out=int(chooses), dataset=splits.name
    )
    orders = {seed: class_orders(train.labels, classes, seed) for seed in config.seeds}
    metrics: dict[str, float] = {}
    details: dict[str, Any] = {"chosen_on": _chosen_on(splits, config)}
    for shots in config.shots:
        paths: dict[int, RidgePath] = {}
        for seed, order in orders.items():
            chosen = draw_shots(order, shots)
            paths[seed] = fit_ridge(train.values[chosen], train.labels[chosen], classes)
        l2, row = config.l2, {}
        if l2 is None:
            scores = [
                accuracies(path, *_choose_on(splits, orders[seed], config), _L2_GRID)
                for seed, path in paths.items()
            ]
            mean = np.mean(scores, axis=0)
            l2 = best(_L2_GRID, mean)
            row["held_out_accuracy"] = _named(_L2_GRID, mean.tolist())
        tests = [
            float(accuracies(p, splits.test.values, splits.test.labels, [l2])[0])
            for p in paths.values()
        ]
        at = f"fewshot/{name}/{shots}_shot"
        metrics |= {
            f"{at}/accuracy_top1": statistics.fmean(tests),
            f"{at}/accuracy_top1_std": statistics.stdev(tests) if len(tests) > 1 else 0.0,
            f"{at}/l2": l2,
        }
        row["accuracy_top1_by_seed"] = _named(config.seeds, tests)
        details[f"{shots}_shot"] = row
    return metrics, details


def _chosen_on(splits: Splits, config: FewshotConfig) -> str:
    """Describes the examples on which l2 is chosen."""
    if config.l2 is not None:
        return "fixed"
    if splits.held_out is not None:
        return f"{len(splits.held_out.labels)} examples of the held-out split"
    return (
        f"up to {_HELD_OUT_PER_CLASS} examples of each class of the training split that are"
        f" not among the {max(config.shots)} shots"
    )


def _choose_on(
    splits: Splits, order: Sequence[np.ndarray], config: FewshotConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the features and labels to choose l2 on."""
    if splits.held_out is not None:
        return splits.held_out.values, splits.held_out.labels
    places = draw_held_out(order, max(config.shots), _HELD_OUT_PER_CLASS)
    return splits.train.values[places], splits.train.labels[places]


def best(grid: Sequence[float], scores: np.ndarray, *, most: bool = True) -> float:
    """Returns the value with the highest score: the largest among ties, or the smallest.

    >>> best([1, 4, 16], np.array([0.5, 0.75, 0.75]))
    16
    """
    top = [value for value, score in zip(grid, scores, strict=True) if score == scores.max()]
    return max(top) if most else min(top)


def _knn(splits: Splits, config: FewshotConfig, name: str) -> MethodResult:
    learn, choose, chosen_on = _learn_and_choose(splits, config)

    def score(bank: Features, queries: Features, neighbours: Sequence[int]) -> np.ndarray:
        return knn_accuracies(
            bank.values,
            bank.labels,
            queries.values,
            queries.labels,
            neighbours,
            num_classes=splits.num_classes,
        )

    scores = score(learn, choose, _NEIGHBOURS)
    k = int(best(_NEIGHBOURS, scores, most=False))
    tried = _named(_NEIGHBOURS, scores.tolist())
    found = score(splits.train, splits.test, [k])
    metrics = {f"knn/{name}/accuracy_top1": float(found[0]), f"knn/{name}/neighbours": k}
    return metrics, {"chosen_on": chosen_on, "held_out_accuracy": tried}


def _linear_probe(splits: Splits, config: FewshotConfig, name: str) -> MethodResult:
    by_gradient = not fits_in_memory(splits.train.values)
    options: Any = {
        "num_classes": splits.num_classes,
        "by_gradient": by_gradient,
        "seed": config.seeds[0],
    }
    learn, choose, chosen_on = _learn_and_choose(splits, config)
    c, tried = config.probe_c[0], {}
    if len(config.probe_c) > 1:
        scores = probe_accuracies(
            learn.values, learn.labels, choose.values, choose.labels, config.probe_c, **options
        )
        c = best(config.probe_c, scores, most=False)  # The strongest regularisation.
        tried = _named(config.probe_c, scores.tolist())
    train, test = splits.train, splits.test
    found = probe_accuracies(train.values, train.labels, test.values, test.labels, [c], **options)
    metrics = {f"linear_probe/{name}/accuracy_top1": float(found[0]), f"linear_probe/{name}/c": c}
    return metrics, {
        "chosen_on": chosen_on,
        "held_out_accuracy": tried,
        "trained_by": "minibatch gradients" if by_gradient else "scikit-learn",
    }


def _learn_and_choose(splits: Splits, config: FewshotConfig) -> tuple[Features, Features, str]:
    """Returns features to train on, features to choose on, and a description of the latter."""
    if splits.held_out is not None:
        chosen_on = f"{len(splits.held_out.labels)} examples of the held-out split"
        return splits.train, splits.held_out, chosen_on
    fraction, train = _HELD_OUT_FRACTION, splits.train
    kept, held_out = hold_out(train.labels, splits.num_classes, fraction, config.seeds[0])
    learn, choose = (Features(train.values[p], train.labels[p]) for p in (kept, held_out))
    return learn, choose, f"{len(held_out)} examples held out of the training split"


def _named(keys: Sequence[float], values: Sequence[float]) -> dict[str, float]:
    """Returns str(key) -> value, for JSON."""
    return dict(zip(map(str, keys), values, strict=True))
