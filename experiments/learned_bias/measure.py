"""Is the inductive bias learned? Equivariance, permuted patches, attention distance by data size.

    python -m experiments.learned_bias.measure runs/data_size --data_dir=DATA
        [--output=experiments/learned_bias/results] [--into=experiments/learned_bias/README.md]

Analyses the final runs of data_size/sweep.py with `analyze` and the scripts of inside_vit, and each
of their models at its initial values, on the same test images. Then prints each measure by family
and number of training images, and its slope against the logarithm of that number. All slopes are
one family of tests (Holm). Runs that are analysed are not analysed again.

Cost: about a minute of a core for each of 45 models, after data_size/sweep.py.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from scipy import stats

from experiments.inside_vit import equivariance, inputs, permutation
from vit_jax.__main__ import main as vit_jax
from vit_jax.commands.report import check_markers, replace_between_markers
from vit_jax.errors import ConfigError, UserError
from vit_jax.report.frame import run_frame
from vit_jax.report.labels import markdown_table
from vit_jax.report.run import Run
from vit_jax.report.runs import read_runs

# Images for each analysis: an accuracy needs more than an error that is measured for each image.
_IMAGES = {"equivariance": 256, "distance": 256, "permutation": 2_000}
_SCRIPTS = {"equivariance": equivariance.measure, "permutation": permutation.measure}
_MARKERS = ("<!-- bias -->", "<!-- end of bias -->")
MEASURES = {
    "patch shift": "error of equivariance of the last map to a shift by one patch",
    "pixel shift": "error of equivariance of the last map to a shift by one pixel",
    "interior": "the same far from the border, in the last map that has such cells",
    "permutation": "share of the accuracy above chance that is left with permuted patches",
    "distance": "mean attention distance minus that of uniform attention, pixels",
    "nearest head": "the same of the most local head",
}
# Below this accuracy above chance, no share of it is computed.
_LEARNED = 0.05
_PATCH_PX = 4


def main(arguments: Sequence[str] | None = None) -> None:
    """Analyses the runs and prints the table."""
    parser = argparse.ArgumentParser(description="Is the inductive bias learned?")
    parser.add_argument("folder", type=Path, help="folder of the sweep data_size/sweep.py")
    parser.add_argument("--data_dir", type=Path, required=True, help="folder of cifar10")
    parser.add_argument("--output", type=Path, help="folder for measures.csv")
    parser.add_argument("--into", type=Path, help="page with the two markers for the table")
    args = parser.parse_args(arguments)
    try:
        if args.into is not None:
            check_markers(args.into, *_MARKERS)
        rows = measure_all(args.folder, args.data_dir)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    text = table(rows)
    print(text)
    if args.output is not None:
        args.output.mkdir(parents=True, exist_ok=True)
        rows.to_csv(args.output / "measures.csv", index=False)
        draw(rows, args.output / "bias")
    if args.into is not None:
        replace_between_markers(args.into, text + "\n", *_MARKERS)


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Draws two measures against the number of training images: means and all three seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    titles = {
        "distance": "attention distance minus uniform, pixels",
        "pixel shift": "error of equivariance, shift by one pixel",
    }
    for axes, (measure, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for family, colour in {"ViT": "C0", "hybrid": "C1", "ResNet": "C2"}.items():
            some = rows[(rows["measure"] == measure) & (rows["family"] == family)]
            some = some[some["images"] > 0].astype({"images": int, "value": float})
            if len(some):
                means = some.groupby("images")["value"].mean()
                axes.plot(means.index, means, "o-", color=colour, label=family)
                axes.plot(some["images"], some["value"], ".", color=colour, alpha=0.4)
        axes.set(xscale="log", xlabel="training images", title=title)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    for suffix in ("png", "svg"):
        figure.savefig(path.with_suffix(f".{suffix}"), dpi=150)


def measure_all(folder: Path, data_dir: Path) -> pd.DataFrame:
    """Analyses the finished final runs with chosen settings, and their models before training.

    Returns:
        One row for each run and measure: family, seed, images (0: not trained), measure, value.

    Raises:
        ConfigError: there are not enough such runs, or one cannot be analysed.
    """
    frame = run_frame(read_runs([folder]).runs)
    frame = frame[(frame["state"] == "finished") & (frame["stage"] == "final")]
    runs = [run for run in frame.index if run.labels.get("settings") == "chosen"]
    if len({run.train_examples for run in runs}) < 2:
        raise ConfigError(
            f"{folder} has finished final runs with chosen settings of fewer than two sizes",
            "the --workdir of the sweep data_size/sweep.py",
            "check the path, or let more jobs finish",
        )
    rows, untrained = [], set()
    for run in runs:
        rows += _measure(run, data_dir)
        if (run.model, run.seed) not in untrained:
            untrained.add((run.model, run.seed))
            rows += _measure(run, data_dir, untrained=True)
    return pd.DataFrame(rows)


def _measure(run: Run, data_dir: Path, *, untrained: bool = False) -> list[dict[str, object]]:
    """Returns the measures of a run, or of its model before training."""
    output = run.path / "report" / ("bias-untrained" if untrained else "bias")
    parts = ["equivariance"] if untrained else ["equivariance", "permutation"]
    parts += ["distance"] if run.family != "ResNet" else []
    for part in parts:
        if (output / f"{part}.csv").is_file():
            continue
        asked = [
            str(run.path), f"--output={output}", "--dataset=cifar10", "--split=test",
            f"--data_dir={data_dir}", f"--num_images={_IMAGES[part]}", f"--seed={run.seed}",
            *["--untrained"] * untrained,
        ]  # fmt: skip
        if part in _SCRIPTS:
            inputs.run(part, _SCRIPTS[part], arguments=asked)
        elif vit_jax(["analyze", *asked, f"--what={part}"]):
            raise ConfigError(
                f"{run.path} cannot be analysed", "a run with a checkpoint", "see the line above"
            )
    found = {part: pd.read_csv(output / f"{part}.csv") for part in parts}
    about = {
        "family": run.family,
        "seed": run.seed,
        "images": 0 if untrained else run.train_examples,
    }
    return [about | {"measure": k, "value": v} for k, v in summarise(found).items()]


def summarise(found: dict[str, pd.DataFrame]) -> dict[str, float]:
    """Returns one number for each measure of MEASURES, from analysis -> the table it wrote."""
    errors = found["equivariance"]
    maps = errors[~errors["layer"].str.startswith(("class token", "pre_logits"))]
    last = maps[maps["layer"] == maps["layer"].iloc[-1]]
    by_shift = last.set_index("shift_px")["error"]
    values = {"patch shift": float(by_shift[_PATCH_PX]), "pixel shift": float(by_shift[1])}
    interior = maps[maps["shift_px"] == 1]["interior_error"].dropna()
    if len(interior):
        values["interior"] = float(interior.iloc[-1])
    if "permutation" in found:  # The first row has the images as they are.
        table = found["permutation"]
        above = table["accuracy"] - table["chance"]
        if above[0] > _LEARNED:
            values["permutation"] = float(above[1] / above[0])
    if "distance" in found:
        values["distance"] = float(found["distance"]["minus_uniform_px"].mean())
        values["nearest head"] = float(found["distance"]["minus_uniform_px"].min())
    return values


def slope(images: Sequence[float], values: Sequence[float]) -> tuple[float, float, float, float]:
    """Returns the change of a measure for ten times as many images, its 95 % interval, and p.

    Args:
        images: number of training images of each run.
        values: the measure of each run.

    >>> slope([10, 100, 1000], [1.0, 2.0, 3.0])
    (1.0, 1.0, 1.0, 0.0)
    """
    found: Any = stats.linregress(np.log10(images), values)
    half = float(stats.t.ppf(0.975, len(values) - 2)) * found.stderr
    numbers = (found.slope, found.slope - half, found.slope + half, found.pvalue)
    value, low, high, p = (round(float(x), 12) for x in numbers)
    return value, low, high, p


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values of several tests, corrected by Holm's method.

    Source: Holm, 1979, doi:10.2307/4615733.

    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    order = np.argsort(p_values)
    scaled = np.array(p_values)[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return [round(float(p), 12) for p in corrected]


def table(rows: pd.DataFrame) -> str:
    """Returns each measure by number of images, and its slope, as Markdown."""
    sizes = sorted({*rows["images"]})
    header = ["measure", "model", *("untrained" if not size else f"{size:,}" for size in sizes)]
    header += ["for ten times the images", "p"]
    groups = _groups(rows)
    slopes = {}
    for at, group in groups:
        trained = group[group["images"] > 0]
        if trained["images"].nunique() > 1 and len(trained) > 3:
            slopes[at] = slope(list(trained["images"]), list(trained["value"]))
    corrected = dict(zip(slopes, holm([p for *_, p in slopes.values()]), strict=True))
    lines = []
    for at, group in groups:
        means = group.groupby("images")["value"].mean()
        line = [*at, *(f"{means[size]:.2f}" if size in means else "–" for size in sizes), "–", "–"]
        if at in slopes:
            value, low, high, _ = slopes[at]
            line[-2:] = [f"{value:+.2f} [{low:+.2f}, {high:+.2f}]", f"{corrected[at]:.1g}"]
        lines.append(line)
    return markdown_table(header, lines)


def _groups(rows: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    order = {name: i for i, name in enumerate(MEASURES)}
    groups = cast(Any, rows.groupby(["measure", "family"]))
    return sorted(groups, key=lambda item: (order[item[0][0]], item[0][1:]))


if __name__ == "__main__":
    main()
