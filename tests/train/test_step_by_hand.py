"""A training step of one parameter, computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_config import small_mapping

from vit_jax.config.run import Config
from vit_jax.rng import stream
from vit_jax.train.state import TrainState
from vit_jax.train.step import make_train_step

BATCH = {"x": jnp.arange(4.0)}


def draws(params, batch, key):
    """A loss that is the parameter, with a draw from the key of each microbatch as metric."""
    return params["w"] + 0.0 * batch["x"].sum(), {"draw": jax.random.uniform(key)}


def step(number=0, *, parts=1, optimizer=None, clamp=None, ema=None, times=1, **changes):
    config = Config.from_mapping(small_mapping(seed=7, **changes))
    optimizer = optimizer or optax.sgd(1.0)
    step_fn = make_train_step(
        config,
        batch_loss=draws,
        prepare=lambda batch, step: batch,
        optimizer=optimizer,
        schedule=lambda step: 10.0 * step.astype(jnp.float32),
        num_microbatches=parts,
        clamp=clamp,
    )
    params = {"w": jnp.float32(3.0)}
    state = TrainState(jnp.int32(number), params, optimizer.init(params), ema, None)
    for _ in range(times):
        state, metrics = step_fn(state, BATCH)
    return state, metrics


def test_the_logged_rate_is_that_of_the_update():
    assert step(4)[1]["train/learning_rate"] == 40
    assert step(4)[0].step == 5


def test_parameters_are_kept_within_their_range_after_the_update():
    state, metrics = step(clamp=lambda params: {"w": jnp.maximum(params["w"], 2.5)})
    assert state.params["w"] == 2.5  # 3 - 1 is below it.
    assert metrics["train/update_norm"] == 0.5


@pytest.mark.parametrize("number", [0, 3])
def test_the_dropout_key_is_that_of_the_step(number):
    wanted = jax.random.uniform(stream(7, "dropout", number))
    assert step(number)[1]["train/draw"] == wanted


def test_each_microbatch_has_a_key_of_its_own():
    keys = jax.random.split(stream(7, "dropout", 2), 2)
    wanted = [float(jax.random.uniform(key)) for key in keys]
    assert step(2, parts=2)[1]["train/draw"] == pytest.approx(np.mean(wanted))
    assert wanted[0] != wanted[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:optax")
def test_a_schedule_free_optimizer_averages_its_parameters():
    optimizer = optax.contrib.schedule_free_adamw(0.1, warmup_steps=1)
    with jax.numpy_dtype_promotion("standard"):
        state, _ = step(
            times=3,
            optimizer=optimizer,
            ema={"w": jnp.float32(0.0)},
            optimizer__name="schedule_free_adamw",
        )
        wanted = optax.contrib.schedule_free_eval_params(state.opt_state, state.params)
    assert state.ema["w"] == pytest.approx(float(wanted["w"]))
    assert state.ema["w"] != pytest.approx(float(state.params["w"]))
