"""How far is a ViT behind a ResNet, by the number of training images?

    python -m experiments.data_size.gap runs/data_size [--into=experiments/data_size/README.md]

Reads the finished runs of `sweep.py:small` and prints a table: test accuracies with the head and
learning rate that were chosen for each model and size, the lead of the ResNet over the ViT and the
hybrid in points, the same lead with the usual heads and one shared rate, and the difference of the
two. Then the change of the lead from the smallest to the largest size, the chosen heads and rates,
and by how much the held-out loss still falls in the last quarter of the runs.

Intervals are 95 %, over test images (paired) and seeds, as in reports.
"""

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from experiments.data_size.sweep import SMALL_RATES
from vit_jax.commands.report import check_markers, replace_between_markers
from vit_jax.errors import ConfigError, UserError
from vit_jax.report.frame import run_frame
from vit_jax.report.intervals import draw_means, interval
from vit_jax.report.labels import markdown_table
from vit_jax.report.run import Run
from vit_jax.report.runs import read_runs
from vit_jax.report.scores import VALUE, observe
from vit_jax.run.metrics import read_metrics

# Has a linear probe on mean colours for each number of images.
_BASELINES = Path(__file__).parents[1] / "baselines" / "results" / "runs.csv"
FAMILIES = ("ViT", "hybrid", "ResNet")
_LOSS, _PROBE = "eval/dev/loss", "linear_probe/cifar10/accuracy_top1"
_MARKERS = ("<!-- gap -->", "<!-- end of gap -->")
# (images, family, "chosen" or "shared") -> draws of an accuracy in points; the first is the mean.
Cells = Mapping[tuple[int, str, str], np.ndarray]


def pixel_accuracies() -> dict[int, float]:
    """Returns number of images -> percent of a linear probe on mean colours."""
    with _BASELINES.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["label.images"]]
    return {int(row["label.images"]): 100 * float(row[_PROBE]) for row in rows}


def read_finals(folder: Path) -> list[Run]:
    """Returns the finished final runs.

    Raises:
        ConfigError: there are none.
    """
    runs = read_runs([folder]).runs
    final = [run for run in runs if run.state == "finished" and "settings" in run.labels]
    final = [run for run in final if run.stage == "final"]
    if not final:
        raise ConfigError(
            f"{folder} has no finished final runs",
            "the --workdir of the sweep data_size/sweep.py",
            "check the path, or let more jobs finish",
        )
    return final


def draw_cells(runs: Sequence[Run]) -> Cells:
    """Returns the draws of every mean accuracy."""
    keys = {"images": "train_examples", "family": "family", "settings": "settings"}
    observed = observe(run_frame(runs), "eval/test/accuracy_top1", {}, **keys)
    names = [f"@{key}" for key in keys]
    means = observed.groupby(names)[VALUE].mean()
    drawn = draw_means(observed, names)["draws"].to_dict()
    return {
        (int(at[0]), at[1], at[2]): 100 * np.concatenate([[means[at]], draws])
        for at, draws in cast(dict[Any, np.ndarray], drawn).items()
    }


def gap_tables(cells: Cells) -> str:
    """Returns the tables of accuracies and of the ResNet's lead, as Markdown."""
    accuracies, leads, pixels = [], [], pixel_accuracies()
    for size in sorted({at[0] for at in cells}):
        found = {family: cells.get((size, family, "chosen")) for family in FAMILIES}
        lead = _lead(cells, size, "ViT", "chosen")
        usual = _lead(cells, size, "ViT", "shared")
        due = None if usual is None or lead is None else usual - lead
        shown = [found[family] for family in FAMILIES]
        accuracies.append([f"{size:,}", *map(_percent, shown), f"{pixels[size]:.1f}"])
        differences = (_lead(cells, size, "hybrid", "chosen"), lead, usual, due)
        leads.append([f"{size:,}", *map(_points, differences)])
    header = [
        "images",
        "ResNet - hybrid",
        "ResNet - ViT",
        "with usual heads and one rate",
        "change",
    ]
    return "\n\n".join(
        [
            markdown_table(["images", *FAMILIES, "pixels"], accuracies),
            "Lead of the ResNet, in percentage points. *Usual heads and one rate*: class token"
            " (ViT), average pooling (ResNet), 2.5e-3; *change*: how much the lead then differs"
            " from that with chosen heads and rates:",
            markdown_table(header, leads),
        ]
    )


