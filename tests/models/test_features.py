"""Feature maps of layers: the same values as in a whole forward pass, and no layer too many."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_models import random_model

from vit_jax.errors import ModelError
from vit_jax.models.flops import count_macs

_IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 3)).astype(np.float32)
_SMALL = {"width": 16, "depth": 4, "num_heads": 2, "mlp_dim": 24}
_MODELS = {
    "registers": ("ViT-Mini/4", {**_SMALL, "num_registers": 2}),
    "shared_rope": (
        "ViT-Mini/4",
        {**_SMALL, "position_placement": "shared", "pooling": "gap", "norm_placement": "post"},
    ),
    "hybrid": ("R+ViT-Nano/4", {**_SMALL}),
    "mixer": ("Mixer-S/4", {"width": 16, "depth": 4, "token_mlp_dim": 8, "channel_mlp_dim": 8}),
}


@pytest.fixture(
    params=[pytest.param(n, marks=[pytest.mark.slow] * (n == "hybrid")) for n in _MODELS]
)
def model(request):
    name, options = _MODELS[request.param]
    return random_model(name, **options)


def test_features_are_the_block_outputs_of_the_forward_pass(model):
    blocks = model.num_layers
    prefix = model.num_prefix
    layers = (-1, 0, blocks - 1, 1)
    found = jax.jit(partial(model.features, layers=layers, prefix=True))(_IMAGES)
    _, whole = jax.jit(
        partial(model, return_intermediates=("embedded", "block_output", "encoded"))
    )(_IMAGES)
    outputs = [whole["embedded"], *whole["block_output"]]
    assert len(outputs) == blocks + 1
    for layer, (patches, tokens) in zip(layers, found, strict=True):
        assert patches.shape == (2, *model.grid, outputs[0].shape[-1])
        np.testing.assert_allclose(tokens, outputs[layer][:, :prefix], atol=2e-5)
        rows = patches.reshape(2, -1, patches.shape[-1])
        np.testing.assert_allclose(rows, outputs[layer][:, prefix:], atol=2e-5)
    (last,) = model.features(_IMAGES, reshape=False, normalise=True)
    np.testing.assert_allclose(last, whole["encoded"][:, prefix:], atol=2e-5)


@pytest.mark.slow
def test_stages_of_a_resnet_have_numbers_and_names():
    model = random_model("BiT-R-Nano")
    root, third, last = model.features(_IMAGES, ("root", 3, "stage3"), normalise=True)
    _, whole = model(_IMAGES, return_intermediates=("root", "stage3", "encoded"))
    np.testing.assert_array_equal(root, whole["root"])
    np.testing.assert_array_equal(third, last)
    np.testing.assert_allclose(last, whole["encoded"], atol=1e-6)
    (raw,) = model.features(_IMAGES)
    np.testing.assert_allclose(raw, whole["stage3"], atol=1e-6)


def test_a_hybrid_has_the_maps_of_its_stem_by_name():
    name, options = _MODELS["hybrid"]
    model = random_model(name, **options)
    root, first = model.features(_IMAGES, ("root", 1), normalise=True)
    np.testing.assert_allclose(root, model.stem(jnp.asarray(_IMAGES))["root"], atol=1e-6)
    assert first.shape == (2, *model.grid, 16)


@pytest.mark.parametrize("name", ["registers", "hybrid", "mixer", "resnet"])
def test_nothing_after_the_last_layer_is_computed(name):
    model_name, options = _MODELS.get(name, ("BiT-R-Nano", {}))
    model = random_model(model_name, **options)
    graphdef, state = nnx.split(model)

    def macs(layer):
        def features(state, images):
            return nnx.merge(graphdef, state).features(images, (layer,))

        return count_macs(jax.make_jaxpr(features)(state, _IMAGES).jaxpr)

    counts = [macs(layer) for layer in range(model.num_layers + 1)]
    steps = np.diff(counts)
    if name != "resnet":
        assert (steps == steps[0]).all()
    assert (steps > 0).all()


@pytest.mark.parametrize("layer", [5, -6, "stage1"])
def test_a_layer_that_does_not_exist_is_one_line(layer):
    name, options = _MODELS["registers"]
    model = random_model(name, **options)
    with pytest.raises(ModelError, match="with 4 layers; expected 0 to 4; ask") as error:
        model.features(_IMAGES, (layer,))
    assert "\n" not in str(error.value)
