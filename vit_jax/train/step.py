"""One training step: a pure function of state, batch and frozen arrays.

Training, plans and benchmarks all use this function.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from vit_jax.config.run import Config
from vit_jax.data.device import Batch
from vit_jax.rng import stream
from vit_jax.tasks.task import BatchLoss, ComparingLoss, Metrics, Prepare, Teacher, TeacherState
from vit_jax.train.optimizers import schedule_free_params
from vit_jax.train.parameter_groups import without_gradients
from vit_jax.train.state import TrainState

# (state, batch, *frozen) -> (state, metrics).
StepFn = Callable[..., tuple[TrainState, Metrics]]


def make_train_step(
    config: Config,
    *,
    batch_loss: BatchLoss,
    prepare: Prepare,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    num_microbatches: int = 1,
    shardings: Any = None,
    teacher: Teacher | None = None,
    clamp: Callable[[Any], Any] | None = None,
) -> StepFn:
    """Returns step_fn(state, batch, *frozen) -> (state, metrics).

    `batch_loss` is minimised over `num_microbatches`; it reads the `teacher`, which follows the
    parameters. `schedule` is used for the metric only. `shardings` are those of the parameters and
    their gradients; None: the compiler chooses. `clamp` keeps parameters within their range after
    each update.

    The metrics are f32 scalars: train/loss, train/learning_rate, the global norms
    train/gradient_norm (before clipping), train/parameter_norm (before the update) and
    train/update_norm, and the metrics of the task. Parameters that stay frozen have no gradient:
    the part of the model that only they determine is not run backward.
    """

    def constrained(params: Any) -> Any:
        """Returns the parameters as the loss sees them."""
        # The constraint also holds for the gradient, so each device sums only the part it keeps.
        if shardings is not None:
            params = jax.lax.with_sharding_constraint(params, shardings)
        return without_gradients(config.optimizer, params)

    def step_fn(state: TrainState, batch: Batch, *frozen: Any) -> tuple[TrainState, Metrics]:
        batch = prepare(batch, state.step)
        teacher_state = ()
        if teacher is not None:
            teacher_state = (TeacherState(state.ema, state.extra, state.step),)
        (loss, task_metrics), grads = accumulated_gradient(
            _of_parameters(batch_loss, constrained),
            state.params,
            batch,
            dropout_key(config, state.step),
            (*teacher_state, *frozen),
            num_microbatches,
        )
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        if clamp is not None:
            params = clamp(params)
        ema, extra = state.ema, state.extra
        if teacher is not None:
            extra, task_metrics = teacher.update(extra, task_metrics)
            ema = optax.incremental_update(params, ema, 1 - teacher.decay(state.step))
        elif config.optimizer.averages_parameters:
            ema = schedule_free_params(opt_state, params)
        elif config.ema_decay is not None:
            ema = optax.incremental_update(params, ema, 1 - config.ema_decay)
        metrics = {
            "train/loss": loss,
            "train/learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
            "train/gradient_norm": optax.tree.norm(grads),
            "train/parameter_norm": optax.tree.norm(state.params),
            "train/update_norm": optax.tree.norm(jax.tree.map(jnp.subtract, params, state.params)),
            **{f"train/{name}": value for name, value in task_metrics.items()},
        }
        return TrainState(state.step + 1, params, opt_state, ema, extra), metrics

    return step_fn


def _of_parameters(batch_loss: BatchLoss, constrained: Callable[[Any], Any]) -> BatchLoss:
    """Returns the loss as a function of the parameters before they are constrained."""

    def composed(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda params, *rest: function(constrained(params), *rest)

    if isinstance(batch_loss, ComparingLoss):
        return ComparingLoss(composed(batch_loss.embed), composed(batch_loss.compare))
    return composed(batch_loss)


def dropout_key(config: Config, step: jax.Array) -> jax.Array:
    """Returns the key of a step's dropout."""
    return stream(config.seed, "dropout", step)


def microbatches(batch: Batch, key: jax.Array, num_microbatches: int) -> tuple[Batch, jax.Array]:
    """Splits a batch along a new first axis, each part with a random key.

    Row r goes to microbatch r % num_microbatches, so that each device splits only its own rows.
    """
    split = jax.tree.map(lambda rows: _split(rows, num_microbatches), batch)
    return split, jax.random.split(key, num_microbatches)


def _split(rows: Array, num_microbatches: int) -> Array:
    return jnp.moveaxis(rows.reshape(-1, num_microbatches, *rows.shape[1:]), 1, 0)


def _joined(rows: Array) -> Array:
    """Undoes `_split`."""
    return jnp.moveaxis(rows, 0, 1).reshape(-1, *rows.shape[2:])


def accumulated_gradient(
    batch_loss: BatchLoss,
    params: Any,
    batch: Batch,
    key: jax.Array,
    frozen: tuple[Any, ...],
    num_microbatches: int,
) -> tuple[tuple[Float[Array, ""], Metrics], Any]:
    """Returns the mean (loss, metrics) and gradient over a batch, in microbatches."""
    loss_and_gradient = jax.value_and_grad(batch_loss, has_aux=True)
    if num_microbatches == 1:
        return loss_and_gradient(params, batch, key, *frozen)
    if isinstance(batch_loss, ComparingLoss):
        return _gradient_in_two_passes(batch_loss, params, batch, key, frozen, num_microbatches)

    def body(total: Any, microbatch: tuple) -> tuple[Any, None]:
        values = loss_and_gradient(params, *microbatch, *frozen)
        return jax.tree.map(jnp.add, total, values), None

    inputs_of_microbatches = microbatches(batch, key, num_microbatches)
    first = jax.tree.map(lambda leaf: leaf[0], inputs_of_microbatches)
    values = jax.eval_shape(batch_loss, params, *first, *frozen)
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), values)
    zero = (zero, jax.tree.map(jnp.zeros_like, params))
    total, _ = jax.lax.scan(body, zero, inputs_of_microbatches)
    return jax.tree.map(lambda x: x / num_microbatches, total)


def _gradient_in_two_passes(
    batch_loss: ComparingLoss,
    params: Any,
    batch: Batch,
    key: jax.Array,
    frozen: tuple[Any, ...],
    num_microbatches: int,
) -> tuple[tuple[Float[Array, ""], Metrics], Any]:
    """Returns (loss, metrics) and gradient of a whole batch, embedded in microbatches."""
    inputs_of_microbatches = microbatches(batch, key, num_microbatches)

    def embed(_: None, microbatch: tuple) -> tuple[None, Any]:
        return None, batch_loss.embed(params, *microbatch, *frozen)

    _, embeddings = jax.lax.scan(embed, None, inputs_of_microbatches)
    embeddings = jax.tree.map(_joined, embeddings)
    compare = jax.value_and_grad(batch_loss.compare, argnums=(0, 1), has_aux=True)
    loss_and_metrics, (gradient, cotangents) = compare(params, embeddings, *frozen)

    def add(total: Any, microbatch: tuple) -> tuple[Any, None]:
        inputs, cotangent = microbatch
        _, pull_back = jax.vjp(lambda p: batch_loss.embed(p, *inputs, *frozen), params)
        return jax.tree.map(jnp.add, total, *pull_back(cotangent)), None

    cotangents = jax.tree.map(lambda rows: _split(rows, num_microbatches), cotangents)
    gradient, _ = jax.lax.scan(add, gradient, (inputs_of_microbatches, cotangents))
    return loss_and_metrics, gradient
