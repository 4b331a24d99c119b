import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_models import random_images, run
from weight_files import random_weights

from vit_jax.config.mesh import MeshConfig
from vit_jax.errors import WeightsError
from vit_jax.evaluation.features import (
    FeatureTotals,
    build_feature_extractor,
    resample_params,
    shard_params,
)
from vit_jax.evaluation.loop import evaluate
from vit_jax.interop.load import load
from vit_jax.parallel.mesh import make_mesh

COUNT = 11


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshConfig())


def as_bytes(images):
    return np.round((images + 1) * 127.5).astype(np.uint8)


def batches(images, labels, size, *, skipped=()):
    """Batches as the loader makes them: padding and skipped examples are masked out."""
    for start in range(0, len(images), size):
        own = range(start, min(start + size, len(images)))
        missing = size - len(own)
        yield {
            "image": np.pad(images[own.start : own.stop], ((0, missing), (0, 0), (0, 0), (0, 0))),
            "label": np.pad(labels[own.start : own.stop], (0, missing)),
            "mask": np.array([i not in skipped for i in own] + [False] * missing),
        }


@pytest.fixture(scope="module")
def data():
    return as_bytes(random_images(COUNT, 32)), np.arange(COUNT, dtype=np.int32) % 5


def frozen_features(
    loaded, images, labels, mesh, *, kind="pre_logits", size=4, side=None, **options
):
    own = build_feature_extractor(loaded.options, loaded.image_size, kind, mesh)
    there = (
        own if side is None else build_feature_extractor(loaded.options, (side, side), kind, mesh)
    )
    params = nnx.to_pure_dict(nnx.state(loaded.model))
    fitted = resample_params(shard_params(params, MeshConfig(), mesh), own, there, mesh)
    totals = FeatureTotals(len(images))
    step = functools.partial(there.step, fitted)
    evaluate(step, batches(images, labels, size, **options), mesh, totals)
    return totals.features()


def by_the_model(model, images):
    unit = jnp.asarray(images / np.float32(127.5) - 1)
    return np.asarray(run(model, unit, return_intermediates=("pre_logits",))[1]["pre_logits"])


@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        ("ViT-Ti/8", {}, 4),
        ("ViT-Ti/8", {"representation_size": 12}, 16),
        ("ViT-Ti/8", {"pooling": "flatten"}, 11),
        ("R+ViT-Mini/4", {}, 4),
    ],
)
def test_features_are_the_input_of_the_linear_layer(tmp_path, mesh, data, name, options, size):
    loaded = random_weights(tmp_path / "model", name, **options)
    found = frozen_features(loaded, *data, mesh, size=size)
    assert found.values.dtype == np.float32
    wanted = by_the_model(loaded.model, data[0])
    np.testing.assert_allclose(found.values, wanted, atol=2e-5 * max(1, np.abs(wanted).max()))
    np.testing.assert_array_equal(found.labels, data[1])


def test_pooled_features_are_the_input_of_the_tanh_layer(tmp_path, mesh, data):
    loaded = random_weights(tmp_path / "model", representation_size=12)
    pooled = frozen_features(loaded, *data, mesh, kind="pooled").values
    assert pooled.shape == (COUNT, 24)
    layer = nnx.to_pure_dict(nnx.state(loaded.model))["head"]["pre_logits"]
    behind = np.tanh(pooled @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"]))
    np.testing.assert_allclose(behind, frozen_features(loaded, *data, mesh).values, atol=2e-5)


def test_skipped_examples_have_no_features(tmp_path, mesh, data):
    loaded = random_weights(tmp_path / "model")
    found = frozen_features(loaded, *data, mesh, skipped=(0, 7))
    kept = [i for i in range(COUNT) if i not in (0, 7)]
    whole = frozen_features(loaded, *data, mesh)
    np.testing.assert_array_equal(found.values, whole.values[kept])
    np.testing.assert_array_equal(found.labels, data[1][kept])


@pytest.mark.parametrize("options", [{}, {"position_embedding": "rope_2d", "width": 24}])
def test_another_image_size_equals_loading_the_weights_at_that_size(tmp_path, mesh, options):
    loaded = random_weights(tmp_path / "model", **options)
    images = as_bytes(random_images(3, 48))
    found = frozen_features(loaded, images, np.zeros(3, np.int32), mesh, side=48)
    wanted = by_the_model(load(tmp_path / "model", image_size=48).model, images)
    np.testing.assert_allclose(found.values, wanted, atol=2e-5)


def test_features_that_overflow_are_an_error(tmp_path, mesh, data):
    loaded = random_weights(tmp_path / "model")
    # A copy, because tests share the loaded model.
    loaded = dataclasses.replace(loaded, model=nnx.clone(loaded.model))
    loaded.model.norm.scale[...] = jnp.full_like(loaded.model.norm.scale[...], jnp.inf)
    with pytest.raises(WeightsError, match="features that are not finite"):
        frozen_features(loaded, *data, mesh)
