"""The task of masked patch prediction: corrupt patches and predict their mean colours.

Source: arXiv:2010.11929, B.1.2.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, UInt8

from vit_jax.config.run import Config
from vit_jax.data.colours import colour_classes, content_key
from vit_jax.data.device import Batch, to_unit_range
from vit_jax.evaluation.classification import prediction_metrics, predictions_of
from vit_jax.evaluation.metric_totals import MetricTotals
from vit_jax.models.activation_sharding import constrain
from vit_jax.models.family import as_images
from vit_jax.models.flops import forward_macs, training_flops
from vit_jax.models.vit import ViT, learned_tokens
from vit_jax.models.vit_family import vit_shape
from vit_jax.models.vit_options import ViTConfig
from vit_jax.tasks.image_task import ImageTask
from vit_jax.tasks.masked_patches.config import MaskedPatchesConfig
from vit_jax.tasks.masked_patches.corruption import corrupt, draw_corruption
from vit_jax.tasks.task import TASK_CLASSES, DataInfo, Metrics

# Seed of the corruption in evaluation. It is the same for all runs, whatever their seed.
_EVAL_SEED = 0


@TASK_CLASSES.register
class MaskedPatches(ImageTask):
    """Predicts the mean colours of corrupted patches. Labels of the data are not used."""

    section: MaskedPatchesConfig

    def __init__(self, config: Config, data: DataInfo, *, platform: str):
        assert isinstance(config.task, MaskedPatchesConfig)
        outputs = config.task.num_colours
        super().__init__(config, data, platform=platform, num_outputs=outputs)
        self.stride = config.data.image_size // self.abstract.grid[0]
        self.metrics = prediction_metrics(outputs)

    def build(self, key: jax.Array) -> "MaskedViT":
        side = self.config.data.image_size
        return MaskedViT(
            self.config.model,  # pyright: ignore[reportArgumentType]
            num_classes=self.num_outputs,
            image_size=(side, side),
            platform=self.platform,
            rngs=nnx.Rngs(params=key),
        )

    @functools.cached_property
    def flops_per_image(self) -> int:
        model, side = self.abstract, self.config.data.image_size
        encoder = forward_macs(self.config.model, num_classes=0, image_size=(side, side))
        heads = model.head.num_features * self.num_outputs * math.prod(model.grid)
        return training_flops(encoder + heads)

    def prepare(self, batch: Batch, step: jax.Array) -> Batch:
        images = self.augment(batch, step)["image"]
        keys = jax.random.split(self.random_key("corruption", step), len(images))
        return corrupted_batch(images, keys, self.section, self.stride)

    def loss(self, params: Any, batch: Batch, key: jax.Array) -> tuple[Float[Array, ""], Metrics]:
        logits = self.model(params).predict(batch, key=key)
        return corrupted_loss(logits, batch["colour"], batch["corrupted"]), {}

    def eval_step(self, params: Any, batch: Batch) -> dict[str, Any]:
        ready = evaluation_batch(batch["image"], self.section, self.stride)
        logits = self.model(params).predict(ready)
        counted = ready["corrupted"] & batch["mask"][:, None]
        predictions = predictions_of(
            logits.reshape(-1, logits.shape[-1]),
            ready["colour"].reshape(-1),
            counted.reshape(-1),
            patch_losses,
        )
        sums = {name: metric.sums(predictions) for name, metric in self.metrics.items()}
        return {**sums, "examples": jnp.sum(batch["mask"])}

    def totals(self, class_names: Sequence[str]) -> MetricTotals:
        del class_names
        return MetricTotals(self.metrics)


class MaskedViT(ViT):
    """A ViT with a mask token, whose head predicts the colour of each patch."""

    def __init__(self, options: ViTConfig, *, rngs: nnx.Rngs, **sizes: Any):
        shape = vit_shape(options)
        super().__init__(shape, options, rngs=rngs, **sizes)
        self.mask_token = learned_tokens(1, shape.width, rngs)

    def predict(self, batch: Batch, *, key: jax.Array | None = None) -> Float[Array, "B N C"]:
        """Returns the logits of all patches of a corrupted batch, f32; `key` turns dropout on."""
        images = as_images(batch["image"], self.image_size)
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        patches = self.embed_patches(images)
        patches = corrupt(patches, batch["source"], batch["hidden"], self.mask_token[...])
        encoded, _ = self.encode(self.embed(constrain(patches, "batch"), key=keys[0]), key=keys[1])
        return self.head(encoded[:, self.num_prefix :])[0]


def corrupted_batch(
    images: Float[Array, "B H W 3"], keys: jax.Array, config: MaskedPatchesConfig, stride: int
) -> Batch:
    """Draws the corruption of each image in [-1, 1], with one random key per image.

    Returns:
        "image" as given; "colour" i32[B, N], the class of each patch's mean colour; what
        `draw_corruption` returns for each image.
    """
    colour = colour_classes(images, stride, config.bits)

    def draw(key: jax.Array) -> dict[str, Array]:
        return draw_corruption(
            key, colour.shape[1], share=config.corrupt, mask=config.mask, random=config.random
        )

    made = {"colour": colour, **jax.vmap(draw)(keys)}
    return {"image": images, **{name: constrain(leaf, "batch") for name, leaf in made.items()}}


def evaluation_batch(
    images: UInt8[Array, "B H W 3"], config: MaskedPatchesConfig, stride: int
) -> Batch:
    """Returns `corrupted_batch` with keys from each image's pixels: equal in every evaluation."""
    return corrupted_batch(to_unit_range(images), content_key(_EVAL_SEED, images), config, stride)


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
