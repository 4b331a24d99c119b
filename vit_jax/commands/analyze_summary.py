"""What `analyze` prints of its results."""

import numpy as np
from rich.console import Console
from rich.table import Table

from vit_jax.analysis.distance import AttentionDistance
from vit_jax.analysis.filters import EmbeddingFilters
from vit_jax.analysis.output import Result
from vit_jax.analysis.position import PositionSimilarity
from vit_jax.analysis.receptive_field import ReceptiveField
from vit_jax.analysis.rollout import Rollout
from vit_jax.tables import plain_table


def print_summary(result: Result) -> None:
    """Prints a few lines or a table of an analysis."""
    console = Console(highlight=False)
    if isinstance(result, EmbeddingFilters):
        share = result.variance_share
        console.print(
            f"filters: {result.filters} of {'x'.join(map(str, result.components.shape[1:]))}"
            f" ({result.layer}); the first {len(share)} components hold {share.sum():.1%} of their"
            f" variance, the first {share[0]:.1%}",
            soft_wrap=True,
        )
    elif isinstance(result, PositionSimilarity):
        console.print(_positions(result), soft_wrap=True)
    elif isinstance(result, AttentionDistance):
        console.print(
            f"distance: mean attention distance in pixels, {len(result.per_image)} images;"
            f" attention to all patches alike: {result.uniform:.1f}",
            soft_wrap=True,
        )
        console.print(_distance(result))
    elif isinstance(result, Rollout):
        peaks = result.maps.max((1, 2)) * result.maps[0].size
        console.print(
            f"rollout: what the {result.view} sees, images: {len(result.maps)}; the patch that"
            f" counts most counts {peaks.min():.1f} to {peaks.max():.1f} times an equal share",
            soft_wrap=True,
        )
    else:
        console.print(
            "receptive_field: side in pixels of the square that holds 95% of the gradient mass,"
            " beside what a CNN of that depth can see at all",
            soft_wrap=True,
        )
        console.print(_receptive_field(result))


def _positions(result: PositionSimilarity) -> str:
    tables, rows, columns = result.similarity.shape[:3]
    near = [
        result.similarity[:, y, x, v, u]
        for y, x in np.ndindex(rows, columns)
        for v, u in ((y, x + 1), (y + 1, x))
        if v < rows and u < columns
    ]
    far = result.similarity[:, 0, 0, -1, -1].mean()
    beside = float(np.mean(near)) if near else float("nan")
    kind = f"{result.kind}, a table in each of {tables} layers" if tables > 1 else result.kind
    return (
        f"positions: {kind}, {rows} x {columns} patches; mean cosine of neighbours"
        f" {beside:.2f}, of opposite corners {far:.2f}"
    )


def _distance(result: AttentionDistance) -> Table:
    prefix = bool(result.prefix_share.any())
    share = ("on class token, registers",) if prefix else ()
    table = plain_table("layer", right=("nearest head", "mean", "farthest head", *share))
    for layer, (heads, shares) in enumerate(zip(result.mean, result.prefix_share, strict=True)):
        figures = [f"{value:.1f}" for value in (heads.min(), heads.mean(), heads.max())]
        table.add_row(str(layer + 1), *figures, *([f"{shares.mean():.1%}"] if prefix else []))
    return table


def _receptive_field(result: ReceptiveField) -> Table:
    table = plain_table(
        "layer", right=("depth", "effective", "CNN of that depth", "mass beyond it")
    )
    for k, name in enumerate(result.layers):
        table.add_row(
            name, str(result.depth[k]), f"{result.side[k]:.0f}",
            str(result.convolutional_side[k]), f"{result.beyond[k]:.1%}",
        )  # fmt: skip
    return table
