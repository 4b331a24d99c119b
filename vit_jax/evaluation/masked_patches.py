"""How well colours of corrupted patches are told: exact, each example once, always the same."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, UInt8

from vit_jax.config.task import MaskedPatchesConfig
from vit_jax.data.colours import colour_classes, content_key
from vit_jax.data.device import Batch, to_unit_range
from vit_jax.evaluation.classification import EvalStep, Sums, prediction_sums
from vit_jax.models.corruption import Corruption, draw_corruption
from vit_jax.models.placement import constrain

# Of what is corrupted in evaluation: the same in every run, whatever its seed.
_SEED = 0


def make_eval_step(
    forward: Callable[..., Any], config: MaskedPatchesConfig, stride: int
) -> EvalStep:
    """Returns eval_step_fn(params, batch) -> sums over the corrupted patches of valid examples.

    What is corrupted of an image depends on its pixels alone: the same in every evaluation, in any
    batch, at any place in it.

    Args:
        forward: (params, prepared batch) -> logits f32[B, N, C].
        config: shares and bits.
        stride: pixels between neighbouring patches.
    """

    def eval_step_fn(params: Any, batch: Batch) -> Sums:
        ready = evaluation_batch(batch["image"], config, stride)
        logits = forward(params, ready)
        counted = ready["corrupted"] & batch["mask"][:, None]
        sums = prediction_sums(
            logits.reshape(-1, logits.shape[-1]),
            ready["colour"].reshape(-1),
            counted.reshape(-1),
            patch_losses,
        )
        return sums | {"examples": jnp.sum(batch["mask"])}

    return eval_step_fn


def evaluation_batch(
    images: UInt8[Array, "B H W 3"], config: MaskedPatchesConfig, stride: int
) -> Batch:
    """Returns what `corrupted_batch` does, drawn by the pixels of each image."""
    return corrupted_batch(to_unit_range(images), content_key(_SEED, images), config, stride)


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


def patch_losses(logits: Float[Array, "*B C"], labels: Int[Array, "*B"]) -> Float[Array, "*B"]:
    """Returns the softmax cross-entropy of each patch's colour, float32."""
    return optax.losses.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), labels
    )
