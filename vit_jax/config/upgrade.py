"""Reads config.json files of earlier versions.

Earlier versions wrote the options of a ViT for every model, and `mesh.gradient_dtype`. Such a key is
dropped if it has its default, which means the same as leaving it out. With any other value it
stays, and the config is refused with an error that names it.
"""

from collections.abc import Mapping
from typing import Any


def upgrade_config(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's config as this version writes it.

    Args:
        mapping: content of a config.json.
    """
    upgraded = dict(mapping)
    if isinstance(mapping.get("model"), Mapping):
        upgraded["model"] = upgrade_model(mapping["model"])
    mesh = mapping.get("mesh")
    if isinstance(mesh, Mapping):
        upgraded["mesh"] = {k: v for k, v in mesh.items() if (k, v) != ("gradient_dtype", None)}
    return upgraded


def upgrade_model(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a model section as this version writes it.

    Args:
        mapping: model section of a config.json.
    """
    from vit_jax.models.registry import options_class  # Imports JAX.
    from vit_jax.models.vit import ViTConfig

    own, vit = options_class(mapping).model_fields, ViTConfig.model_fields

    def is_dropped(key: str, value: Any) -> bool:
        return key not in own and key in vit and value == vit[key].default

    return {key: value for key, value in mapping.items() if not is_dropped(key, value)}
