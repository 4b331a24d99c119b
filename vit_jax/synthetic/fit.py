"""Training on examples that are made on the device: one function for all tasks."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.config.synthetic import SyntheticTrainingConfig
from vit_jax.errors import DivergenceError
from vit_jax.rng import stream

Draw = Callable[[Array, int], Any]
Loss = Callable[[nnx.Module, Any], Float[Array, ""]]


def fit(
    model: nnx.Module, draw: Draw, loss_fn: Loss, config: SyntheticTrainingConfig, seed: int
) -> Iterator[tuple[int, float]]:
    """Trains a model in place.

    Args:
        model: whose parameters are learned.
        draw: key, number of examples -> a batch.
        loss_fn: model, batch -> what is to become small.
        config: steps, batch size, optimizer.
        seed: of the examples.

    Yields:
        Steps made and the mean loss of the steps since the last time, every `interval_steps`.

    Raises:
        DivergenceError: a loss that is not finite.
    """
    optimizer = build_optimizer(config)
    graph, params = nnx.split(model, nnx.Param)
    state = optimizer.init(params)

    def update(carry: tuple[Any, Any], step: Array) -> tuple[tuple[Any, Any], Array]:
        params, state = carry
        batch = draw(stream(seed, "examples", step), config.batch_size)
        loss, gradient = jax.value_and_grad(lambda p: loss_fn(nnx.merge(graph, p), batch))(params)
        with jax.numpy_dtype_promotion("standard"):  # Adam of optax mixes types.
            updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), loss

    @jax.jit
    def many(carry: tuple[Any, Any], steps: Array) -> tuple[tuple[Any, Any], Array]:
        carry, losses = jax.lax.scan(update, carry, steps)
        return carry, losses.mean()

    carry = (params, state)
    for start in range(0, config.steps, config.interval_steps):
        end = min(start + config.interval_steps, config.steps)
        carry, mean = many(carry, jnp.arange(start, end))
        loss = float(mean)
        if not jnp.isfinite(loss):
            raise DivergenceError(
                f"loss {loss} between steps {start} and {end}", "a finite loss",
                "lower training.learning_rate or training.clip_global_norm",
            )  # fmt: skip
        nnx.update(model, carry[0])
        yield end, loss


def build_optimizer(config: SyntheticTrainingConfig) -> optax.GradientTransformation:
    """Returns Adam behind clipping, with warmup from 0 and a cosine to 0."""
    rate = optax.warmup_cosine_decay_schedule(
        0.0 if config.warmup_steps else config.learning_rate, config.learning_rate,
        config.warmup_steps, config.steps,
    )  # fmt: skip
    return optax.chain(optax.clip_by_global_norm(config.clip_global_norm), optax.adam(rate))
