"""Weights made for other pixel values than [-1, 1], folded into the patch embedding."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import WeightsError

# (mean, standard deviation) of each channel of an image in [0, 1].
Normalization = tuple[tuple[float, ...], tuple[float, ...]]

# What makes [0, 1] to [-1, 1], as all models here take it.
OURS: Normalization = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
# The usual ones by name.
NORMALIZATIONS: dict[str, Normalization] = {
    "half": OURS,
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def normalization_of(mean: Any, std: Any) -> Normalization | None:
    """Returns what a file's config says, where it says something else than ours.

    Args:
        mean: of each channel, as in JSON, or None.
        std: of each channel, as in JSON, or None.
    """
    if mean is None or std is None:
        return None
    mean, std = ([part] * 3 if isinstance(part, int | float) else part for part in (mean, std))
    found = checked((tuple(mean), tuple(std)))
    return None if found == OURS else found


def checked(given: Any) -> Normalization:
    """Returns a mean and a standard deviation of three channels as floats.

    Raises:
        WeightsError: they are something else.
    """
    try:
        mean, std = (tuple(float(value) for value in part) for part in given)
    except (TypeError, ValueError):
        mean, std = (), ()
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise WeightsError(
            f"normalisation {given}", "mean and positive standard deviation, three values each",
            "correct the config.json beside the weights, or give normalization=",
        )  # fmt: skip
    return mean, std


def fold(
    params: Mapping[str, np.ndarray], normalization: Normalization
) -> dict[str, np.ndarray]:  # fmt: skip
    """Returns parameters whose patch embedding takes [-1, 1] where it took normalised images.

    An image x in [-1, 1] is ((x + 1) / 2 - mean) / std to the weights, which is linear in x, as the
    embedding is.

    Args:
        params: name -> parameter.
        normalization: mean and standard deviation that the weights were made for.

    Raises:
        WeightsError: a hybrid or ResNet, whose padding is 0 before and not after normalising.
    """
    if any(name.startswith(("stem/", "trunk/")) for name in params):
        raise WeightsError(
            f"weights for images normalised by {normalization} whose first layer pads",
            "a ViT, or weights for images in [-1, 1]",
            "normalise the images yourself",
        )
    if "patch_embedding/kernel" not in params:  # A new one takes [-1, 1].
        return dict(params)
    mean, std = (np.asarray(part, np.float32) for part in normalization)
    scale, shift = 0.5 / std, (0.5 - mean) / std
    kernel = np.asarray(params["patch_embedding/kernel"], np.float64)
    bias = np.asarray(params["patch_embedding/bias"], np.float64)
    bias = bias + np.einsum("pqcd,c->d", kernel, shift)
    return {
        **params,
        "patch_embedding/kernel": np.asarray(kernel * scale[:, None], np.float32),
        "patch_embedding/bias": np.asarray(bias, np.float32),
    }
