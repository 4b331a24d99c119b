"""Where the curves of two models cross, from the runs of a data-size sweep.

    python -m experiments.data_size.crossing runs/data_size [--into=experiments/data_size/README.md]

For each score, prints how many points the ViT and the hybrid are ahead of the ResNet at every size,
and the sizes at which they overtake it or fall behind. Between neighbouring sizes the score of each
seed is interpolated linearly in the logarithm of the size.
"""

import argparse
import itertools
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from vit_jax.commands.report import check_markers, replace_between_markers
from vit_jax.errors import ConfigError, UserError
from vit_jax.report.frame import run_frame
from vit_jax.report.labels import family, markdown_table, short_number, title_of
from vit_jax.report.runs import read_runs

# A score of a pretrained model, on its own dataset or few-shot on another.
_PRETRAINED = re.compile(r"eval/(test|validation)/accuracy_top1|fewshot/.*_shot/accuracy_top1")
_FINE_TUNED = "eval/test/accuracy_top1"
_MARKERS = ("<!-- crossings -->", "<!-- end of crossings -->")
# seed -> examples -> score
Curves = Mapping[int, Mapping[int, float]]


def crossings(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[tuple[float, bool]]:
    """Returns the sizes at which one curve overtakes another, or falls behind it.

    Args:
        ours: size -> score.
        theirs: the same for the other model. Sizes that only one of them has, or at which they are
            equal, are left out.

    Returns:
        (size, whether ours is ahead from there on), in the order of the sizes.

    >>> [(round(x), up) for x, up in crossings({100: 0.2, 10_000: 0.8}, {100: 0.4, 10_000: 0.6})]
    [(1000, True)]
    >>> crossings({100: 0.2, 10_000: 0.5}, {100: 0.4, 10_000: 0.6})
    []
    """
    ahead = {s: ours[s] - theirs[s] for s in sorted(ours.keys() & theirs.keys())}
    found = []
    for low, high in itertools.pairwise(size for size, by in ahead.items() if by):
        if ahead[low] * ahead[high] < 0:
            share = ahead[low] / (ahead[low] - ahead[high])
            at = math.log(low) + share * (math.log(high) - math.log(low))
            found.append((math.exp(at), ahead[high] > 0))
    return found


def compare(ours: Curves, theirs: Curves) -> tuple[dict[int, str], str]:
    """Returns how many points one model is ahead at each size, and where it overtakes, as text.

    Args:
        ours: curves of the model, one per seed.
        theirs: curves of the model it is compared with; curves of the same seed are paired.
    """
    ahead: dict[int, list[float]] = defaultdict(list)
    found: list[str] = []
    for seed in sorted(ours.keys() & theirs.keys()):
        for size in ours[seed].keys() & theirs[seed].keys():
            ahead[size].append(100 * (ours[seed][size] - theirs[seed][size]))
        at = crossings(ours[seed], theirs[seed])
        sizes = [short_number(x) + ("" if up else " (falls behind)") for x, up in at]
        found.append(" and ".join(sizes) or "none")
    cells = {}
    for size, values in ahead.items():
        deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        cells[size] = f"{statistics.fmean(values):+.1f}{deviation}"
    return cells, "; ".join(found)


def read_curves(folder: Path) -> Mapping[str, Mapping[str, Curves]]:
    """Returns score -> model -> curves of a sweep's finished final runs."""
    frame = run_frame(read_runs([folder]).runs)
    frame = frame[(frame["state"] == "finished") & (frame["stage"] == "final")]
    curves: dict[str, dict[str, dict[int, dict[int, float]]]] = {}
    for run, row in zip(frame.index, frame.to_dict("records"), strict=True):
        size, dataset = row["pretrain_examples"], row.get("dataset")
        for metric, score in run.figures.items():
            if run.init_from is not None and metric == _FINE_TUNED:
                name = f"fine-tuned on {dataset}"
            elif run.init_from is None and _PRETRAINED.fullmatch(metric):
                name = title_of(metric) if metric.startswith("fewshot/") else f"on {dataset} itself"
            else:
                continue
            if size is not None:
                by_seed = curves.setdefault(name, {}).setdefault(str(row["model"]), {})
                by_seed.setdefault(row["seed"], {})[size] = score
    return curves


def rows(curves: Mapping[str, Curves], name: str) -> tuple[list[int], list[list[str]]]:
    """Returns the sizes, and a row for each model but the ResNet: cells by size, crossings."""
    resnets = [model for model in curves if family(model) == "ResNet"]
    sizes = sorted({s for c in curves.values() for by_size in c.values() for s in by_size})
    lines = []
    for model in sorted(curves, key=lambda m: (family(m) == "hybrid", m)):
        if not resnets or model in resnets:
            continue
        cells, crossing = compare(curves[model], curves[resnets[0]])
        lines.append([name, model, *(cells.get(size, "–") for size in sizes), crossing])
    return sizes, lines


def table(folder: Path) -> str:
    """Returns the comparison of a sweep as a Markdown table.

    Raises:
        UserError: the folder has no such runs.
    """
    lines: list[list[str]] = []
    sizes: list[int] = []
    for name, curves in read_curves(folder).items():
        found, more = rows(curves, name)
        sizes, lines = found or sizes, lines + more
    if not lines:
        raise ConfigError(
            f"{folder} has no finished runs of a ResNet and another model on known amounts of data",
            "the --workdir of the sweep data_size",
            "check the path, or let more jobs finish",
        )
    names = ["points ahead of the ResNet", "model", *(f"{s:,}" for s in sizes), "gets ahead at"]
    return markdown_table(names, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table and, with --into, writes it into a page."""
    parser = argparse.ArgumentParser(description="Where the curves cross.")
    parser.add_argument("folder", type=Path, help="folder of the sweep")
    parser.add_argument("--into", type=Path, help="page with the two markers for the table")
    args = parser.parse_args(arguments)
    try:
        if args.into is not None:
            check_markers(args.into, *_MARKERS)
        text = table(args.folder)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    print(text)
    if args.into is not None:
        replace_between_markers(args.into, text + "\n", *_MARKERS)


if __name__ == "__main__":
    main()
