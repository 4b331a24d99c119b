"""Config files of earlier versions, which wrote a ViT's options for every model."""

import json

import pytest

from vit_jax.config.file import load_config
from vit_jax.config.upgrade import upgrade_config, upgrade_model
from vit_jax.errors import ConfigError
from vit_jax.models.registry import model_options

# The model section of a run folder written by version 0.1.
OLD_MODEL = {
    "width": None, "depth": None, "mlp_dim": None, "num_heads": None, "pooling": "token",
    "class_token": None, "position_embedding": "learned_1d", "position_placement": "stem",
    "norm_placement": "pre", "norm_epsilon": 1e-06, "num_registers": 0, "layer_scale": None,
    "qk_norm": False, "qkv_bias": True, "mlp": "gelu", "gelu_approximate": True,
    "representation_size": None, "head_bias_init": 0.0, "dropout": 0.0, "stochastic_depth": 0.0,
    "dtype": "float32", "remat": "none", "scan": True, "attention_implementation": "auto",
}  # fmt: skip
RUN = {
    "data": {
        "name": "digits", "global_batch_size": 8, "image_size": 32, "train_split": "train",
    },
    "optimizer": {"learning_rate": 0.1},
    "train_steps": 1,
}  # fmt: skip
OLD_MESH = {
    "data": -1, "fsdp": 1, "tensor": 1, "preset": "fsdp_tensor", "rules": [],
    "gradient_dtype": None,
}  # fmt: skip


def read(tmp_path, model, mesh=OLD_MESH):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**RUN, "model": {**OLD_MODEL, **model}, "mesh": mesh}))
    return load_config(str(path))


@pytest.mark.parametrize("name", ["ViT-Nano/4", "R+ViT-Nano/4", "BiT-R-Nano"])
def test_an_old_config_is_upgraded_when_read(tmp_path, name):
    options = {"name": name, "remat": "full", "representation_size": 4}
    # Values that are now "auto" by default stay those that the run had.
    found = read(tmp_path, options)
    assert found.model == model_options(**options, scan=True)
    assert found.mesh.slices == -1  # What the devices say, as before there was this key.


def test_a_config_of_this_version_is_not_changed(tmp_path):
    config = read(tmp_path, {"name": "ViT-Nano/4", "pooling": "gap"})
    assert upgrade_config(config.to_mapping()) == config.to_mapping()


@pytest.mark.parametrize(("old", "new"), [(None, None), ([12, 13], "12:13")])
def test_the_old_key_of_profiled_steps_is_read(tmp_path, old, new):
    path = tmp_path / "config.json"
    logging = {"profile_steps": old, "interval_steps": 7}
    path.write_text(json.dumps({**RUN, "model": {"name": "ViT-Nano/4"}, "logging": logging}))
    config = load_config(str(path))
    assert (config.profile.steps, config.logging.interval_steps) == (new, 7)


def test_removed_options_with_another_value_are_refused(tmp_path):
    """Earlier versions refused these too: a ResNet has no layer normalisation to place."""
    model = {**OLD_MODEL, "name": "BiT-R-Nano", "norm_placement": "post"}
    own = model_options("BiT-R-Nano").to_mapping()
    assert set(upgrade_model(model)) - set(own) == {"norm_placement"}
    with pytest.raises(ConfigError, match=r"key 'model\.norm_placement' for a ResNet"):
        read(tmp_path, model)
    with pytest.raises(ConfigError, match=r"'mesh\.gradient_dtype' is 'float32'.*remove it"):
        read(tmp_path, {"name": "ViT-Nano/4"}, {**OLD_MESH, "gradient_dtype": "float32"})