def _lead(cells: Cells, size: int, behind: str, settings: str) -> np.ndarray | None:
    """Returns by how many points the ResNet is ahead of a family; None: not measured."""
    try:
        return cells[size, "ResNet", settings] - cells[size, behind, settings]
    except KeyError:
        return None


def trend(cells: Cells) -> str:
    """Returns a sentence on the ResNet's lead at the largest and the smallest size."""
    changes, ends = [], ""
    for behind in ("ViT", "hybrid"):
        leads = {size: _lead(cells, size, behind, "chosen") for size in {at[0] for at in cells}}
        known = {size: lead for size, lead in sorted(leads.items()) if lead is not None}
        if len(known) > 1:
            (small, first), *_, (large, last) = known.items()
            change = "by" if changes else "changes by"
            changes.append(f"over the {behind} {change} {_points(last - first)}")
            ends = f"From {small:,} to {large:,} images the ResNet's lead "
    return f"{ends}{', and '.join(changes)} points." if changes else ""


def settings_table(runs: Sequence[Run]) -> str:
    """Returns the chosen heads and rates, and the change of the held-out loss, as Markdown.

    "(edge)" marks the smallest or largest rate that was tried. The change is that of the last
    quarter of the runs, the mean over seeds.
    """
    chosen: dict[tuple[int, str], str] = {}
    changes: dict[tuple[int, str], list[float]] = {}
    for run in runs:
        if run.labels["settings"] == "chosen":
            at = int(run.train_examples or 0), run.labels["family"]
            rate = float(run.config["optimizer.learning_rate"])
            edge = " (edge)" if rate in (min(SMALL_RATES), max(SMALL_RATES)) else ""
            chosen[at] = f"{run.config['model.pooling']}, {rate:g}{edge}"
            rows = read_metrics(run.path / "metrics.jsonl")
            losses = {row["step"]: row[_LOSS] for row in rows if _LOSS in row}
            last = max(losses)
            before = max(step for step in losses if step <= 0.76 * last)
            changes.setdefault(at, []).append(losses[last] - losses[before])
    cells = {at: f"{text}; {np.mean(changes[at]):+.2f}" for at, text in chosen.items()}
    sizes = sorted({size for size, _ in cells})
    lines = [[family, *(cells.get((size, family), "–") for size in sizes)] for family in FAMILIES]
    return markdown_table(["images", *(f"{size:,}" for size in sizes)], lines)


def _percent(draws: np.ndarray | None) -> str:
    if draws is None:
        return "–"
    low, high = interval(draws[1:])
    return f"{draws[0]:.1f} [{low:.1f}, {high:.1f}]"


def _points(draws: np.ndarray | None) -> str:
    if draws is None:
        return "–"
    low, high = interval(draws[1:])
    return f"{draws[0]:+.1f} [{low:+.1f}, {high:+.1f}]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables and, with --into, writes them into a page."""
    parser = argparse.ArgumentParser(description="ViT against ResNet by the size of the data")
    parser.add_argument("folder", type=Path, help="folder of the sweep")
    parser.add_argument("--into", type=Path, help="page with the two markers for the tables")
    args = parser.parse_args(arguments)
    try:
        if args.into is not None:
            check_markers(args.into, *_MARKERS)
        runs = read_finals(args.folder)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    cells = draw_cells(runs)
    text = "\n\n".join(
        [
            gap_tables(cells),
            trend(cells),
            "Chosen heads and rates (*edge*: the largest or smallest rate that was tried), and the"
            " change of the held-out loss in the last quarter of the runs:\n\n"
            f"{settings_table(runs)}",
        ]
    )
    print(text)
    if args.into is not None:
        replace_between_markers(args.into, text + "\n", *_MARKERS)


if __name__ == "__main__":
    main()
