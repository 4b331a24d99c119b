"""Reads config.json files of earlier versions.

Earlier versions wrote a ViT's options for every model, and `mesh.gradient_dtype`. Such a key is
dropped if it has its default, because leaving it out means the same. With another value the config
is refused, with an error that names the key. `logging.profile_steps` is now `profile.steps`.
"""

from collections.abc import Mapping
from typing import Any

from vit_jax.errors import ConfigError


def upgrade_config(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the config of a run to this version.

    Args:
        mapping: content of a config.json.

    Raises:
        ConfigError: the run set `mesh.gradient_dtype`.
    """
    upgraded = dict(mapping)
    if isinstance(mapping.get("model"), Mapping):
        upgraded["model"] = upgrade_model(mapping["model"])
    mesh = mapping.get("mesh")
    if isinstance(mesh, Mapping):
        if mesh.get("gradient_dtype") is not None:
            raise ConfigError(
                f"is {mesh['gradient_dtype']!r}, and this version has no such key",
                "a run that did not set it",
                "remove it from config.json; gradients are then summed as float32",
                key="mesh.gradient_dtype",
            )
        upgraded["mesh"] = {k: v for k, v in mesh.items() if (k, v) != ("gradient_dtype", None)}
    logging = mapping.get("logging")
    if isinstance(logging, Mapping) and "profile_steps" in logging:
        steps = logging["profile_steps"]
        upgraded["logging"] = {k: v for k, v in logging.items() if k != "profile_steps"}
        if steps is not None:
            upgraded["profile"] = {"steps": f"{steps[0]}:{steps[1]}"}
    return upgraded


def upgrade_model(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a model section to this version.

    Args:
        mapping: model section of a config.json.
    """
    from vit_jax.models.registry import options_class  # Imports JAX.
    from vit_jax.models.vit_options import ViTConfig

    own, vit = options_class(mapping).model_fields, ViTConfig.model_fields

    def is_dropped(key: str, value: Any) -> bool:
        # A ResNet now has a pooling of its own, and a class token is still none of its values.
        is_foreign = key not in own or (key == "pooling" and own[key].default != value == "token")
        return is_foreign and key in vit and value == vit[key].default

    return {key: value for key, value in mapping.items() if not is_dropped(key, value)}
