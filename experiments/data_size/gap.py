"""How much of the distance between ViT and ResNet is head, learning rate and family?

    python -m experiments.data_size.gap runs/data_size [--into=experiments/data_size/README.md]

Reads the runs of heads.py and prints two tables. The first one divides the distance, in points of
test accuracy, between ResNet and ViT with their usual heads and one shared learning rate: what
goes away with own learning rates, what goes away with own heads as well, and what is left, the
family. The second one says where the curves of two families cross. A family's own settings are
those with the best score on held-out training images. Intervals are those of reports: test images
(paired) and seeds.
"""

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from vit_jax.commands.report import check_markers, replace_between_markers
from vit_jax.errors import ConfigError, UserError
from vit_jax.report.frame import run_frame
from vit_jax.report.intervals import draw_means, interval
from vit_jax.report.labels import markdown_table, short_number
from vit_jax.report.run import Run
from vit_jax.report.runs import read_runs
from vit_jax.report.scores import VALUE, observe

_SCORE = "eval/test/accuracy_top1"
_MARKERS = ("<!-- gap -->", "<!-- end of gap -->")
# The heads of the paper.
USUAL_HEADS = {"ViT": "token", "hybrid": "token", "ResNet": "gap"}
SHARED = "shared"
# size -> draws of an accuracy
Draws = Mapping[int, np.ndarray]


def read_draws(folder: Path) -> tuple[dict[tuple[int, str, str, str], np.ndarray], pd.DataFrame]:
    """Reads the finished final runs of the sweep.

    Args:
        folder: of the sweep.

    Returns:
        (size, family, head, "own" or "shared" rate) -> draws of the mean accuracy, whose first
        number is the mean itself; and the settings that each family selected at each size: columns
        size, family, head, dev (held-out accuracy of the selection), wall_time_s.

    Raises:
        ConfigError: there are no such runs.
    """
    frame = run_frame(read_runs([folder]).runs)
    frame = frame[(frame["state"] == "finished") & (frame["stage"] == "final")]
    if frame.empty or not {"head", "rate"} <= {*frame.columns}:
        raise ConfigError(
            f"{folder} has no finished final runs with a head and a rate",
            "the --workdir of the sweep data_size/heads.py",
            "check the path, or let more jobs finish",
        )
    keys = {"size": "train_examples", "family": "family", "head": "head", "rate": "rate"}
    observed = observe(frame, _SCORE, {}, **keys)
    names = [f"@{key}" for key in keys]
    drawn = draw_means(observed, names)
    means = observed.groupby(names)[VALUE].mean()
    cells = {
        (int(at[0]), *at[1:]): np.concatenate([[means[at]], row["draws"]])
        for at, row in drawn.iterrows()
    }
    rows = [
        {"size": run.train_examples, "family": run.family, "head": run.labels["head"],
         "dev": _dev_score(run), "wall_time_s": run.wall_time_s}
        for run in observed.index if run.labels["rate"] != SHARED
    ]  # fmt: skip
    by = ["size", "family", "head"]
    return cells, pd.DataFrame(rows).groupby(by, as_index=False).mean()


def _dev_score(run: Run) -> float:
    return float((run.job.get("selection") or {}).get("score", np.nan))


def best_heads(settings: pd.DataFrame) -> dict[tuple[int, str], str]:
    """Returns (size, family) -> the head with the best held-out accuracy."""
    best = settings.loc[settings.groupby(["size", "family"])["dev"].idxmax()]
    return {
        (int(row["size"]), str(row["family"])): str(row["head"]) for row in best.to_dict("records")
    }


def divide(shared: np.ndarray, rates: np.ndarray, heads: np.ndarray) -> dict[str, np.ndarray]:
    """Divides a distance between two families.

    Args:
        shared: distance with usual heads and one rate.
        rates: with usual heads and own rates.
        heads: with own heads and own rates.

    Returns:
        What each part contributes; their sum is `shared`.

    >>> divide(np.array([10.0]), np.array([7.0]), np.array([2.0]))
    {'rate': array([3.]), 'head': array([5.]), 'family': array([2.])}
    """
    return {"rate": shared - rates, "head": rates - heads, "family": heads}


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


def gap_table(
    cells: Mapping[tuple[int, str, str, str], np.ndarray],
    heads: Mapping[tuple[int, str], str],
    behind: str = "ViT",
    ahead: str = "ResNet",
) -> str:
    """Returns the division of the distance between two families at each size, as Markdown."""
    lines = []
    for size in sorted({at[0] for at in cells}):

        def distance(head: Mapping[str, str], rate: str, size: int = size) -> np.ndarray | None:
            ours, theirs = (cells.get((size, f, head[f], rate)) for f in (ahead, behind))
            return None if ours is None or theirs is None else 100 * (ours - theirs)

        if (size, ahead) not in heads or (size, behind) not in heads:
            continue
        own_heads = {family: heads[size, family] for family in (ahead, behind)}
        shared = distance(USUAL_HEADS, SHARED)
        rates, own = distance(USUAL_HEADS, "own"), distance(own_heads, "own")
        if shared is None or rates is None or own is None:
            continue
        parts = divide(shared, rates, own)
        chosen = ", ".join(f"{family} {head}" for family, head in own_heads.items())
        lines.append([f"{size:,}", chosen, *map(_shown, (shared, *parts.values()))])
    header = ["images", "own heads", f"{ahead} minus {behind}", "rate", "head", "family"]
    return markdown_table(header, lines)


def crossing_table(
    cells: Mapping[tuple[int, str, str, str], np.ndarray],
    settings: pd.DataFrame,
    heads: Mapping[tuple[int, str], str],
    against: str = "ResNet",
) -> str:
    """Returns where each family overtakes another one, with own heads and rates, as Markdown."""
    times = settings.set_index(["size", "family", "head"])["wall_time_s"]
    curves: dict[str, dict[int, np.ndarray]] = {}
    minutes: dict[str, list[str]] = {}
    for (size, family), head in sorted(heads.items()):
        if (size, family, head, "own") in cells:
            curves.setdefault(family, {})[size] = cells[size, family, head, "own"]
            minutes.setdefault(family, []).append(f"{times[size, family, head] / 60:.1f}")
    lines = []
    for family, curve in curves.items():
        cells_of_line = [family, " / ".join(_percent(curve[size]) for size in sorted(curve))]
        cells_of_line.append(" / ".join(minutes[family]))
        known = against in curves and family != against
        cells_of_line.append(_where(crossing(curve, curves[against])) if known else "–")
        lines.append(cells_of_line)
    sizes = " / ".join(f"{size:,}" for size in sorted({at[0] for at in cells}))
    header = ["family", f"accuracy at {sizes}", "minutes of a run", f"ahead of the {against} from"]
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
        cells, settings = read_draws(args.folder)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    heads = best_heads(settings)
    text = f"{gap_table(cells, heads)}\n\n{crossing_table(cells, settings, heads)}"
    print(text)
    if args.into is not None:
        replace_between_markers(args.into, text + "\n", *_MARKERS)


if __name__ == "__main__":
    main()
