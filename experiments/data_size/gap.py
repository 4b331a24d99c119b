"""How much of the distance between ViT and ResNet is head, learning rate and family?

    python -m experiments.data_size.gap runs/heads [--into=experiments/data_size/README.md]

Reads the runs of heads.py and prints two tables. The first one divides the distance, in points of
test accuracy, between ResNet and ViT with their usual heads and one shared learning rate: what
goes away with own learning rates, what goes away with own heads, and what is left, the family. The
order matters, so it is done both ways. The second one says where the curves of two families cross.

A family's own head is the one with the best mean score on held-out training images. Intervals are
those of reports, over test images (paired) and seeds. Each draw also draws the held-out scores,
and chooses its own heads by them. The choice of the rates is not drawn again.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from experiments.data_size.heads import IMAGES_PER_SECOND, LENGTHS, RATES, SHARED_RATE
from vit_jax.commands.report import check_markers, replace_between_markers
from vit_jax.errors import ConfigError, UserError
from vit_jax.report.frame import run_frame
from vit_jax.report.intervals import draw_means, interval
from vit_jax.report.labels import markdown_table, short_number
from vit_jax.report.run import Run
from vit_jax.report.runs import read_runs
from vit_jax.report.scores import VALUE, observe

_TEST, _DEV = "eval/test/accuracy_top1", "eval/dev/accuracy_top1"
_MARKERS = ("<!-- gap -->", "<!-- end of gap -->")
# The heads of the paper.
USUAL_HEADS = {"ViT": "token", "hybrid": "token", "ResNet": "gap"}
OWN, SHARED = "own", "shared"
# (size, family, head, OWN or SHARED) -> draws of an accuracy; the first element is the mean.
Cells = Mapping[tuple[int, str, str, str], np.ndarray]
# size -> draws of an accuracy
Draws = Mapping[int, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Study:
    """What the runs say.

    Attributes:
        test: draws of test accuracies.
        dev: draws of held-out accuracies, with own rates.
        rates: (size, family, head) -> the chosen learning rate.
        ended_best: (size, family, head) -> (runs whose best weights were the last, runs).
    """

    test: Cells
    dev: Cells
    rates: Mapping[tuple[int, str, str], float]
    ended_best: Mapping[tuple[int, str, str], tuple[int, int]]


def read_study(folder: Path) -> Study:
    """Reads the finished runs of the sweep.

    Raises:
        ConfigError: there are no such runs.
    """
    frame = run_frame(read_runs([folder]).runs)
    frame = frame[frame["state"] == "finished"]
    final = [run for run in frame.index if run.stage == "final" and "head" in run.labels]
    chosen = {(run.job.get("selection") or {}).get("chosen") for run in final}
    search = [run for run in frame.index if run.stage == "search"]
    own = [run for run in final if run.labels.get("rate") == OWN]
    if not own:
        raise ConfigError(
            f"{folder} has no finished final runs with a head and an own rate",
            "the --workdir of the sweep data_size/heads.py",
            "check the path, or let more jobs finish",
        )
    own += [run for run in search if run.job.get("name") in chosen]
    shared = [run for run in final if run.labels.get("rate") == SHARED]
    shared += [run for run in search if _rate(run) == SHARED_RATE]
    parts = [frame.loc[own].assign(role=OWN), frame.loc[shared].assign(role=SHARED)]
    ended: dict[tuple[int, str, str], list[bool]] = {}
    for run in own:
        ended.setdefault(_at(run), []).append(run.figures.get("best_step") == run.step)
    return Study(
        _draw(pd.concat(parts), _TEST),
        _draw(parts[0], _DEV),
        {_at(run): _rate(run) for run in own},
        {at: (sum(values), len(values)) for at, values in ended.items()},
    )


def _rate(run: Run) -> float:
    return float(run.config["optimizer.learning_rate"])


def _at(run: Run) -> tuple[int, str, str]:
    return int(run.train_examples or 0), str(run.family), run.labels["head"]


def _draw(frame: pd.DataFrame, metric: str) -> Cells:
    """Returns the mean of each cell and its draws."""
    keys = {"size": "train_examples", "family": "family", "head": "head", "rate": "role"}
    observed = observe(frame, metric, {}, **keys)
    names = [f"@{key}" for key in keys]
    drawn = draw_means(observed, names)
    means = observed.groupby(names)[VALUE].mean()
    return {
        (int(at[0]), *at[1:]): np.concatenate([[means[at]], draws])
        for at, draws in cast(dict[Any, np.ndarray], drawn["draws"].to_dict()).items()
    }


def own_heads(dev: Cells, size: int, family: str) -> tuple[list[str], np.ndarray]:
    """Returns the heads of a family, and the place of the best held-out score in each draw."""
    heads = [at[2] for at in dev if at[:2] == (size, family) and at[3] == OWN]
    scores = np.array([dev[size, family, head, OWN] for head in heads])
    return heads, scores.argmax(axis=0) if heads else np.array([], int)


def with_own_head(study: Study, size: int, family: str, rate: str) -> np.ndarray | None:
    """Returns draws of the accuracy with the head that each draw chooses; None: not measured."""
    heads, best = own_heads(study.dev, size, family)
    if not heads or any((size, family, head, rate) not in study.test for head in heads):
        return None
    return np.choose(best, [study.test[size, family, head, rate] for head in heads])


def divide(
    both_usual: np.ndarray, own_rates: np.ndarray, heads: np.ndarray, both_own: np.ndarray
) -> dict[str, np.ndarray]:
    """Divides a distance between two families, in both orders.

    Args:
        both_usual: distance with usual heads and one rate.
        own_rates: with usual heads and own rates.
        heads: with own heads and one rate.
        both_own: with own heads and own rates.

    Returns:
        What each part contributes. In each order the parts and the family add up to `both_usual`.

    >>> parts = divide(*(np.array([x]) for x in (10.0, 7.0, 4.0, 2.0)))
    >>> {name: float(part[0]) for name, part in parts.items()}
    {'rate': 3.0, 'then head': 5.0, 'head': 6.0, 'then rate': 2.0, 'family': 2.0}
    """
    return {
        "rate": both_usual - own_rates,
        "then head": own_rates - both_own,
        "head": both_usual - heads,
        "then rate": heads - both_own,
        "family": both_own,
    }


def crossing(ours: Draws, theirs: Draws) -> np.ndarray:
    """Returns the size from which our curve is ahead, for each draw.

    It is interpolated between neighbouring sizes, linearly in the logarithm of the size.

    Args:
        ours: size -> draws of our accuracy.
        theirs: the same for the other model.

    Returns:
        The last size at which we overtake; 0 if we are ahead at all sizes, infinity if we are
        behind at the largest.

    >>> two = {100: np.array([0.2, 0.5]), 10_000: np.array([0.8, 0.5])}
    >>> crossing(two, {100: np.array([0.4, 0.6]), 10_000: np.array([0.6, 0.6])}).round()
    array([1000.,   inf])
    """
    sizes = sorted(ours.keys() & theirs.keys())
    ahead = {size: ours[size] - theirs[size] for size in sizes}
    found = np.zeros_like(ahead[sizes[0]])
    for low, high in itertools.pairwise(sizes):
        overtakes = (ahead[low] <= 0) & (ahead[high] > 0)
        share = np.divide(-ahead[low], ahead[high] - ahead[low], where=overtakes, out=found * 0)
        found = np.where(overtakes, low * (high / low) ** share, found)
    return np.where(ahead[sizes[-1]] > 0, found, np.inf)


def gap_table(study: Study, behind: str = "ViT", ahead: str = "ResNet") -> str:
    """Returns the division of the distance between two families at each size, as Markdown."""
    lines = []
    for size in sorted({at[0] for at in study.test}):
        distances = []
        for heads, rate in itertools.product((USUAL_HEADS, None), (SHARED, OWN)):
            pair = [
                study.test.get((size, family, heads[family], rate))
                if heads
                else with_own_head(study, size, family, rate)
                for family in (ahead, behind)
            ]
            if pair[0] is not None and pair[1] is not None:
                distances.append(100 * (pair[0] - pair[1]))
        if len(distances) < 4:
            continue
        usual, own_rates, heads, own = distances
        chosen = ", ".join(_settings(study, size, family) for family in (ahead, behind))
        parts = divide(usual, own_rates, heads, own).values()
        lines.append([f"{size:,}", chosen, *map(_shown, (usual, *parts)), _share(usual, own)])
    header = ["images", "own settings", f"{ahead} minus {behind}", "own rates", "then own heads",
              "own heads", "then own rates", "family", "share of head and rate"]  # fmt: skip
    return markdown_table(header, lines)


def _settings(study: Study, size: int, family: str) -> str:
    """Returns the head and rate of a family, and whether the rate is the edge of those tried."""
    heads, best = own_heads(study.dev, size, family)
    head = heads[best[0]]
    rate = study.rates[size, family, head]
    edge = " (edge)" if rate in (min(RATES), max(RATES)) else ""
    return f"{family} {head} at {rate:g}{edge}"


def _share(usual: np.ndarray, own: np.ndarray) -> str:
    """Returns the share of a distance that goes away; nothing if there may be no distance."""
    low, high = interval(usual[1:])
    if low <= 0 <= high:
        return "– (no distance is told apart)"
    shares = 100 * (usual - own) / usual
    low, high = interval(shares[1:])
    return f"{shares[0]:.0f} % [{low:.0f}, {high:.0f}]"


def crossing_table(study: Study, against: str = "ResNet") -> str:
    """Returns where each family overtakes another one, with own heads and rates, as Markdown."""
    sizes = sorted({at[0] for at in study.dev})
    curves: dict[str, dict[int, np.ndarray]] = {}
    for size, family in itertools.product(sizes, IMAGES_PER_SECOND):
        found = with_own_head(study, size, family, OWN)
        if found is not None:
            curves.setdefault(family, {})[size] = found
    seen = dict(zip(sorted(480 * percent for percent in LENGTHS), LENGTHS.values(), strict=True))
    lines = []
    for family, curve in curves.items():
        known = against in curves and family != against
        ended = [study.ended_best[at] for at in study.ended_best if at[1] == family]
        seconds = [
            f"{seen[size] / IMAGES_PER_SECOND[family]:.0f}" for size in curve if size in seen
        ]
        lines.append(
            [
                family,
                " / ".join(_settings(study, size, family) for size in curve),
                " / ".join(_percent(curve[size]) for size in curve),
                " / ".join(seconds),
                f"{sum(best for best, _ in ended)} of {sum(runs for _, runs in ended)}",
                _where(crossing(curve, curves[against])) if known else "–",
            ]
        )
    shown = " / ".join(f"{size:,}" for size in sizes)
    header = ["family", "own settings", f"accuracy at {shown}", "core-seconds of a run",
              "runs with the best weights at the end", f"ahead of the {against} from"]  # fmt: skip
    return markdown_table(header, lines)


def _shown(draws: np.ndarray) -> str:
    low, high = interval(draws[1:])
    return f"{draws[0]:+.1f} [{low:+.1f}, {high:+.1f}]"


def _percent(draws: np.ndarray) -> str:
    low, high = interval(100 * draws[1:])
    return f"{100 * draws[0]:.1f} [{low:.1f}, {high:.1f}]"


def _where(found: np.ndarray) -> str:
    """Returns a crossing and its interval as text; the first element is the estimate."""
    # The method does not interpolate, which infinity would turn into NaN.
    low, high = np.quantile(found[1:], [0.025, 0.975], method="inverted_cdf")
    names = {0.0: "all sizes", np.inf: "none"}
    texts = [names.get(float(x)) or f"{short_number(x)} images" for x in (found[0], low, high)]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables and, with --into, writes them into a page."""
    parser = argparse.ArgumentParser(description="Head, learning rate or family?")
    parser.add_argument("folder", type=Path, help="folder of the sweep")
    parser.add_argument("--into", type=Path, help="page with the two markers for the tables")
    args = parser.parse_args(arguments)
    try:
        if args.into is not None:
            check_markers(args.into, *_MARKERS)
        study = read_study(args.folder)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    text = f"{gap_table(study)}\n\n{crossing_table(study)}"
    print(text)
    if args.into is not None:
        replace_between_markers(args.into, text + "\n", *_MARKERS)


if __name__ == "__main__":
    main()
