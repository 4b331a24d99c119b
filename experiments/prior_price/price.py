"""Examples to a threshold of accuracy, and their ratio ViT / ResNet, on rendered images.

    python -m experiments.prior_price.price runs/prior_price
        [--output=experiments/prior_price/results] [--into=experiments/prior_price/README.md]

Reads the runs of sweep.py:main. The reachable accuracy of a task is the best mean over seeds of any
model at the end. The threshold is 90 % of it. Each run crosses the threshold at its own number of
examples, interpolated in the logarithm between evaluations. --output keeps the curves, which can
be given in place of the folder.
"""

import argparse
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from experiments.prior_price.sweep import DEV, TASKS
from vit_jax.commands.report import check_markers, replace_between_markers
from vit_jax.errors import ConfigError, UserError
from vit_jax.report.frame import run_frame
from vit_jax.report.labels import markdown_table, short_number
from vit_jax.report.run import Run
from vit_jax.report.runs import read_runs
from vit_jax.run.metrics import read_metrics

_MARKERS = ("<!-- price -->", "<!-- end of price -->")
REACHED = 0.9
"""Share of the reachable accuracy that counts as reached."""
_FAMILIES = ("ViT", "hybrid", "ResNet")


def read_curves(folder: Path) -> pd.DataFrame:
    """Reads the accuracy of the finished runs by the number of examples.

    Args:
        folder: of the sweep, or the curves.csv of an earlier call.

    Returns:
        Columns task, family, seed, examples, accuracy.

    Raises:
        ConfigError: there are no such runs.
    """
    if folder.suffix == ".csv":
        return pd.read_csv(folder)
    frame = run_frame(read_runs([folder]).runs)
    frame = frame[(frame["state"] == "finished") & (frame["stage"] == "final")]
    runs: list[Run] = [run for run in frame.index if "task" in run.labels]
    if not runs:
        raise ConfigError(
            f"{folder} has no finished final runs with a task",
            "the --workdir of the sweep prior_price/sweep.py:main",
            "check the path, or let more jobs finish",
        )
    rows = [
        {
            "task": run.labels["task"],
            "family": run.family,
            "seed": run.seed,
            "examples": line["step"] * run.config["data"]["global_batch_size"],
            "accuracy": line[DEV],
        }
        for run in runs
        for line in read_metrics(run.path / "metrics.jsonl")
        if DEV in line
    ]
    return pd.DataFrame(rows).sort_values(["task", "family", "seed", "examples"])


def reachable(curves: pd.DataFrame) -> dict[str, float]:
    """Returns task -> the best mean accuracy of any family at the end of its runs."""
    last = curves.loc[curves.groupby(["task", "family", "seed"])["examples"].idxmax()]
    means = last.groupby(["task", "family"])["accuracy"].mean()
    return {str(task): float(best) for task, best in means.groupby("task").max().items()}


def examples_to(threshold: float, examples: Sequence[float], accuracy: Sequence[float]) -> float:
    """Returns the number of examples at which a curve first reaches a threshold.

    It is interpolated between evaluations, linearly in the logarithm of the examples.

    Args:
        threshold: accuracy.
        examples: of each evaluation, rising.
        accuracy: of each evaluation.

    Returns:
        Infinity if the curve stays below.

    >>> examples_to(0.5, [100, 10_000], [0.4, 0.6])
    1000.0
    """
    if accuracy[0] >= threshold:
        return float(examples[0])
    curve = itertools.pairwise(zip(examples, accuracy, strict=True))
    for (fewer, low), (more, high) in curve:
        if high >= threshold:
            return round(fewer * (more / fewer) ** ((threshold - low) / (high - low)), 6)
    return math.inf


def crossings(curves: pd.DataFrame) -> dict[tuple[str, str], np.ndarray]:
    """Returns (task, family) -> examples to the threshold of each seed."""
    best = reachable(curves)
    found: dict[tuple[str, str], list[float]] = {}
    for (task, family, _), run in curves.groupby(["task", "family", "seed"]):
        needed = examples_to(REACHED * best[task], [*run["examples"]], [*run["accuracy"]])
        found.setdefault((task, family), []).append(needed)
    return {key: np.array(values) for key, values in found.items()}


