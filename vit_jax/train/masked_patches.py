"""The task of masked patch prediction: the colours of corrupted patches, from what is around them.

Source: arXiv:2010.11929, B.1.2.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from vit_jax.config import Config
from vit_jax.config_task import MaskedPatchesConfig
from vit_jax.data.colours import colour_classes, content_key
from vit_jax.data.device import Batch, flip, to_unit_range
from vit_jax.evaluation.classification import EvalStep, Sums, prediction_sums
from vit_jax.models.corruption import Corruption, draw_corruption
from vit_jax.models.flops import forward_macs
from vit_jax.models.registry import build_model, resolve
from vit_jax.models.vit import ViT, ViTShape
from vit_jax.parallel.placement import constrain
from vit_jax.rng import stream
from vit_jax.train.task import BatchLoss, Forward, Prepare, Task

# Of what is corrupted in evaluation: the same in every run, whatever its seed.
_EVALUATION_SEED = 0


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


def corrupted_batch(
    images: Float[Array, "B H W 3"], keys: jax.Array, config: MaskedPatchesConfig, stride: int
) -> Batch:
    """Returns what the loss reads.

    Args:
        images: in [-1, 1].
        keys: a random key an image.
        config: shares and bits.
        stride: pixels between neighbouring patches.
    """
    colour = colour_classes(images, stride, config.bits)

    def draw(key: jax.Array) -> tuple[Bool[Array, " N"], Corruption]:
        return draw_corruption(
            key, colour.shape[1], share=config.corrupt, mask=config.mask, random=config.random
        )

    corrupted, corruption = jax.vmap(draw)(keys)
    made = {
        "colour": colour,
        "corrupted": corrupted,
        "source": corruption.source,
        "hidden": corruption.hidden,
    }
    return {"image": images, **{name: constrain(leaf, "batch") for name, leaf in made.items()}}


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
    losses = _losses(logits, colour)
    return jnp.sum(jnp.where(corrupted, losses, 0)) / jnp.sum(corrupted)


def make_eval_step(forward: Forward, config: MaskedPatchesConfig, stride: int) -> EvalStep:
    """Returns eval_step_fn(params, batch) -> sums over the corrupted patches of valid examples.

    What is corrupted of an image depends on its pixels alone: the same in every evaluation, in any
    batch, at any place in it.

    Args:
        forward: the model.
        config: shares and bits.
        stride: pixels between neighbouring patches.
    """

    def eval_step_fn(params: Any, batch: Batch) -> Sums:
        images, keys = to_unit_range(batch["image"]), content_key(_EVALUATION_SEED, batch["image"])
        ready = corrupted_batch(images, keys, config, stride)
        logits = forward(params, ready)
        counted = ready["corrupted"] & batch["mask"][:, None]
        sums = prediction_sums(
            logits.reshape(-1, logits.shape[-1]),
            ready["colour"].reshape(-1),
            counted.reshape(-1),
            _losses,
        )
        return sums | {"examples": jnp.sum(batch["mask"])}

    return eval_step_fn


def _losses(logits: Float[Array, "*B C"], labels: Int[Array, "*B"]) -> Float[Array, "*B"]:
    return optax.losses.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), labels
    )
