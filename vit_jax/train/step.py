"""One training step: a pure function of state and batch, and its jitted, donated form."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from vit_jax.config.run import Config
from vit_jax.data.device import Batch
from vit_jax.rng import stream
from vit_jax.train.optimizers import schedule_free_params
from vit_jax.train.state import TrainState
from vit_jax.train.task import BatchLoss, Prepare

Metrics = dict[str, Float[Array, ""]]
StepFn = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


def make_train_step(
    config: Config,
    *,
    batch_loss: BatchLoss,
    prepare: Prepare,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    shardings: Any = None,
) -> StepFn:
    """Returns step_fn(state, batch) -> (state, metrics).

    Args:
        config: seed, accumulation and EMA are read.
        batch_loss: what is minimised.
        prepare: from the batch that came over the wire to the one that the loss reads.
        optimizer: update rule.
        schedule: for the metric only; the optimizer has its own.
        shardings: of the parameters, and so of their gradients; None: as the compiler likes.

    Metrics, f32 scalars: train/loss, train/learning_rate, and the global norms
    train/gradient_norm (before clipping), train/parameter_norm (before the update) and
    train/update_norm.
    """

    def placed_loss(params: Any, batch: Batch, key: jax.Array) -> Float[Array, ""]:
        # A constraint holds for the gradient too: no device needs the sum of more than it keeps.
        if shardings is not None:
            params = jax.lax.with_sharding_constraint(params, shardings)
        return batch_loss(params, batch, key)

    def step_fn(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        batch = prepare(batch, state.step)
        key = stream(config.seed, "dropout", state.step)
        loss, grads = accumulated_gradient(
            placed_loss, state.params, batch, key, config.accumulation_steps
        )
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        ema = state.ema
        if config.optimizer.averages_parameters:
            ema = schedule_free_params(opt_state, params)
        elif config.ema_decay is not None:
            ema = optax.incremental_update(params, ema, 1 - config.ema_decay)
        metrics = {
            "train/loss": loss,
            "train/learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
            "train/gradient_norm": optax.tree.norm(grads),
            "train/parameter_norm": optax.tree.norm(state.params),
            "train/update_norm": optax.tree.norm(updates),
        }
        return TrainState(state.step + 1, params, opt_state, ema), metrics

    return step_fn


def accumulated_gradient(
    batch_loss: BatchLoss, params: Any, batch: Batch, key: jax.Array, parts: int
) -> tuple[Float[Array, ""], Any]:
    """Returns the mean loss and gradient over a batch, taken in `parts` equal microbatches.

    Row r goes to microbatch r % parts, so that each device cuts up only rows of its own.
    """
    if parts == 1:
        return jax.value_and_grad(batch_loss)(params, batch, key)

    def split(rows: Array) -> Array:
        return jnp.moveaxis(rows.reshape(-1, parts, *rows.shape[1:]), 1, 0)

    def body(total: tuple, part: tuple) -> tuple[tuple, None]:
        found = jax.value_and_grad(batch_loss)(params, *part)
        return jax.tree.map(jnp.add, total, found), None

    zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    keys = jax.random.split(key, parts)
    total, _ = jax.lax.scan(body, zero, (jax.tree.map(split, batch), keys))
    return jax.tree.map(lambda x: x / parts, total)
