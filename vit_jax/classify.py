"""Classifies images with a model: classes and their probabilities."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, UInt8

from vit_jax.data.class_names import spare_name
from vit_jax.data.preprocess import preprocess_of
from vit_jax.errors import NonFiniteError, WeightsError
from vit_jax.models.family import ImageModel
from vit_jax.models.registry import family_of

BATCH_SIZE = 32
"""Images per call of the model."""
_IMAGENET = Path(__file__).resolve().parent / "interop" / "imagenet2012_classes.txt"


class Prediction(NamedTuple):
    """The classes of some images.

    Attributes:
        classes: name of the most probable class of each image.
        probabilities: of each image and class, in the order of `class_names`.
        class_names: names of all classes.
    """

    classes: list[str]
    probabilities: Float[np.ndarray, "B C"]
    class_names: tuple[str, ...]


def predict(model: ImageModel, images: Any) -> Prediction:
    """Classifies images, preprocessed as they were when the model's weights were evaluated.

    Args:
        model: of `load_pretrained`, `load_run(...).load_model()` or `create_model`.
        images: a path, a PIL image, a uint8 array [H, W, 3] or [B, H, W, 3], or a list of these.

    Raises:
        WeightsError: the model has no classes.
        DataError: an image that cannot be read.
        NonFiniteError: the model's output is NaN or infinite.

    >>> classes, probabilities, names = predict(model, ["cat.jpg", "dog.jpg"])  # doctest: +SKIP
    """
    if not hasattr(model, "config") or not callable(model):
        raise WeightsError(
            f"{type(model).__name__} as a model",
            "a model",
            "pass vit_jax.load_pretrained(FILE) or vit_jax.load_run(RUN).load_model()",
        )
    if not family_of(model.config.name).has_classes or _lacks_head(model):
        raise WeightsError(
            f"a {type(model).__name__} without a head of classes",
            "a model with classes",
            "use a fine-tuned one",
        )
    pixels = preprocess_of(model).pixels_of_each(images)
    parts = [pixels[start : start + BATCH_SIZE] for start in range(0, len(pixels), BATCH_SIZE)]
    found = np.concatenate([probabilities(model, part) for part in parts])
    bad = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(bad):
        raise not_finite(f"image {bad[0]}")
    names = class_names_of(model, found.shape[1])
    return Prediction([names[best] for best in found.argmax(axis=1)], found, names)


def _lacks_head(model: ImageModel) -> bool:
    return getattr(getattr(model, "head", None), "linear", True) is None


def class_names_of(model: ImageModel, num_classes: int) -> tuple[str, ...]:
    """Returns the names of a model's classes: its own, those of ImageNet, or numbers."""
    if model.class_names is not None:
        return model.class_names
    if num_classes == 1000:
        return tuple(_IMAGENET.read_text(encoding="utf-8").splitlines())
    return tuple(map(spare_name, range(num_classes)))


def probabilities(
    model: ImageModel, pixels: Sequence[UInt8[np.ndarray, "H W 3"]]
) -> Float[np.ndarray, "B C"]:
    """Returns the probabilities of at most `BATCH_SIZE` preprocessed images."""
    size = min(BATCH_SIZE, 1 << (len(pixels) - 1).bit_length())  # Few sizes, for few compilations.
    padded = np.zeros((size, *pixels[0].shape), np.float32)
    padded[: len(pixels)] = pixels
    found = np.asarray(_probabilities(model, jnp.asarray(padded / np.float32(127.5) - 1)))
    return found[: len(pixels)]


@nnx.jit
def _probabilities(model: Any, images: jax.Array) -> jax.Array:
    return jax.nn.softmax(model(images))


def not_finite(image: str) -> NonFiniteError:
    """Returns the error for an image of which the model's output is not finite."""
    return NonFiniteError(
        f"{image}: the model's output is NaN or infinite",
        "finite numbers",
        "check the weights, e.g. that they are not damaged",
    )
