"""How well the worst class does."""

import numpy as np

import vit_jax


@vit_jax.register_metric(direction="higher", bounds=(0, 1), unit="%")
def worst_class(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the smallest accuracy of a class. Logits are f32[N, C], labels i32[N]."""
    right = logits.argmax(axis=1) == labels
    return min(right[labels == label].mean() for label in np.unique(labels))
