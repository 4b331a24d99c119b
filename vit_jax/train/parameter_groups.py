"""Groups of parameters by name: stacks of layers, decayed, frozen, with a rate of their layer."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import optax

from vit_jax.config.optimizer import OptimizerConfig
from vit_jax.errors import ConfigError, nearest
from vit_jax.named_tree import leaf_names, map_named
from vit_jax.parallel.sharding import match_first

# Matches the stack in the name of a parameter that has a leading axis over layers.
_STACK = re.compile(r"(.*?/)?blocks(?=/)")


def by_layer(base: optax.GradientTransformation, params: Any) -> optax.GradientTransformation:
    """Applies an optimizer to each layer of each stack separately, and to all other parameters."""

    def init(params: Any) -> Any:
        return jax.vmap(base.init)(params) if jax.tree.leaves(params) else base.init(params)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        if not jax.tree.leaves(updates):
            return base.update(updates, state, params)
        return jax.vmap(base.update)(updates, state, params)

    def label(name: str, _: Any) -> str:
        match = _STACK.match(name)
        return "plain" if match is None else match[0].replace("/", "_")

    def labels(params: Any) -> Any:
        return map_named(label, params)

    # One transformation for each stack, because their depths differ.
    each = optax.GradientTransformation(init, update)
    stacks = {label for label in jax.tree.leaves(labels(params)) if label != "plain"}
    return optax.partition({"plain": base, **dict.fromkeys(sorted(stacks), each)}, labels)


def weight_decay_mask(config: OptimizerConfig, params: Any) -> Any:
    """Returns a tree of bools: whether weight decay applies to each parameter."""
    key = "optimizer.weight_decay_mask"
    return map_named(lambda name, _: match_first(name, config.weight_decay_mask, key), params)


def check_weight_decay(config: OptimizerConfig, params: Any) -> None:
    """Raises ConfigError if a parameter has no pattern, or weight decay applies to no parameter."""
    decays = any(jax.tree.leaves(weight_decay_mask(config, params)))
    if config.weight_decay and not decays:
        patterns = ", ".join(pattern for pattern, decayed in config.weight_decay_mask if decayed)
        raise ConfigError(
            f"decays {patterns or 'nothing'}, which matches no parameter",
            f"patterns that match parameters such as {leaf_names(params)[-1]}",
            "correct it, or set optimizer.weight_decay=0",
            key="optimizer.weight_decay_mask",
        )


def freeze_labels(patterns: tuple[str, ...], params: Any) -> Any:
    """Returns a tree of "frozen" or "trained"."""
    names = leaf_names(params)
    for pattern in patterns:
        if not any(re.fullmatch(pattern, name) for name in names):
            raise ConfigError(
                f"has {pattern!r}, which matches no parameter",
                "regular expressions over whole names",
                f"did you mean {nearest(pattern, names)!r}?",
                key="optimizer.freeze",
            )
    labels = map_named(lambda name, _: "frozen" if _matches(patterns, name) else "trained", params)
    if "trained" not in jax.tree.leaves(labels):
        raise ConfigError(
            "matches every parameter",
            "something left to train",
            "narrow it",
            key="optimizer.freeze",
        )
    return labels


def without_gradients(config: OptimizerConfig, params: Any) -> Any:
    """Stops the gradients of parameters that are frozen for the whole run."""
    if not config.freeze or config.freezes_for_a_while:
        return params

    def stop(name: str, leaf: Any) -> Any:
        return jax.lax.stop_gradient(leaf) if _matches(config.freeze, name) else leaf

    return map_named(stop, params)


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def scale_each(scales: Mapping[str, np.ndarray]) -> optax.GradientTransformation:
    """Multiplies each update by its scale; `scales` may include frozen parameters."""

    def update(updates: Any, params: Any = None) -> Any:
        del params
        return map_named(lambda name, u: u * scales[name].astype(u.dtype), updates)

    return optax.stateless(update)


def layer_scales(layers: Mapping[str, np.ndarray], decay: float) -> dict[str, np.ndarray]:
    """Returns the learning-rate factor of each parameter, decay ** (layers below the head).

    The layer of the head has the factor 1. `layers` are those of `models.registry.layer_indices`.
    Parameters of a stack get a vector over their leading axis.

    Source: arXiv:2106.08254, appendix; as in MAE (arXiv:2111.06377), Table 9.
    """
    last = max(int(layer.max()) for layer in layers.values())
    return {n: np.asarray(decay ** (last - layer), np.float32) for n, layer in layers.items()}
