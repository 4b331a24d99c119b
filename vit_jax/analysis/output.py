"""The output of an analysis: a picture, a CSV table, an npz file, and lines to print."""

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from vit_jax.storage.files import write_through

Row = dict[str, Any]

# Format of a picture -> metadata without the time, so that equal arrays give equal files.
_FORMATS = {"png": {}, "svg": {"Date": None}}
BLUE, ORANGE, GRAY = "#0072b2", "#d55e00", "#707070"


@dataclasses.dataclass(frozen=True)
class Output:
    """The files and printed text of an analysis."""

    figure: Figure
    arrays: Mapping[str, Any]  # for the npz file
    rows: Sequence[Row]  # of the CSV file
    summary: str  # one line to print after the name of the analysis
    table: Table | None = None  # to print below the summary


def write_output(name: str, output: Output, folder: Path) -> list[Path]:
    """Writes FOLDER/NAME.csv, .npz and pictures; returns the paths, pictures first."""
    paths = [folder / f"{name}.{kind}" for kind in _FORMATS]
    with matplotlib.rc_context({"svg.hashsalt": "vit_jax", "svg.fonttype": "none"}):
        for path, metadata in zip(paths, _FORMATS.values(), strict=True):
            with write_through(path) as picture:
                output.figure.savefig(picture, dpi=160, metadata=metadata)
    table = folder / f"{name}.csv"
    with write_through(table) as rows, rows.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(output.rows[0]))
        writer.writeheader()
        writer.writerows(output.rows)
    arrays = folder / f"{name}.npz"
    contents: dict[str, Any] = {key: np.asarray(array) for key, array in output.arrays.items()}
    with write_through(arrays) as archive:
        np.savez_compressed(archive, **contents)
    return [*paths, table, arrays]


def arrays_of(result: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass by name."""
    return {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}


def digits(value: Any) -> str:
    """Returns a number with six significant digits, for a CSV file."""
    return f"{float(value):.6g}"


def style_axes(axes: Axes) -> None:
    """Adds a light grid and removes the upper and right border."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
