"""Standard deviations of initial values, from the authors' code."""

import jax
import numpy as np
import pytest
from flax import nnx

from vit_jax.errors import ConfigError
from vit_jax.models.initial_values import redraw
from vit_jax.models.registry import build_model, create_model, model_options
from vit_jax.named_tree import named_leaves

QKV, OUT = "encoder/blocks/attention/qkv/kernel", "encoder/blocks/attention/out/kernel"
EXPAND, HEAD = "encoder/blocks/mlp/expand/kernel", "head/linear/kernel"
PATCHES, TABLE = "patch_embedding/kernel", "position_embedding/table"
BIAS = "patch_embedding/bias"
# Convention -> parameter -> deviation at width 384 and at 768.
DEVIATIONS = {
    # Xavier, queries, keys and values apart; 1 / sqrt(3 * 16 * 16).
    "vision_transformer": {
        QKV: (0.0510, 0.0361), OUT: (0.0510, 0.0361), EXPAND: (0.0323, 0.0228),
        PATCHES: (0.0361, 0.0361), BIAS: (0, 0), TABLE: (0.02, 0.02), "class_token": (0, 0),
        HEAD: (0, 0),
    },
    # 1 / sqrt(width)
    "big_vision": {TABLE: (0.0510, 0.0361), PATCHES: (0.0361, 0.0361), HEAD: (0, 0)},
    "flexivit": {TABLE: (0.0510, 0.0361), PATCHES: (0.0510, 0.0361), QKV: (0.0510, 0.0361)},
    # PyTorch's convolution: 1 / sqrt(3 * 768).
    "timm": {
        QKV: (0.02, 0.02), OUT: (0.02, 0.02), EXPAND: (0.02, 0.02), PATCHES: (0.0208, 0.0208),
        BIAS: (0.0208, 0.0208), TABLE: (0.02, 0.02), "class_token": (0.02, 0.02),
        HEAD: (0.02, 0.02),
    },
    # Xavier over the fused matrix: sqrt(2 / (4 * width)); sqrt(2 / (768 + width)).
    "mae": {
        QKV: (0.0361, 0.0255), OUT: (0.0510, 0.0361), EXPAND: (0.0323, 0.0228),
        PATCHES: (0.0417, 0.0361), BIAS: (0.0208, 0.0208), "class_token": (0.02, 0.02),
        HEAD: (2e-5, 2e-5),
    },
}  # fmt: skip


def initial_values(name, convention):
    def init():
        options = model_options(name, depth=1)
        model = build_model(options, num_classes=100, image_size=64, key=jax.random.key(0))
        return redraw(nnx.to_pure_dict(nnx.state(model)), convention, jax.random.key(1))

    return named_leaves(jax.jit(init)())


@pytest.mark.parametrize("convention", DEVIATIONS)
@pytest.mark.parametrize(("name", "column"), [("ViT-S/16", 0), ("ViT-B/16", 1)])
def test_initial_values_have_the_deviations_of_the_authors_code(convention, name, column):
    values = initial_values(name, convention)
    for parameter, deviations in DEVIATIONS[convention].items():
        found, want = np.std(np.asarray(values[parameter])), deviations[column]
        # Of n values the deviation is known to 1 / sqrt(2 n): here to four times that.
        tolerance = 0.002 + 4 / np.sqrt(2 * values[parameter].size)
        assert found == pytest.approx(want, rel=tolerance), parameter


def test_create_model_draws_the_values_of_the_convention():
    model = create_model("ViT-Ti/4", depth=1, image_size=8, initial_values="timm")
    assert np.std(model.head.linear.kernel) == pytest.approx(0.02, rel=0.02)


def test_a_model_that_is_no_vit_has_one_convention():
    with pytest.raises(ConfigError, match=r"'model\.initial_values' is 'timm' for a model"):
        redraw({"trunk": {"kernel": np.ones(2)}}, "timm", jax.random.key(0))
