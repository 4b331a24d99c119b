"""Which parameters have no gradient."""

import jax
import jax.numpy as jnp
import pytest
from small_config import small_mapping

from vit_jax.config.run import Config
from vit_jax.train.parameter_groups import without_gradients

PARAMS = {"a": jnp.float32(2.0), "ab": jnp.float32(3.0)}


def gradient(**optimizer):
    changes = {f"optimizer__{key}": value for key, value in optimizer.items()}
    config = Config.from_mapping(small_mapping(**changes)).optimizer

    def loss(params):
        params = without_gradients(config, params)
        return params["a"] * params["ab"]

    return {name: float(value) for name, value in jax.grad(loss)(PARAMS).items()}


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ({}, {"a": 3, "ab": 2}),
        ({"freeze": ["a"]}, {"a": 0, "ab": 2}),  # The pattern matches the whole name.
        # Frozen for a while, it needs its gradient later.
        ({"freeze": ["a"], "freeze_steps": 5}, {"a": 3, "ab": 2}),
    ],
)
def test_frozen_parameters_have_no_gradient(optimizer, expected):
    assert gradient(**optimizer) == expected
