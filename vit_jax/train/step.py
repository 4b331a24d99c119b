"""One training step: a pure function of state and batch, and its jitted, donated form."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.config import Config
from vit_jax.data.device import Batch, erase, flip, mix, to_unit_range
from vit_jax.rng import stream
from vit_jax.train.losses import as_distribution, make_loss
from vit_jax.train.state import TrainState

Metrics = dict[str, Float[Array, ""]]
StepFn = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]
# params, batch (image in [-1, 1], label), key -> mean loss over the batch.
BatchLoss = Callable[[Any, Batch, jax.Array], Float[Array, ""]]


def make_batch_loss(
    graphdef: nnx.GraphDef, config: Config, class_weights: np.ndarray | None = None
) -> BatchLoss:
    """Returns batch_loss_fn(params, batch, key), the mean classification loss with dropout on.

    Args:
        graphdef: the model without its parameters.
        config: of the loss.
        class_weights: f32[C], factor of an example's loss by its class, of a mixed one in
            proportion; None: 1.
    """
    loss = make_loss(config.loss)

    def batch_loss_fn(params: Any, batch: Batch, key: jax.Array) -> Float[Array, ""]:
        logits = nnx.merge(graphdef, params)(batch["image"], key=key)
        losses = loss(logits, batch["label"])
        if class_weights is not None:
            losses *= as_distribution(batch["label"], logits.shape[-1]) @ class_weights
        return losses.mean()

    return batch_loss_fn


def make_prepare(config: Config, num_classes: int) -> Callable[[Batch, jax.Array], Batch]:
    """Returns prepare_fn(batch, step): uint8 to [-1, 1], flips, erasing, mixing by (seed, step)."""
    augment = config.data.augment

    def prepare_fn(batch: Batch, step: jax.Array) -> Batch:
        images = to_unit_range(batch["image"])
        if augment.flip:
            images = flip(images, stream(config.seed, "flip", step))
        if augment.erasing_probability:
            images = erase(
                images, stream(config.seed, "erasing", step),
                probability=augment.erasing_probability, fill=augment.erasing_fill,
            )  # fmt: skip
        images, labels = mix(
            images, batch["label"], num_classes=num_classes, config=config.mixing,
            key=stream(config.seed, "mixing", step),
        )  # fmt: skip
        return {"image": images, "label": labels}

    return prepare_fn


def make_train_step(
    config: Config,
    *,
    batch_loss: BatchLoss,
    prepare: Callable[[Batch, jax.Array], Batch],
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
        if config.ema_decay is not None:
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
