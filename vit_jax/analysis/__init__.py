"""Analyses of a trained model: what it has learned, and what its predictions rely on.

Every analysis is a function that takes a model (from `load_pretrained` or `create_model`) and
returns arrays. `python -m vit_jax analyze` writes their pictures and tables.
"""

from vit_jax.analysis.distance import (
    AttentionDistance,
    attention_distance,
    mean_distances,
    patch_distances,
)
from vit_jax.analysis.equivariance import Equivariance, equivariance, shift_errors
from vit_jax.analysis.filters import EmbeddingFilters, embedding_filters, principal_components
from vit_jax.analysis.permutation import Permutation, patch_permutation, permute_patches
from vit_jax.analysis.position import PositionSimilarity, cosine_similarity, position_similarity
from vit_jax.analysis.receptive_field import ReceptiveField, gradient_maps, receptive_field
from vit_jax.analysis.rollout import Rollout, attention_rollout, rollout

__all__ = [
    "AttentionDistance",
    "EmbeddingFilters",
    "Equivariance",
    "Permutation",
    "PositionSimilarity",
    "ReceptiveField",
    "Rollout",
    "attention_distance",
    "attention_rollout",
    "cosine_similarity",
    "embedding_filters",
    "equivariance",
    "gradient_maps",
    "mean_distances",
    "patch_distances",
    "patch_permutation",
    "permute_patches",
    "position_similarity",
    "principal_components",
    "receptive_field",
    "rollout",
    "shift_errors",
]
