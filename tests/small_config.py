"""The smallest config of a run, as a mapping."""

from typing import Any

from vit_jax.config.file import set_key


def small_mapping(**changes: Any) -> dict[str, Any]:
    """Returns the content of a config file; `optimizer__name="sgd"` sets `optimizer.name`."""
    mapping = {
        "model": {"name": "ViT-Ti/16"},
        "data": {"name": "digits", "global_batch_size": 128},
        "optimizer": {"learning_rate": 1e-3},
        "train_steps": 100,
    }
    for key, value in changes.items():
        set_key(mapping, key.replace("__", "."), value)
    return mapping
