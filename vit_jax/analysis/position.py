"""Similarity of position embeddings (arXiv:2010.11929, Figure 7, centre, and Figure 10)."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float
from matplotlib.figure import Figure

from vit_jax.analysis.batches import submodules
from vit_jax.analysis.filters import mosaic
from vit_jax.analysis.output import Output, Row, arrays_of, digits
from vit_jax.errors import ModelError
from vit_jax.models.embedding import PositionTable
from vit_jax.models.family import ImageModel
from vit_jax.models.position import RelativeBias

_KINDS = {
    "Learned1d": "learned_1d",
    "Learned2d": "learned_2d",
    "Sincos2d": "sincos_2d (not learned)",
}


@dataclasses.dataclass(frozen=True)
class PositionSimilarity:
    """Cosine similarities of position embeddings.

    Attributes:
        similarity: f32[T, R, C, R, C] in [-1, 1], for a grid of R x C patches: element
            [t, i, j, k, l] compares patches (i, j) and (k, l) in table t. T is 1, or the number of
            layers if every layer has its own table. The class token is not included.
        kind: "learned_1d", "learned_2d" or "sincos_2d (not learned)".
    """

    similarity: Float[np.ndarray, "T R C R C"]
    kind: str


def cosine_similarity(
    embeddings: Float[np.ndarray, "P D"], grid: tuple[int, int]
) -> Float[np.ndarray, "R C R C"]:
    """Returns the cosine similarity of each pair of vectors; 0 if one of them is 0.

    There is one vector per patch, in raster order.
    """
    vectors = embeddings.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return np.clip(unit @ unit.T, -1, 1).astype(np.float32).reshape(*grid, *grid)


def position_similarity(model: ImageModel) -> PositionSimilarity:
    """Returns the cosine similarities of a model's position embeddings.

    Args:
        model: a model that adds position embeddings to its tokens: learned (1-D or 2-D) or fixed
            (sincos).

    Raises:
        ModelError: the model adds no position embeddings. The message names what it uses instead.

    Source: arXiv:2010.11929, section 4.5 and D.4.
    """
    found = submodules(model, PositionTable)
    if not found:
        raise ModelError(
            f"positions of {_other_position_information(model)}",
            "embeddings that are added to the tokens (learned_1d, learned_2d, sincos_2d)",
            "leave positions out",
        )
    tables = _by_layer(found[0])
    patches = math.prod(model.grid)
    similarities = [
        cosine_similarity(np.asarray(table.rows())[0, -patches:], model.grid) for table in tables
    ]
    return PositionSimilarity(np.stack(similarities), _KINDS[type(found[0]).__name__])


def _by_layer(table: PositionTable) -> list[PositionTable]:
    """Returns the tables of all layers if they are stacked, else the table itself.

    Stacked tables have a leading layer axis. Fixed tables have no parameters and are the same in
    every layer.
    """
    graphdef, state = nnx.split(table)
    leaves = jax.tree.leaves(state)
    unstacked = {"Learned1d": 3, "Learned2d": 2}.get(type(table).__name__)
    if not leaves or leaves[0].ndim == unstacked:
        return [table]
    return [
        nnx.merge(graphdef, jax.tree.map(lambda leaf, layer=layer: leaf[layer], state))
        for layer in range(len(leaves[0]))
    ]


def _other_position_information(model: ImageModel) -> str:
    if model.num_heads is None:
        return f"a {type(model).__name__}, which has no position embedding"
    if getattr(model, "has_rope", False):
        return "a model with position_embedding=rope_2d, which rotates queries and keys instead"
    if submodules(model, RelativeBias):
        return "a model with position_embedding=relative, which biases the attention instead"
    return "a model with position_embedding=none"


def positions_output(found: PositionSimilarity) -> Output:
    """Returns the picture, table and summary of `position_similarity`."""
    tables, rows, columns = found.similarity.shape[:3]
    neighbours = [
        found.similarity[:, y, x, v, u]
        for y, x in np.ndindex(rows, columns)
        for v, u in ((y, x + 1), (y + 1, x))
        if v < rows and u < columns
    ]
    near = float(np.mean(neighbours)) if neighbours else float("nan")
    far = found.similarity[:, 0, 0, -1, -1].mean()
    kind = f"{found.kind}, one table in each of {tables} layers" if tables > 1 else found.kind
    return Output(
        draw_positions(found),
        arrays_of(found),
        _mean_by_offset(found),
        f"{kind}, {rows} x {columns} patches; mean cosine similarity of neighbours"
        f" {near:.2f}, of opposite corners {far:.2f}",
    )


def _mean_by_offset(found: PositionSimilarity) -> list[Row]:
    """Returns the mean similarity for each offset between patches. The npz file has all pairs."""
    tables, height, width = found.similarity.shape[:3]
    y, x = np.indices((height, width)).reshape(2, -1)
    down, across = y[None] - y[:, None], x[None] - x[:, None]
    rows = []
    for table in range(tables):
        pairs = found.similarity[table].reshape(height * width, -1).astype(np.float64)
        for dy in range(height):
            # (dy, dx) and (-dy, -dx) describe the same pairs.
            for dx in range(-width + 1 if dy else 0, width):
                chosen = pairs[(down == dy) & (across == dx)]
                rows.append(
                    {
                        "table": table + 1,
                        "rows_apart": dy,
                        "columns_apart": dx,
                        "similarity": digits(chosen.mean()),
                        "pairs": chosen.size,
                    }
                )
    return rows


def draw_positions(found: PositionSimilarity) -> Figure:
    """Draws a grid of grids per table: grid (i, j) compares patch (i, j) with all patches."""
    tables = found.similarity
    columns = min(len(tables), 4)
    rows = math.ceil(len(tables) / columns)
    figure = Figure(figsize=(0.8 + 3.4 * columns, 3.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    shown: Any = None
    for number, axes in enumerate(panels):
        if number >= len(tables):
            axes.set_axis_off()
            continue
        height, width = tables.shape[1:3]
        gap = max(1, min(height, width) // 8)
        # NaN is not drawn, so the gaps show the background.
        picture = mosaic(tables[number], gap, float("nan"))
        shown = axes.imshow(picture, vmin=-1, vmax=1, cmap="viridis", interpolation="nearest")
        _set_ticks(axes.set_xticks, width, gap)
        _set_ticks(axes.set_yticks, height, gap)
        axes.set(xlabel="input patch column", ylabel="input patch row")
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
        if len(tables) > 1:
            axes.set_title(f"layer {number + 1}", fontsize=9)
    bar = figure.colorbar(shown, ax=list(panels), shrink=0.85, ticks=(-1, 0, 1))
    bar.set_label("cosine similarity")
    figure.suptitle(f"Position embedding similarity ({found.kind})", fontsize=10)
    return figure


def _set_ticks(setter: Any, count: int, gap: int) -> None:
    """Labels the tiles along an axis from 1, at most 14 of them."""
    step = math.ceil(count / 14)
    numbers = np.arange(0, count, step)
    setter(numbers * (count + gap) + (count - 1) / 2, [str(n + 1) for n in numbers])
