"""Folds the image normalisation that weights expect into the patch embedding."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data.device import IMAGENET_DEVIATION, IMAGENET_MEAN
from vit_jax.errors import ARGUMENT, WeightsError

# (mean, standard deviation) of each channel of an image in [0, 1].
Normalization = tuple[tuple[float, ...], tuple[float, ...]]

# Maps [0, 1] to [-1, 1], the input range of all models of this package.
OURS: Normalization = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
NORMALIZATIONS: dict[str, Normalization] = {
    "half": OURS,
    "imagenet": (IMAGENET_MEAN, IMAGENET_DEVIATION),
}


def normalization_of(mean: Any, std: Any) -> Normalization | None:
    """Returns the normalisation in a config.json, or None. Channels may share one number."""
    if mean is None or std is None:
        return None
    mean, std = ([part] * 3 if isinstance(part, int | float) else part for part in (mean, std))
    return checked_normalization((tuple(mean), tuple(std)))


def checked_normalization(given: Any) -> Normalization:
    """Returns a mean and a positive standard deviation of three channels as floats."""
    try:
        mean, std = (tuple(float(value) for value in part) for part in given)
    except (TypeError, ValueError):
        mean, std = (), ()
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise WeightsError(
            f"normalisation {given}",
            "mean and positive standard deviation, three values each",
            f"correct the config.json next to the weights, or give {ARGUMENT}=",
            argument="normalization",
        )
    return mean, std


def fold_normalization(
    params: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
    normalization: Normalization,
) -> dict[str, np.ndarray]:
    """Returns parameters whose patch embedding takes images in [-1, 1].

    The weights expect ((x + 1) / 2 - mean) / std for an image x in [-1, 1]. This is affine in x,
    and so is the patch embedding, so both combine into one kernel and bias. A first layer that is a
    convolution with padding is refused: its padding of 0 has another meaning after normalisation.
    `shapes` has all parameters of the model, `params` those that were loaded.
    """
    tower = "image/" if "image/patch_embedding/kernel" in shapes else ""
    kernel_name, bias_name = (f"{tower}patch_embedding/{leaf}" for leaf in ("kernel", "bias"))
    if shapes.get(kernel_name, ())[2:3] != (3,):
        raise WeightsError(
            f"weights for images normalised by {normalization}, with a first layer that pads",
            "a model that cuts patches out of the image, or weights for images in [-1, 1]",
            "normalise the images yourself",
        )
    if kernel_name not in params:  # A newly initialised embedding takes [-1, 1].
        return dict(params)
    mean, std = (np.asarray(part, np.float32) for part in normalization)
    scale, shift = 0.5 / std, (0.5 - mean) / std
    kernel = np.asarray(params[kernel_name], np.float64)
    bias = np.asarray(params[bias_name], np.float64) + np.einsum("pqcd,c->d", kernel, shift)
    return {
        **params,
        kernel_name: np.asarray(kernel * scale[:, None], np.float32),
        bias_name: np.asarray(bias, np.float32),
    }
