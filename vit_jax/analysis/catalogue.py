"""The analyses of the `analyze` command.

To add one, write a module with the analysis and a function that turns its result into an `Output`,
and add a row to ANALYSES. Tasks can add their own pictures, see `vit_jax.tasks`.
"""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from vit_jax.analysis.batches import check_attention
from vit_jax.analysis.distance import attention_distance, distance_output
from vit_jax.analysis.equivariance import cells_of, equivariance, equivariance_output
from vit_jax.analysis.filters import embedding_filters, filters_output
from vit_jax.analysis.images import Images
from vit_jax.analysis.output import Output
from vit_jax.analysis.permutation import (
    check_permutation,
    num_classes,
    patch_permutation,
    permutation_output,
)
from vit_jax.analysis.position import position_similarity, positions_output
from vit_jax.analysis.receptive_field import receptive_field, receptive_field_output
from vit_jax.analysis.rollout import attention_rollout, rollout_output
from vit_jax.models.family import ImageModel

log = logging.getLogger(__name__)

# Option that sets an analysis's number of images; None: it needs no images.
Count = Literal["num_images", "num_pictures", "num_gradients"]


@dataclasses.dataclass(frozen=True)
class Request:
    """The input of an analysis.

    Attributes:
        model: the model.
        name: name of the model.
        images: images for the analysis; None if it needs none.
        batch_size: number of images at a time.
        seed: seed of random choices.
    """

    model: ImageModel
    name: str
    images: Images | None
    batch_size: int
    seed: int

    def arguments(self) -> dict[str, Any]:
        """Returns the keyword arguments of the analyses: images and batch size."""
        assert self.images is not None
        return {"images": self.images.normalized, "batch_size": self.batch_size}


def _any_model(model: ImageModel) -> None:
    del model


@dataclasses.dataclass(frozen=True)
class Analysis:
    """One analysis.

    Attributes:
        name: value of `--what`.
        run: request -> output.
        check: model -> None; raises ModelError if the analysis does not apply to the model.
        count: option that sets its number of images.
    """

    name: str
    run: Callable[[Request], Output]
    check: Callable[[ImageModel], Any] = _any_model
    count: Count | None = None


def _filters(request: Request) -> Output:
    return filters_output(embedding_filters(request.model))


def _positions(request: Request) -> Output:
    return positions_output(position_similarity(request.model))


def _distance(request: Request) -> Output:
    return distance_output(attention_distance(request.model, **request.arguments()))


def _rollout(request: Request) -> Output:
    assert request.images is not None
    found = attention_rollout(request.model, **request.arguments())
    return rollout_output(found, request.images.pixels)


def _receptive_field(request: Request) -> Output:
    found = receptive_field(request.model, **request.arguments(), seed=request.seed)
    return receptive_field_output(found, request.name)


def _equivariance(request: Request) -> Output:
    return equivariance_output(equivariance(request.model, **request.arguments()), request.name)


def _permutation(request: Request) -> Output:
    images = request.images
    assert images is not None
    found = patch_permutation(
        request.model,
        **request.arguments(),
        labels=_labels(request.model, images),
        seed=request.seed,
    )
    return permutation_output(found, images.pixels)


def _labels(model: ImageModel, images: Images) -> Int[np.ndarray, " M"] | None:
    """Returns the labels of images if they are classes of the model."""
    classes = num_classes(model)
    if images.labels is None or images.num_classes == classes:
        return images.labels
    log.warning(
        "permutation without labels: %s has %d classes, the model has %d",
        images.origin,
        images.num_classes,
        classes,
    )
    return None


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
    Analysis("receptive_field", _receptive_field, count="num_gradients"),
    Analysis("equivariance", _equivariance, check=cells_of, count="num_images"),
    Analysis("permutation", _permutation, check=check_permutation, count="num_images"),
)
