"""The task of masked patch prediction: corrupt patches and predict their mean colours.

Source: arXiv:2010.11929, B.1.2.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, UInt8

from vit_jax.config.run import Config
from vit_jax.data.colours import colour_classes, content_key
from vit_jax.data.device import Batch, flip, to_unit_range
from vit_jax.evaluation.classification import PredictionTotals, prediction_sums
from vit_jax.evaluation.loop import EvalStep
from vit_jax.models.activation_sharding import constrain
from vit_jax.models.family import check_images
from vit_jax.models.flops import forward_macs, training_flops
from vit_jax.models.vit import ViT, learned_tokens
from vit_jax.models.vit_family import vit_shape
from vit_jax.models.vit_options import ViTConfig
from vit_jax.rng import stream
from vit_jax.tasks.classification.task import labelled_images
from vit_jax.tasks.masked_patches.config import MaskedPatchesConfig
from vit_jax.tasks.masked_patches.corruption import Corruption, corrupt, draw_corruption
from vit_jax.tasks.task import BatchLoss, DataInfo, Metrics, Prepare, Task

# Seed of the corruption in evaluation. It is the same for all runs, whatever their seed.
_EVAL_SEED = 0


def build_task(config: Config, data: DataInfo, *, platform: str) -> Task:
    """Returns the task. Labels of the data are read but not used."""
    side, section = config.data.image_size, config.masked_patches
    outputs = section.num_colours

    def build(key: jax.Array) -> MaskedViT:
        return build_masked_vit(config, key=key, platform=platform)

    abstract = nnx.eval_shape(build, jax.random.key(0))
    graphdef, stride = nnx.graphdef(abstract), side // abstract.grid[0]
    macs = forward_macs(
        config.model, num_classes=outputs, image_size=(side, side), head_per_patch=True
    )
    train_preprocessing, eval_preprocessing = labelled_images(config, data.num_classes)
    return Task(
        build=build,
        graphdef=graphdef,
        num_outputs=outputs,
        flops_per_image=training_flops(macs),
        train_preprocessing=train_preprocessing,
        eval_preprocessing=eval_preprocessing,
        prepare=make_prepare(config, stride),
        batch_loss=make_batch_loss(graphdef),
        splits_exactly=not config.model.draws_random_numbers,
        eval_step=make_eval_step(graphdef, section, stride),
        make_totals=lambda class_names: PredictionTotals(),
    )


def build_masked_vit(config: Config, *, key: jax.Array, platform: str | None = None) -> "MaskedViT":
    """Makes the model of a run of this task."""
    side = config.data.image_size
    return MaskedViT(
        config.model,  # pyright: ignore[reportArgumentType]
        num_classes=config.masked_patches.num_colours,
        image_size=(side, side),
        platform=platform,
        rngs=nnx.Rngs(params=key),
    )


class MaskedViT(ViT):
    """A ViT with a mask token, whose head predicts the colour of each patch."""

    def __init__(self, options: ViTConfig, *, rngs: nnx.Rngs, **sizes: Any):
        shape = vit_shape(options)
        super().__init__(shape, options, rngs=rngs, **sizes)
        self.mask_token = learned_tokens(1, shape.width, rngs)

    def predict(self, batch: Batch, *, key: jax.Array | None = None) -> Float[Array, "B N C"]:
        """Returns the logits of all patches of a corrupted batch, f32; `key` turns dropout on."""
        check_images(batch["image"], self.image_size)
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        corruption = Corruption(batch["source"], batch["hidden"])
        patches = corrupt(self.patches(batch["image"]), corruption, self.mask_token[...])
        encoded, _ = self.encode(self.embed(constrain(patches, "batch"), key=keys[0]), key=keys[1])
        return self.head(encoded[:, self.num_prefix :])[0]


def make_prepare(config: Config, stride: int) -> Prepare:
    """Returns prepare_fn(batch, step): scale u8 images to [-1, 1], flip them, draw the corruption.

    The random draws depend on (seed, step). `stride` is in pixels between neighbouring patches.
    """

    def prepare_fn(batch: Batch, step: jax.Array) -> Batch:
        images = batch["image"]
        if config.data.augment.flip:
            images = flip(images, stream(config.seed, "flip", step))
        images = to_unit_range(images)
        keys = jax.random.split(stream(config.seed, "corruption", step), len(images))
        return corrupted_batch(images, keys, config.masked_patches, stride)

    return prepare_fn


def corrupted_batch(
    images: Float[Array, "B H W 3"], keys: jax.Array, config: MaskedPatchesConfig, stride: int
) -> Batch:
    """Draws the corruption of each image in [-1, 1], with one random key per image.

    Returns:
        "image" as given; "colour" i32[B, N], the class of each patch's mean colour; "corrupted"
        bool[B, N], the patches that count in the loss; "source" and "hidden", see `Corruption`.
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


def evaluation_batch(
    images: UInt8[Array, "B H W 3"], config: MaskedPatchesConfig, stride: int
) -> Batch:
    """Returns `corrupted_batch` with keys from each image's pixels: equal in every evaluation."""
    return corrupted_batch(to_unit_range(images), content_key(_EVAL_SEED, images), config, stride)


def make_batch_loss(graphdef: nnx.GraphDef) -> BatchLoss:
    """Returns batch_loss_fn(params, batch, key), the mean loss over all corrupted patches."""

    def batch_loss_fn(
        params: Any, batch: Batch, key: jax.Array
    ) -> tuple[Float[Array, ""], Metrics]:
        logits = nnx.merge(graphdef, params).predict(batch, key=key)
        return corrupted_loss(logits, batch["colour"], batch["corrupted"]), {}

    return batch_loss_fn


def corrupted_loss(
    logits: Float[Array, "B N C"], colour: Int[Array, "B N"], corrupted: Bool[Array, "B N"]
) -> Float[Array, ""]:
    """Returns the mean softmax cross-entropy over the corrupted patches, float32.

    All images have the same number of corrupted patches, so the mean over microbatches is the mean
    over the batch.
    """
    losses = patch_losses(logits, colour)
    return jnp.sum(jnp.where(corrupted, losses, 0)) / jnp.sum(corrupted)


def patch_losses(logits: Float[Array, "*B C"], labels: Int[Array, "*B"]) -> Float[Array, "*B"]:
    """Returns the softmax cross-entropy of each patch's colour, float32."""
    return optax.losses.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), labels
    )


def make_eval_step(graphdef: nnx.GraphDef, config: MaskedPatchesConfig, stride: int) -> EvalStep:
    """Returns eval_step_fn(params, batch) -> sums over the corrupted patches of valid examples."""

    def eval_step_fn(params: Any, batch: Batch) -> dict[str, jax.Array]:
        ready = evaluation_batch(batch["image"], config, stride)
        logits = nnx.merge(graphdef, params).predict(ready)
        counted = ready["corrupted"] & batch["mask"][:, None]
        sums = prediction_sums(
            logits.reshape(-1, logits.shape[-1]),
            ready["colour"].reshape(-1),
            counted.reshape(-1),
            patch_losses,
        )
        return sums | {"examples": jnp.sum(batch["mask"])}

    return eval_step_fn
