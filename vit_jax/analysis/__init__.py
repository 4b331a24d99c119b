"""Analyses of a trained model: what its filters, positions and heads have learned.

Every analysis is a function that takes a model (from `load_pretrained` or `create_model`) and
returns arrays. `python -m vit_jax analyze` writes their pictures and tables.
"""

from vit_jax.analysis.distance import (
    AttentionDistance,
    attention_distance,
    mean_distances,
    patch_distances,
)
from vit_jax.analysis.filters import EmbeddingFilters, embedding_filters, principal_components
from vit_jax.analysis.position import PositionSimilarity, cosine_similarity, position_similarity
from vit_jax.analysis.rollout import Rollout, attention_rollout, rollout

__all__ = [
    "AttentionDistance",
    "EmbeddingFilters",
    "PositionSimilarity",
    "Rollout",
    "attention_distance",
    "attention_rollout",
    "cosine_similarity",
    "embedding_filters",
    "mean_distances",
    "patch_distances",
    "position_similarity",
    "principal_components",
    "rollout",
]
