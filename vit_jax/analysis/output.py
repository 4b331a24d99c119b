"""Writing analyses: pictures, tables as CSV, arrays as npz; the same bytes for the same arrays."""

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from vit_jax.analysis.distance import AttentionDistance
from vit_jax.analysis.filters import EmbeddingFilters
from vit_jax.analysis.position import PositionSimilarity
from vit_jax.analysis.receptive_field import ReceptiveField
from vit_jax.analysis.rollout import Rollout

Result = EmbeddingFilters | PositionSimilarity | AttentionDistance | Rollout | ReceptiveField
Row = dict[str, Any]

# Format of pictures -> metadata without the time, which some would state.
FORMATS = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def write_result(
    name: str, result: Result, figure: Figure, folder: Path, formats: Sequence[str]
) -> list[Path]:
    """Writes an analysis, see `write_files`."""
    arrays = {f.name: np.asarray(getattr(result, f.name)) for f in dataclasses.fields(result)}
    return write_files(name, figure, rows_of(result), arrays, folder, formats)


def write_files(
    name: str,
    figure: Figure,
    rows: Sequence[Row],
    arrays: dict[str, np.ndarray],
    folder: Path,
    formats: Sequence[str],
) -> list[Path]:
    """Writes FOLDER/NAME.csv, NAME.npz and the figure.

    Args:
        name: of the analysis.
        figure: its picture.
        rows: of the table, at least one.
        arrays: by name.
        folder: exists.
        formats: of the picture, from FORMATS.

    Returns:
        The paths, pictures first.
    """
    paths = [folder / f"{name}.{kind}" for kind in formats]
    with matplotlib.rc_context({"svg.hashsalt": "vit_jax", "svg.fonttype": "none"}):
        for kind, path in zip(formats, paths, strict=True):
            figure.savefig(path, dpi=160, metadata=FORMATS[kind])
    table = folder / f"{name}.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    archive = folder / f"{name}.npz"
    np.savez_compressed(archive, **arrays)  # pyright: ignore[reportArgumentType]
    return [*paths, table, archive]


def rows_of(result: Result) -> list[Row]:
    """Returns the numbers of an analysis as the rows of a table; layers and heads from 1."""
    if isinstance(result, EmbeddingFilters):
        return [
            {"component": k + 1, "variance_share": _digits(share)}
            for k, share in enumerate(result.variance_share)
        ]
    if isinstance(result, PositionSimilarity):
        return _by_offset(result)
    if isinstance(result, AttentionDistance):
        mean, error, share = result.mean, result.standard_error, result.prefix_share
        return [
            {
                "layer": layer + 1,
                "head": head + 1,
                "distance_px": _digits(mean[layer, head]),
                "standard_error_px": _digits(error[layer, head]),
                "prefix_share": _digits(share[layer, head]),
            }
            for layer, head in np.ndindex(mean.shape)
        ]
    if isinstance(result, Rollout):
        return [
            {"image": image, "row": row, "column": column, "share": _digits(share)}
            for (image, row, column), share in np.ndenumerate(result.maps)
        ]
    return [
        {
            "layer": name,
            "depth": int(result.depth[k]),
            "effective_side_px": _digits(result.side[k]),
            "convolutional_side_px": int(result.convolutional_side[k]),
            "mass_beyond": _digits(result.beyond[k]),
        }
        for k, name in enumerate(result.layers)
    ]


def _by_offset(found: PositionSimilarity) -> list[Row]:
    """Returns the mean similarity of the patches that lie (rows, columns) apart; npz has all."""
    tables, height, width = found.similarity.shape[:3]
    y, x = np.indices((height, width)).reshape(2, -1)
    down, across = y[None] - y[:, None], x[None] - x[:, None]
    rows = []
    for table in range(tables):
        pairs = found.similarity[table].reshape(height * width, -1).astype(np.float64)
        for dy in range(height):
            # (dy, dx) and (-dy, -dx) are the same pairs.
            for dx in range(-width + 1 if dy else 0, width):
                chosen = pairs[(down == dy) & (across == dx)]
                rows.append(
                    {
                        "table": table + 1,
                        "rows_apart": dy,
                        "columns_apart": dx,
                        "similarity": _digits(chosen.mean()),
                        "pairs": chosen.size,
                    }
                )
    return rows


def _digits(value: Any) -> str:
    return f"{float(value):.6g}"
