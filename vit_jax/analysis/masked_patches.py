"""What a model of masked patch prediction takes hidden patches to be."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from vit_jax.analysis.batches import map_batches, pixels_per_patch
from vit_jax.config.task import MaskedPatchesConfig
from vit_jax.errors import ModelError
from vit_jax.evaluation.masked_patches import evaluation_batch
from vit_jax.models.corruption import Corruption
from vit_jax.models.vit import ViT


@dataclasses.dataclass(frozen=True)
class MaskedPrediction:
    """Images, what a model was shown of them, and the colours that it predicts.

    Attributes:
        corrupted: over the grid of patches, those that are asked for.
        hidden: of them, those whose place the mask token takes.
        source: patch, counted in raster order, whose embedding stands at each place.
        colour: class of each patch's mean colour, see `data.colours`.
        predicted: class with the largest logit.
        bits: of a channel.
    """

    corrupted: Bool[np.ndarray, "M R C"]
    hidden: Bool[np.ndarray, "M R C"]
    source: Int[np.ndarray, "M R C"]
    colour: Int[np.ndarray, "M R C"]
    predicted: Int[np.ndarray, "M R C"]
    bits: int

    @property
    def accuracy(self) -> float:
        """Share of the corrupted patches whose colour is predicted exactly."""
        return float((self.predicted == self.colour)[self.corrupted].mean())


def masked_prediction(
    model: ViT,
    images: Float[np.ndarray, "M H W 3"],
    config: MaskedPatchesConfig,
    *,
    batch_size: int = 16,
) -> MaskedPrediction:
    """Returns what a model predicts of images that are corrupted as in evaluation.

    Args:
        model: with a mask token and a head of colours.
        images: in [-1, 1], of the model's size.
        config: as the model was trained.
        batch_size: images at once.

    Raises:
        ModelError: a model without a mask token.
        DataError: no images.
    """
    if model.mask_token is None:
        raise ModelError(
            "a model without a mask token", "one trained with task masked_patches",
            "give the run folder of one",
        )  # fmt: skip
    stride = pixels_per_patch(model)[0]

    def predict(model: ViT, images: jax.Array, places: jax.Array) -> dict[str, jax.Array]:
        del places
        levels = jnp.round((images + 1) * 127.5).astype(jnp.uint8)
        batch = evaluation_batch(levels, config, stride)
        corruption = Corruption(batch["source"], batch["hidden"])
        logits = model(batch["image"], corruption=corruption)
        assert isinstance(logits, jax.Array)
        batch["predicted"] = jnp.argmax(logits, axis=-1)
        return {name: leaf for name, leaf in batch.items() if name != "image"}

    found = map_batches(predict, model, images, batch_size)
    maps = {name: leaf.reshape(-1, *model.grid) for name, leaf in found.items()}
    return MaskedPrediction(**maps, bits=config.bits)
