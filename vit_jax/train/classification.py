"""The task of classification: flips, erasing and mixing, and a loss of logits and labels."""

from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.config.run import Config
from vit_jax.data.device import Batch, erase, flip, mix, to_unit_range
from vit_jax.evaluation.classification import make_eval_step
from vit_jax.models.flops import forward_macs
from vit_jax.models.registry import build_model
from vit_jax.rng import stream
from vit_jax.train.losses import as_distribution, make_loss
from vit_jax.train.task import BatchLoss, Prepare, Task


def classification(
    config: Config, *, num_classes: int, class_weights: np.ndarray | None, platform: str
) -> Task:
    """Returns the task.

    Args:
        config: the run.
        num_classes: C.
        class_weights: f32[C], factors of the loss by class; None: 1.
        platform: that the model will run on.

    Raises:
        ModelError: sizes that do not go together.
    """
    side = config.data.image_size

    def build(key: jax.Array) -> nnx.Module:
        return build_model(
            config.model, num_classes=num_classes, image_size=side, key=key, platform=platform
        )

    graphdef = nnx.graphdef(nnx.eval_shape(build, jax.random.key(0)))

    def forward(params: Any, batch: Batch, **options: Any) -> Any:
        return nnx.merge(graphdef, params)(batch["image"], **options)

    plain_loss = config.loss.replace(label_smoothing=0.0)
    return Task(
        build=build,
        graphdef=graphdef,
        num_outputs=num_classes,
        forward_macs=forward_macs(config.model, num_classes=num_classes, image_size=(side, side)),
        prepare=make_prepare(config, num_classes),
        forward=forward,
        batch_loss=make_batch_loss(graphdef, config, class_weights),
        eval_step=make_eval_step(
            graphdef, make_loss(plain_loss), by_class=config.evaluation.by_class
        ),
    )


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


def make_prepare(config: Config, num_classes: int) -> Prepare:
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
