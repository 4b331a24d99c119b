"""How alike the position embeddings of all patches are (Figure 7, centre, and Figure 10)."""

import dataclasses
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float

from vit_jax.analysis.batches import with_attention
from vit_jax.errors import ModelError
from vit_jax.models.position import PositionTable, RelativeBias
from vit_jax.models.resnet import ResNet
from vit_jax.models.vit import ViT

KINDS = {
    "Learned1d": "learned_1d", "Learned2d": "learned_2d", "Sincos2d": "sincos_2d (not learned)",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class PositionSimilarity:
    """Cosine similarities of position embeddings.

    Attributes:
        similarity: f32[T, R, C, R, C] in [-1, 1], for a grid of R x C patches: at [t, i, j, k, l]
            that of patch (i, j) to patch (k, l) in table t. T is 1, or the number of layers where
            every layer has a table of its own. The class token's embedding is left out.
        kind: "learned_1d", "learned_2d" or "sincos_2d (not learned)".
    """

    similarity: Float[np.ndarray, "T R C R C"]
    kind: str


def cosine_similarity(
    embeddings: Float[np.ndarray, "P D"], grid: tuple[int, int]
) -> Float[np.ndarray, "R C R C"]:
    """Returns the cosine of the angle between each two vectors; 0 where one of them is 0.

    Args:
        embeddings: a vector a patch, in raster order.
        grid: patches down and across.
    """
    vectors = embeddings.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return np.clip(unit @ unit.T, -1, 1).astype(np.float32).reshape(*grid, *grid)


def position_similarity(model: ViT | ResNet) -> PositionSimilarity:
    """Returns the cosine similarities of a model's position embeddings.

    Args:
        model: ViT or hybrid whose tokens get a table added: learned (1-D or 2-D) or fixed (sincos).

    Raises:
        ModelError: a ResNet, or a model without such a table; says what it has instead.

    Source: arXiv:2010.11929, section 4.5 and D.4.
    """
    vit = with_attention(model, "positions")
    tables = _tables(vit)
    if not tables:
        raise ModelError(
            f"positions of a model with {_instead(vit)}",
            "embeddings that are added to the tokens (learned_1d, learned_2d, sincos_2d)",
            "leave positions out",
        )
    patches = vit.grid[0] * vit.grid[1]
    found = [
        cosine_similarity(np.asarray(table.rows())[0, -patches:], vit.grid) for table in tables
    ]
    return PositionSimilarity(np.stack(found), KINDS[type(tables[0]).__name__])


def _tables(model: ViT) -> list[PositionTable]:
    """Returns the tables that are added to tokens, one or one a layer; those of sincos are one."""
    if model.position_embedding is not None:
        return [model.position_embedding]
    stacked = _blocks(model).position_embedding
    if stacked is None:
        return []
    graphdef, state = nnx.split(stacked)
    if not jax.tree.leaves(state):
        return [stacked]
    return [
        nnx.merge(graphdef, jax.tree.map(lambda leaf, layer=layer: leaf[layer], state))
        for layer in range(model.encoder.depth)
    ]


def _instead(model: ViT) -> str:
    if model.rope_head_dim is not None:
        return "rope_2d, which turns queries and keys and adds nothing to the tokens"
    if isinstance(_blocks(model).attention.relative, RelativeBias):
        return "relative, a bias of attention by offset that adds nothing to the tokens"
    return "position_embedding none"


def _blocks(model: ViT) -> Any:
    return model.encoder.blocks
