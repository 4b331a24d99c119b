"""Extracts the features of all examples of a dataset with a frozen model, on all devices."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Int

from vit_jax.config.mesh import MeshConfig
from vit_jax.data.device import Batch, to_unit_range
from vit_jax.errors import WeightsError
from vit_jax.evaluation.loop import Totals
from vit_jax.interop.resize import Target, fit_parameter
from vit_jax.models.activation_sharding import with_mesh
from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import build_model
from vit_jax.named_tree import leaf_names, named_leaves
from vit_jax.parallel.mesh import platform_of
from vit_jax.parallel.processes import is_first_host
from vit_jax.parallel.sharding import parameter_shardings, shard_arrays, sharding_rules

Kind = Literal["pre_logits", "pooled"]


@dataclasses.dataclass(frozen=True)
class Features:
    """The features of a dataset, in the order of its examples."""

    values: Float[np.ndarray, "N D"]  # f32; N is 0 on all hosts but the first
    labels: Int[np.ndarray, " N"]


@dataclasses.dataclass(frozen=True)
class FeatureExtractor:
    """A model without the last linear layer of its head, compiled for one image size."""

    image_size: tuple[int, int]  # (height, width)
    # (params, batch) -> features f32[B, D], label and mask, replicated on all devices.
    step: Callable[[Any, Batch], dict[str, jax.Array]]
    abstract: Any  # shapes of the parameters
    table_grid: tuple[int, int] | None  # of its position table; None: the model has no patches


def build_feature_extractor(
    options: ModelConfig, image_size: tuple[int, int], kind: Kind, mesh: Mesh
) -> FeatureExtractor:
    """Builds a model without its last linear layer and, for "pooled", without its tanh layer."""
    if kind == "pooled":
        options = options.replace(representation_size=None)
    platform = platform_of(mesh)
    model = nnx.eval_shape(
        lambda: build_model(
            options, num_classes=0, image_size=image_size, key=jax.random.key(0), platform=platform
        )
    )
    graphdef, state = nnx.split(model)

    def step_fn(params: Any, batch: Batch) -> dict[str, jax.Array]:
        features = nnx.merge(graphdef, params)(to_unit_range(batch["image"]))
        assert isinstance(features, jax.Array)
        return {"features": features, "label": batch["label"], "mask": batch["mask"]}

    replicated = NamedSharding(mesh, PartitionSpec())
    step = jax.jit(with_mesh(step_fn, mesh), out_shardings=replicated)
    grid = getattr(model, "table_grid", None)
    return FeatureExtractor(image_size, step, nnx.to_pure_dict(state), grid)


def resample_params(
    params: Any, here: FeatureExtractor, there: FeatureExtractor, mesh: Mesh
) -> Any:
    """Returns the parameters of a feature extractor, resampled to its image size.

    `params` are those of the whole model at the image size of `here`; `there` will use the result.
    """
    named = named_leaves(params)
    names = leaf_names(there.abstract)
    if here.image_size != there.image_size:
        shapes = {name: leaf.shape for name, leaf in named_leaves(there.abstract).items()}
        target = Target(
            shapes,
            old_grid=here.table_grid,
            new_grid=there.table_grid,
            image_size=there.image_size,
            method="zoom",
        )
        shardings = named_leaves(parameter_shardings(there.abstract, mesh))
        for name in names:
            if "position_embedding" in name or named[name].shape != shapes[name]:
                whole = np.asarray(_replicated(named[name], mesh))
                named[name] = shard_arrays(fit_parameter(name, whole, target), shardings[name])
    leaves = [named[name] for name in names]
    return jax.tree.unflatten(jax.tree.structure(there.abstract), leaves)


def shard_params(params: Any, config: MeshConfig, mesh: Mesh) -> Any:
    """Shards parameters over the devices as in training. Every host passes the whole arrays."""
    shardings = parameter_shardings(params, mesh, sharding_rules(config, params, mesh))
    return shard_arrays(jax.tree.map(np.asarray, params), shardings)


def _replicated(array: jax.Array, mesh: Mesh) -> jax.Array:
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))(array)


class FeatureTotals(Totals):
    """Collects the features of all `count` examples of a source in order, on the first host."""

    def __init__(self, count: int):
        self._count = count if is_first_host() else 0
        self._values: np.ndarray | None = None
        self._labels = np.zeros(self._count, np.int32)
        self._filled = 0

    def add(self, outputs: Mapping[str, Any]) -> None:
        rows = outputs["features"][outputs["mask"]]
        if self._values is None:
            self._values = np.empty((self._count, rows.shape[1]), np.float32)
        if self._count:
            end = self._filled + len(rows)
            self._values[self._filled : end] = rows
            self._labels[self._filled : end] = outputs["label"][outputs["mask"]]
            self._filled = end

    def metrics(self) -> dict[str, float]:
        return {}

    def features(self) -> Features:
        """Returns the features of the examples that were not skipped."""
        assert self._values is not None  # A source has at least one example, so there is a batch.
        values = self._values[: self._filled]
        if not np.isfinite(values).all():
            raise WeightsError(
                "features that are not finite numbers",
                "activations that do not overflow",
                "use model.dtype=float32, or other weights",
            )
        return Features(values, self._labels[: self._filled])
