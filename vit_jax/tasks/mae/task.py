"""The task of the masked autoencoder: predict the pixels of hidden patches from visible ones.

The encoder computes only the visible patches, a quarter of an image.

Source: arXiv:2111.06377.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from vit_jax.config.run import Config
from vit_jax.data.colours import content_key
from vit_jax.data.device import Batch, from_imagenet, to_imagenet, to_unit_range
from vit_jax.evaluation.metric_totals import MetricTotals
from vit_jax.evaluation.metrics import Mean, mean_sums
from vit_jax.models.activation_sharding import constrain
from vit_jax.models.embedding import cut_patches
from vit_jax.models.flops import traced_macs, training_flops
from vit_jax.models.vit_family import vit_shape
from vit_jax.tasks.collapse import METRIC, feature_std
from vit_jax.tasks.image_task import ImageTask
from vit_jax.tasks.mae.config import MaeConfig
from vit_jax.tasks.mae.model import MaskedAutoencoder
from vit_jax.tasks.task import TASK_CLASSES, DataInfo, Metrics

# Seed of the masks in evaluation. They are the same for all runs, whatever their seed.
_EVAL_SEED = 0


@TASK_CLASSES.register
class Mae(ImageTask):
    """Predicts the pixels of hidden patches. Labels of the data are not used."""

    section: MaeConfig

    def __init__(self, config: Config, data: DataInfo, *, platform: str):
        super().__init__(config, data, platform=platform)
        model, shape = self.abstract, vit_shape(config.model)  # pyright: ignore[reportArgumentType]
        self.num_patches = model.num_tokens - model.num_prefix
        # What encoder and decoder keep, as a multiple of an encoder that sees all patches.
        encoder = (model.num_prefix + model.num_visible) / model.num_tokens
        decoder = self.section.decoder_width * self.section.decoder_depth
        self.activations = encoder + decoder / (shape.width * shape.depth)

    def build(self, key: jax.Array) -> MaskedAutoencoder:
        return MaskedAutoencoder(
            self.config.model,  # pyright: ignore[reportArgumentType]
            self.section,
            image_size=self.config.data.image_size,
            platform=self.platform,
            rngs=nnx.Rngs(params=key),
        )

    @functools.cached_property
    def flops_per_image(self) -> int:
        """Model FLOPs of the visible tokens in the encoder, and of the decoder."""
        # One scanned block is quick to trace, and attention must be traceable on any platform.
        options = self.config.model.on_any_platform().replace(scan=True, remat="none")
        task = Mae(self.config.replace(model=options), self.data, platform="cpu")
        side = self.config.data.image_size
        images = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
        order = jax.ShapeDtypeStruct((1, self.num_patches), jnp.int32)
        params = nnx.to_pure_dict(nnx.state(task.abstract))
        macs = traced_macs(lambda p, *args: task.model(p).reconstruct(*args), params, images, order)
        return training_flops(macs)

    def prepare(self, batch: Batch, step: jax.Array) -> Batch:
        images = self.augment(batch, step)["image"]
        keys = jax.random.split(self.random_key("mask", step), len(images))
        return masked_batch(images, keys, self.num_patches)

    def losses(
        self, params: Any, batch: Batch, key: jax.Array | None = None
    ) -> tuple[Float[Array, " B"], Float[Array, "B D"]]:
        """Returns the loss of each image, and the features of its visible patches."""
        model, order = self.model(params), batch["order"]
        pixels, features = model.reconstruct(batch["image"], order, key=key)
        patch, normalize = model.patch_embedding.patch_size, self.section.normalize_pixels
        target = pixel_targets(batch["target_image"], patch, normalize=normalize)
        return hidden_losses(pixels, target, hidden_patches(order, model.num_visible)), features

    def loss(self, params: Any, batch: Batch, key: jax.Array) -> tuple[Float[Array, ""], Metrics]:
        losses, features = self.losses(params, batch, key)
        return losses.mean(), {METRIC: feature_std(features)}

    def eval_step(self, params: Any, batch: Batch) -> dict[str, Any]:
        """An image's mask depends only on its pixels: it is the same in every evaluation."""
        losses, _ = self.losses(params, evaluation_batch(batch["image"], self.num_patches))
        return {"loss": mean_sums(losses, batch["mask"]), "examples": jnp.sum(batch["mask"])}

    def totals(self, class_names: Sequence[str]) -> MetricTotals:
        del class_names
        return MetricTotals({"loss": Mean()})


def masked_batch(images: Float[Array, "B H W 3"], keys: jax.Array, num_patches: int) -> Batch:
    """Returns "image", "target_image" and "order" i32[B, N]: each image's patches in random order.

    The first patches of this order are the visible ones. The pixels to predict are those of the
    target image: the same image, normalised by ImageNet's mean and deviation for all datasets, as
    in the authors' code. `images` are in [-1, 1], and each has one of the `keys`.
    """

    def draw(key: jax.Array) -> Int[Array, " N"]:
        return jax.random.permutation(key, num_patches).astype(jnp.int32)

    return {
        "image": images,
        "target_image": to_imagenet(images),
        "order": constrain(jax.vmap(draw)(keys), "batch"),
    }


def from_target(pixels: Float[Array, "B N F"]) -> Float[Array, "B N F"]:
    """Returns patches of a target image in [-1, 1], as patches of its image."""
    colours = pixels.reshape(*pixels.shape[:2], -1, 3)
    return from_imagenet(colours).reshape(pixels.shape)


def hidden_patches(order: Int[Array, "B N"], visible: int) -> Float[Array, "B N"]:
    """Returns 1 for hidden patches and 0 for the first `visible` of the order.

    >>> hidden_patches(jnp.array([[2, 0, 1]]), 1)
    Array([[1., 1., 0.]], dtype=float32)
    """
    return (jnp.argsort(order) >= visible).astype(jnp.float32)


def pixel_targets(
    images: Float[Array, "B H W 3"], patch: int, *, normalize: bool
) -> Float[Array, "B N F"]:
    """Returns the pixels to predict of all patches of target images.

    `normalize` subtracts each patch's mean, and divides by sqrt(variance + 1e-6). As in the
    authors' code, the variance is a sum divided by F - 1.
    """
    pixels = cut_patches(images.astype(jnp.float32), patch)
    if not normalize:
        return pixels
    mean = jnp.mean(pixels, axis=-1, keepdims=True)
    variance = jnp.var(pixels, axis=-1, keepdims=True, ddof=1)
    return (pixels - mean) * jax.lax.rsqrt(variance + 1e-6)


def hidden_losses(
    pixels: Float[Array, "B N F"], target: Float[Array, "B N F"], hidden: Float[Array, "B N"]
) -> Float[Array, " B"]:
    """Returns each image's mean squared error over the pixels of its hidden patches."""
    errors = jnp.mean(jnp.square(pixels - target), axis=-1)
    return jnp.sum(errors * hidden, axis=-1) / jnp.sum(hidden, axis=-1)


def evaluation_batch(images: jax.Array, num_patches: int) -> Batch:
    """Returns `masked_batch` of u8 images with keys that depend only on each image's pixels."""
    return masked_batch(to_unit_range(images), content_key(_EVAL_SEED, images), num_patches)