def ratio(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    """Returns the ratio of two geometric means, and its 95 % interval (Welch, of logarithms).

    Args:
        ours: examples of each seed, finite.
        theirs: the same of the other model.
    """
    logs = np.log(ours), np.log(theirs)
    means = [float(values.mean()) for values in logs]
    errors = [float(values.var(ddof=1)) / len(values) for values in logs]
    total = sum(errors)
    if not total:
        value = math.exp(means[0] - means[1])
        return value, value, value
    freedom = total**2 / sum(e**2 / (len(v) - 1) for e, v in zip(errors, logs, strict=True))
    half = float(stats.t.ppf(0.975, freedom)) * math.sqrt(total)
    difference = means[0] - means[1]
    low, value, high = (math.exp(difference + x) for x in (-half, 0, half))
    return value, low, high


def price_table(curves: pd.DataFrame) -> str:
    """Returns the examples to the threshold and their ratio on each task, as Markdown."""
    needed, best = crossings(curves), reachable(curves)
    longest = int(curves["examples"].max())
    lines = []
    for task in [name for name in TASKS if name in best]:
        cells = [_examples(needed.get((task, family)), longest) for family in _FAMILIES]
        price = _price(needed, task, longest)
        lines.append([task, f"{100 * REACHED * best[task]:.1f} %", *cells, price])
    header = ["task", "threshold", *_FAMILIES, "ViT / ResNet [95 %]"]
    return markdown_table(header, lines)


def _examples(needed: np.ndarray | None, longest: int) -> str:
    if needed is None:
        return "–"
    reached = needed[np.isfinite(needed)]
    if not len(reached):
        return f"> {short_number(longest)}"
    mean = short_number(float(np.exp(np.log(reached).mean())))
    return mean if len(reached) == len(needed) else f"{mean} ({len(reached)} of {len(needed)} runs)"


def _price(needed: Mapping[tuple[str, str], np.ndarray], task: str, longest: int) -> str:
    """Returns the ratio ViT / ResNet; a bound if all runs of one of them stay below."""
    ours, theirs = (needed.get((task, family), np.array([])) for family in ("ViT", "ResNet"))
    if min(len(ours), len(theirs)) < 2:
        return "–"
    ours_reached, theirs_reached = np.isfinite(ours), np.isfinite(theirs)
    if ours_reached.all() and theirs_reached.all():
        value, low, high = ratio(ours, theirs)
        verdict = "" if low > 1 or high < 1 else ", not told apart from 1"
        return f"{value:.2g} [{low:.2g}, {high:.2g}]{verdict}"
    if ours_reached.all() and not theirs_reached.any():
        return f"< {float(np.exp(np.log(ours).mean())) / longest:.2g}"
    if theirs_reached.all() and not ours_reached.any():
        return f"> {longest / float(np.exp(np.log(theirs).mean())):.2g}"
    return "not all runs reach it"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table and, with --into, writes it into a page."""
    parser = argparse.ArgumentParser(description="The data price of a missing prior")
    parser.add_argument("folder", type=Path, help="folder of the sweep, or curves.csv")
    parser.add_argument("--output", type=Path, help="folder for curves.csv")
    parser.add_argument("--into", type=Path, help="page with the two markers for the table")
    args = parser.parse_args(arguments)
    try:
        if args.into is not None:
            check_markers(args.into, *_MARKERS)
        curves = read_curves(args.folder)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    text = price_table(curves)
    print(text)
    if args.output is not None:
        args.output.mkdir(parents=True, exist_ok=True)
        curves.to_csv(args.output / "curves.csv", index=False)
    if args.into is not None:
        replace_between_markers(args.into, text + "\n", *_MARKERS)


if __name__ == "__main__":
    main()
