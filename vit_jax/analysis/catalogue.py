"""The analyses of the `analyze` command.

To add one, write a module with the analysis and a function that turns its result into an `Output`,
and add a row to ANALYSES.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from vit_jax.analysis.batches import check_attention
from vit_jax.analysis.distance import attention_distance, distance_output
from vit_jax.analysis.filters import embedding_filters, filters_output
from vit_jax.analysis.images import Images
from vit_jax.analysis.output import Output
from vit_jax.analysis.position import position_similarity, positions_output
from vit_jax.analysis.rollout import attention_rollout, rollout_output
from vit_jax.models.family import ImageModel

# Option that sets an analysis's number of images; None: it needs no images.
Count = Literal["num_images", "num_pictures"]


def _any_model(model: ImageModel) -> None:
    del model


@dataclasses.dataclass(frozen=True)
class Analysis:
    """One analysis."""

    name: str  # value of `--what`
    # (model, images, or None if it needs none, images at a time) -> output.
    run: Callable[[ImageModel, Images | None, int], Output]
    # Raises ModelError if the analysis does not apply to the model.
    check: Callable[[ImageModel], Any] = _any_model
    count: Count | None = None


def _filters(model: ImageModel, images: Images | None, batch_size: int) -> Output:
    del images, batch_size
    return filters_output(embedding_filters(model))


def _positions(model: ImageModel, images: Images | None, batch_size: int) -> Output:
    del images, batch_size
    return positions_output(position_similarity(model))


def _distance(model: ImageModel, images: Images | None, batch_size: int) -> Output:
    assert images is not None
    return distance_output(attention_distance(model, images.normalized, batch_size=batch_size))


def _rollout(model: ImageModel, images: Images | None, batch_size: int) -> Output:
    assert images is not None
    found = attention_rollout(model, images.normalized, batch_size=batch_size)
    return rollout_output(found, images.pixels)


ANALYSES = (
    Analysis("filters", _filters),
    Analysis("positions", _positions, check=position_similarity),
    Analysis(
        "distance",
        _distance,
        check=lambda model: check_attention(model, "distance"),
        count="num_images",
    ),
    Analysis(
        "rollout",
        _rollout,
        check=lambda model: check_attention(model, "rollout"),
        count="num_pictures",
    ),
)
