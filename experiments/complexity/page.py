"""Puts the results of `measure` into the page: a table and a picture.

    python -m experiments.complexity.page

Reads results/layers.csv and results/layers-growth.csv, draws results/time.png and time.svg, and
replaces what is between the two markers of README.md.
"""

from pathlib import Path

import matplotlib.ticker
import pandas as pd

from vit_jax.commands.report import check_markers, replace_between_markers
from vit_jax.report.drawing import add_legend, new_figure, plot_style, save
from vit_jax.report.labels import markdown_table
from vit_jax.report.style import Palette

HERE = Path(__file__).parent
_FAMILIES = {
    "self-attention": "ViT",
    "convolution, 3x3 on the grid": "ResNet",
    "convolution, 3 in sequence": "ResNet",
}
TIMES, GROWTH = (HERE / "results" / name for name in ("layers.csv", "layers-growth.csv"))


def growth_table(growth: pd.DataFrame) -> str:
    """Returns the exponents of time and count as Markdown."""
    rows = []
    for (mode, layer), fits in growth.groupby(["mode", "layer"], sort=False):
        cells = [str(mode), str(layer)]
        for size in ("tokens", "width"):
            fit = fits.set_index("size").loc[size]
            low, high = fit["time_exponent_low"], fit["time_exponent_high"]
            cells += [
                f"{fit['time_exponent']:.2f} [{low:.2f}, {high:.2f}]",
                f"{fit['counted_exponent']:.2f}",
            ]
        rows.append(cells)
    header = ["pass", "layer", "time in N", "counted", "time in D", "counted"]
    return markdown_table(header, rows)


def draw(times: pd.DataFrame) -> None:
    """Draws the time against N at the largest width, beside lines that grow like the MACs."""
    widest = times[times["width"] == times["width"].max()]
    palette, handles = Palette(_FAMILIES), {}
    palette.add("layer", widest["layer"].unique())
    with plot_style():
        figure, axes = new_figure(1, 2, width=4.6, height=3.5)
        for panel, (mode, rows) in zip(axes.flat, widest.groupby("mode"), strict=True):
            for layer, line in rows.groupby("layer", sort=False):
                style = palette.style("layer", str(layer))
                errors = (line["ms"] - line["ms_low"], line["ms_high"] - line["ms"])
                (handles[layer], *_) = panel.errorbar(
                    line["tokens"], line["ms"], yerr=errors, markersize=5, **style
                )
                counted = line["macs"] / line["macs"].iloc[-1] * line["ms"].iloc[-1]
                panel.plot(line["tokens"], counted, color=style["color"], linestyle=":")
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_title(f"{mode}, D = {rows['width'].iloc[0]}")
            panel.set_xlabel("Tokens N")
            panel.set_xticks(line["tokens"])
            panel.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
            panel.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:g}"))
        axes.flat[0].set_ylabel("Time of one layer, ms")
        add_legend(figure, handles)
        save(figure, HERE / "results" / "time")


def table() -> str:
    """Returns the part of the page between the markers."""
    growth, rounds = pd.read_csv(GROWTH), pd.read_csv(TIMES)["rounds"].max()
    n, d = (growth[growth["size"] == size].iloc[0] for size in ("tokens", "width"))
    return (
        f"{growth_table(growth)}\n\nTime ~ N^p from N = {n['from']:,} to {n['to']:,} at"
        f" D = {d['to']:,}; time ~ D^p from D = {d['from']:,} to {d['to']:,} at N = {d['at']:,}."
        f" Medians of n = {rounds} rounds [95 % interval of the median]."
        " Counted: the same fit to the multiply-accumulates.\n"
    )


if __name__ == "__main__":
    check_markers(HERE / "README.md")
    draw(pd.read_csv(TIMES))
    replace_between_markers(HERE / "README.md", table())
