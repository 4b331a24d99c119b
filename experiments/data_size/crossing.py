"""Where the curves of two models cross, from the runs of a data-size sweep.

    python experiments/data_size/crossing.py runs/data_size [--into=experiments/data_size/README.md]

Prints, for each score, how far the ViT and the hybrid are ahead of the ResNet at every size, and
the size at which they get ahead: linear in the logarithm of the size between neighbouring points,
for each seed on its own.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from vit_jax.report.dispersion import summarize
from vit_jax.report.fields import Fields
from vit_jax.report.lineage import efforts
from vit_jax.report.runs import find_runs
from vit_jax.report.style import short_number
from vit_jax.report.words import family
from vit_jax.report.write import check_marks, grid, replace_between_marks

SCORES = {
    "accuracy on the test split of the data pretrained on": ("eval/test/accuracy_top1", True),
    "5-shot": ("fewshot/sign_language_digits/5_shot/accuracy_top1", True),
    "25-shot": ("fewshot/sign_language_digits/25_shot/accuracy_top1", True),
    "fine-tuned": ("eval/test/accuracy_top1", False),
}
_MARKS = "crossings"
# seed -> examples -> score
Curves = Mapping[int, Mapping[int, float]]


def crossings(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Returns the sizes at which one curve gets ahead of another, or falls behind it.

    Args:
        ours: size -> score.
        theirs: the same; sizes that only one of the two has are left out.

    >>> [round(x) for x in crossings({100: 0.2, 10_000: 0.8}, {100: 0.4, 10_000: 0.6})]
    [1000]
    >>> crossings({100: 0.2, 10_000: 0.5}, {100: 0.4, 10_000: 0.6})
    []
    """
    sizes = sorted(ours.keys() & theirs.keys())
    ahead = [ours[size] - theirs[size] for size in sizes]
    found = []
    for i in range(len(sizes) - 1):
        if ahead[i] * ahead[i + 1] < 0:
            share = ahead[i] / (ahead[i] - ahead[i + 1])
            low, high = math.log(sizes[i]), math.log(sizes[i + 1])
            found.append(math.exp(low + share * (high - low)))
    return found


def compare(ours: Curves, theirs: Curves) -> tuple[dict[int, str], str]:
    """Returns by how many points one model is ahead at each size, and where it gets ahead, as text.

    Args:
        ours: of the model.
        theirs: of the one that it is compared with; pairs have the same seed.
    """
    ahead: dict[int, list[float]] = defaultdict(list)
    found: list[str] = []
    for seed in sorted(ours.keys() & theirs.keys()):
        for size in ours[seed].keys() & theirs[seed].keys():
            ahead[size].append(100 * (ours[seed][size] - theirs[seed][size]))
        at = crossings(ours[seed], theirs[seed])
        found.append(" and ".join(short_number(x) for x in at) or "none")
    cells = {}
    for size, values in ahead.items():
        said = summarize(values)
        cells[size] = f"{said.mean:+.1f}" + (f" ± {said.std:.1f}" if said.std is not None else "")
    return cells, "; ".join(found)


def read_curves(folder: Path, metric: str, *, pretrained: bool) -> Mapping[str, Curves]:
    """Returns the curves of all models of a sweep.

    Args:
        folder: of the sweep.
        metric: of result.json.
        pretrained: of the runs that were pretrained, or of those that start from these.
    """
    runs = find_runs([folder]).runs
    fields = Fields(runs, efforts(runs))
    curves: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        size, score = fields.of(run, "pretrain_examples"), (run.result or {}).get(metric)
        fits = (run.config.get("init_from") is None) == pretrained and run.stage == "final"
        if fits and size is not None and score is not None:
            curves[str(fields.of(run, "model"))][run.seed][size] = score
    return dict(curves)


def rows(curves: Mapping[str, Curves], name: str) -> tuple[list[int], list[list[str]]]:
    """Returns the sizes, and a row for each model beside the ResNet: cells by size, crossings."""
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
    """Returns the comparison of a sweep as a Markdown table."""
    lines: list[list[str]] = []
    sizes: list[int] = []
    for name, (metric, pretrained) in SCORES.items():
        found, more = rows(read_curves(folder, metric, pretrained=pretrained), name)
        sizes, lines = found or sizes, lines + more
    names = ["points ahead of the ResNet", "model", *(f"{s:,}" for s in sizes), "crosses at"]
    return grid(names, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table, and puts it into a page where asked to."""
    parser = argparse.ArgumentParser(description="Where the curves cross.")
    parser.add_argument("folder", type=Path, help="of the sweep")
    parser.add_argument("--into", type=Path, help="page with the two marks, to put the table in")
    args = parser.parse_args(arguments)
    text = table(args.folder)
    print(text)
    if args.into is not None:
        check_marks(args.into, _MARKS)
        replace_between_marks(args.into, text + "\n", _MARKS)


if __name__ == "__main__":
    main()
