"""The task of masked patch prediction: the colours of corrupted patches, from what is around them.

Source: arXiv:2010.11929, B.1.2.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from vit_jax.config.run import Config
from vit_jax.data.device import Batch, flip, to_unit_range
from vit_jax.evaluation.masked_patches import corrupted_batch, make_eval_step, patch_losses
from vit_jax.models.corruption import Corruption
from vit_jax.models.flops import forward_macs
from vit_jax.models.registry import build_model, resolve
from vit_jax.models.vit import ViT, ViTShape
from vit_jax.rng import stream
from vit_jax.train.task import BatchLoss, Forward, Prepare, Task


def masked_patches(config: Config, *, platform: str) -> Task:
    """Returns the task.

    A prepared batch has the augmented images, "colour" i32[B, N], the class of each patch's mean
    colour, "corrupted" bool[B, N], which of them are asked for, and "source" and "hidden", see
    `Corruption`.

    Args:
        config: the run.
        platform: that the model will run on.

    Raises:
        ModelError: a model without patches, or sizes that do not go together.
    """
    side, outputs = config.data.image_size, config.masked_patches.num_colours

    def build(key: jax.Array) -> nnx.Module:
        return build_model(
            config.model, num_classes=outputs, image_size=side, key=key, platform=platform,
            mask_token=True,
        )  # fmt: skip

    abstract = nnx.eval_shape(build, jax.random.key(0))
    assert isinstance(abstract, ViT)
    shape = resolve(config.model)
    assert isinstance(shape, ViTShape)
    graphdef, stride = nnx.graphdef(abstract), shape.stride
    forward = make_forward(graphdef)
    macs = forward_macs(
        config.model, num_classes=outputs, image_size=(side, side), head_per_patch=True
    )
    return Task(
        build=build,
        graphdef=graphdef,
        num_outputs=outputs,
        forward_macs=macs,
        prepare=make_prepare(config, stride),
        forward=forward,
        batch_loss=make_batch_loss(forward),
        eval_step=make_eval_step(forward, config.masked_patches, stride),
    )


def make_forward(graphdef: nnx.GraphDef) -> Forward:
    """Returns forward_fn(params, batch, **options) -> logits f32[B, N, C] of corrupted images."""

    def forward_fn(params: Any, batch: Batch, **options: Any) -> Any:
        corruption = Corruption(batch["source"], batch["hidden"])
        return nnx.merge(graphdef, params)(batch["image"], corruption=corruption, **options)

    return forward_fn


def make_prepare(config: Config, stride: int) -> Prepare:
    """Returns prepare_fn(batch, step): uint8 to [-1, 1], flips, corruption, all by (seed, step).

    Args:
        config: the run.
        stride: pixels between neighbouring patches.
    """

    def prepare_fn(batch: Batch, step: jax.Array) -> Batch:
        images = to_unit_range(batch["image"])
        if config.data.augment.flip:
            images = flip(images, stream(config.seed, "flip", step))
        keys = jax.random.split(stream(config.seed, "corruption", step), len(images))
        return corrupted_batch(images, keys, config.masked_patches, stride)

    return prepare_fn


def make_batch_loss(forward: Forward) -> BatchLoss:
    """Returns batch_loss_fn(params, batch, key), the mean over all corrupted patches."""

    def batch_loss_fn(params: Any, batch: Batch, key: jax.Array) -> Float[Array, ""]:
        logits = forward(params, batch, key=key)
        return corrupted_loss(logits, batch["colour"], batch["corrupted"])

    return batch_loss_fn


def corrupted_loss(
    logits: Float[Array, "B N C"], colour: Int[Array, "B N"], corrupted: Bool[Array, "B N"]
) -> Float[Array, ""]:
    """Returns the mean softmax cross-entropy over the corrupted patches, float32.

    Every image has as many of them, so that the mean over microbatches is that over the batch.
    """
    losses = patch_losses(logits, colour)
    return jnp.sum(jnp.where(corrupted, losses, 0)) / jnp.sum(corrupted)
