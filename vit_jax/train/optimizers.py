"""The optax chain of a config: clip -> optimizer -> weight decay -> per-layer scale -> schedule."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.config.optimizer import OptimizerConfig
from vit_jax.errors import ConfigError, nearest
from vit_jax.models.registry import layers_of
from vit_jax.named_tree import leaf_names, map_named, named_leaves
from vit_jax.parallel.sharding import match_first

# Optimizers of optax that need more than gradients: a loss value, a key, gradients by example.
_NEED_MORE = {"lbfgs", "polyak_sgd", "noisy_sgd", "dpsgd"}
# Optimizers for which a rate of 1, scaled afterwards, is not the same as the rate itself.
_NOT_LINEAR = {"fromage", "rprop"}
# Optimizers that look at a tensor as a whole: its norm, its rows and columns.
_PER_TENSOR = {"adafactor", "lamb", "lars", "novograd", "sm3"}
# The part of a name that says which stack a parameter is in, with a leading axis over its layers.
_STACK = re.compile(r"(.*?/)?blocks(?=/)")

_STATE_DTYPE_KEYS = ("mu_dtype", "accumulator_dtype", "dtype_momentum")


def build_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule, params: Any
) -> optax.GradientTransformation:
    """Returns the whole update rule.

    The optimizer itself runs at learning rate 1, and everything after it is scaled by the schedule,
    so that weight decay, layer-wise rates and freezing mean the same with each of them. Optimizers
    with weight decay inside (lamb, lion, ...) get it there.

    Args:
        config: the optimizer section.
        schedule: step -> learning rate.
        params: parameters or their shapes, for masks by name.

    Raises:
        ConfigError: unknown optimizer or option, a parameter that no weight-decay pattern covers, a
            freeze pattern that matches nothing.
    """
    weight_decay_mask(config, params)  # Fails early where a parameter is not covered.

    # A function of the tree, since inside `partition` it lacks the frozen parameters.
    def mask(tree: Any) -> Any:
        return weight_decay_mask(config, tree)

    base, decays_inside = _base_optimizer(config, mask, params)
    parts = [base]
    if config.clip_global_norm is not None:
        parts.insert(0, optax.clip_by_global_norm(config.clip_global_norm))
    if config.weight_decay and not decays_inside:
        parts.append(optax.add_decayed_weights(-config.weight_decay, mask))
    if config.layer_decay < 1:
        parts.append(_scale_layers(layer_scales(params, config.layer_decay)))
    parts.append(optax.scale_by_schedule(schedule))
    chain = optax.chain(*parts)
    if not config.freeze:
        return chain
    labels = freeze_labels(config.freeze, params)
    return optax.partition({"trained": chain, "frozen": optax.set_to_zero()}, labels)


def _base_optimizer(
    config: OptimizerConfig, mask: Callable[[Any], Any], params: Any
) -> tuple[optax.GradientTransformation, bool]:
    """Returns the optimizer at learning rate 1 and whether it applies weight decay itself."""
    # adamw is adam with the decay that the chain adds anyway.
    name = "adam" if config.name == "adamw" else config.name
    function: Any = getattr(optax, name, None)
    parameters = _parameters(name)
    known = [*filter(_parameters, dir(optax)), "adamw"]
    if not parameters:
        raise ConfigError(
            f"'optimizer.name' is {config.name!r}",
            "adamw, adam, sgd, adafactor or another optimizer of optax that needs only gradients",
            f"did you mean {nearest(config.name, known)!r}?",
        )
    options = _checked_options(config, parameters)
    decays_inside = "weight_decay" in parameters and "mask" in parameters
    if decays_inside:
        options.update(weight_decay=config.weight_decay, mask=mask)
    try:
        base = function(learning_rate=1.0, **options)
        jax.eval_shape(base.init, {"kernel": jnp.zeros((2, 2))})
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"optimizer {config.name} with options {config.options}: {error}",
            "options that optax accepts",
            f"see optax.{name}",
        ) from None
    return (_by_layer(base, params) if name in _PER_TENSOR else base), decays_inside


def _checked_options(config: OptimizerConfig, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the optimizer's keyword arguments, checked by name and type of their defaults."""
    options = dict(config.options)
    for key, value in options.items():
        if key not in parameters or key in ("learning_rate", "weight_decay", "mask"):
            own = {"learning_rate", "weight_decay", "mask"}
            raise ConfigError(
                f"unknown option '{key}' of optimizer {config.name}",
                f"one of {', '.join(p for p in parameters if p not in own)}",
                f"did you mean 'optimizer.options.{nearest(key, set(parameters) - own)}'?"
                if key not in own
                else f"set optimizer.{key if key != 'mask' else 'weight_decay_mask'}",
            )
        kind = type(parameters[key].default)
        fits = isinstance(value, kind) or (kind is float and type(value) is int)
        if kind in (bool, int, float) and not fits:
            raise ConfigError(
                f"'optimizer.options.{key}' is {value!r}", f"a {kind.__name__}", "correct it"
            )
    if config.name == "sgd":
        options.setdefault("momentum", 0.9)
    if config.state_dtype != "float32":
        key = next((k for k in _STATE_DTYPE_KEYS if k in parameters), None)
        if key is None:
            raise ConfigError(
                f"'optimizer.state_dtype' is {config.state_dtype} with {config.name}",
                "an optimizer whose momentum type can be set (adamw, sgd, adafactor, ...)",
                "set it to float32",
            )
        options.setdefault(key, jnp.dtype(config.state_dtype))
    return options


def _by_layer(base: optax.GradientTransformation, params: Any) -> optax.GradientTransformation:
    """Applies an optimizer to each layer of each stack by itself, to all else as it is."""

    def init(params: Any) -> Any:
        return jax.vmap(base.init)(params) if jax.tree.leaves(params) else base.init(params)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        if not jax.tree.leaves(updates):
            return base.update(updates, state, params)
        return jax.vmap(base.update)(updates, state, params)

    def labels(params: Any) -> Any:
        stacks = [_stack_of(name) or "plain" for name in leaf_names(params)]
        return jax.tree.unflatten(jax.tree.structure(params), stacks)

    # One transformation a stack, since stacks differ in depth.
    by_layer = optax.GradientTransformation(init, update)
    stacks = {label for label in jax.tree.leaves(labels(params)) if label != "plain"}
    return optax.partition({"plain": base, **dict.fromkeys(sorted(stacks), by_layer)}, labels)


def _stack_of(name: str) -> str | None:
    """Returns a name of the stack that a parameter is in, e.g. "encoder_blocks"; None: in none."""
    match = _STACK.match(name)
    return None if match is None else match[0].replace("/", "_")


def _parameters(name: str) -> Mapping[str, Any]:
    """Returns the parameters of an optax optimizer that needs only gradients; empty for others."""
    function = getattr(optax, name, None)
    if function is None or inspect.isclass(function):
        return {}
    if name.startswith("_") or name in _NEED_MORE | _NOT_LINEAR:
        return {}
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # A type alias.
        return {}
    return parameters if "learning_rate" in parameters else {}


def weight_decay_mask(config: OptimizerConfig, params: Any) -> Any:
    """Returns a tree of bools: which parameters decay. Every parameter must match a pattern.

    Raises:
        ConfigError: a parameter that no pattern covers.
    """
    key = "optimizer.weight_decay_mask"
    decayed = [match_first(n, config.weight_decay_mask, key) for n in leaf_names(params)]
    return jax.tree.unflatten(jax.tree.structure(params), decayed)


def freeze_labels(patterns: tuple[str, ...], params: Any) -> Any:
    """Returns a tree of "frozen" or "trained".

    Raises:
        ConfigError: a pattern that matches no parameter, or all parameters frozen.
    """
    names = leaf_names(params)
    for pattern in patterns:
        if not any(re.fullmatch(pattern, name) for name in names):
            close = nearest(pattern, names)
            raise ConfigError(
                f"'optimizer.freeze' has {pattern!r}, which matches no parameter",
                "regular expressions over whole names",
                f"did you mean {close!r}?",
            )
    frozen = [any(re.fullmatch(p, name) for p in patterns) for name in names]
    if all(frozen):
        raise ConfigError(
            "'optimizer.freeze' matches every parameter", "something left to train", "narrow it"
        )
    labels = ["frozen" if f else "trained" for f in frozen]
    return jax.tree.unflatten(jax.tree.structure(params), labels)


def _scale_layers(scales: Any) -> optax.GradientTransformation:
    """Multiplies each update by its factor in a tree that may hold more, e.g. frozen parameters."""
    by_name = named_leaves(scales)

    def update(updates: Any, params: Any = None) -> Any:
        del params
        leaves, treedef = jax.tree.flatten(updates)
        named = zip(leaf_names(updates), leaves, strict=True)
        return jax.tree.unflatten(treedef, [u * by_name[n].astype(u.dtype) for n, u in named])

    return optax.stateless(update)


def layer_scales(params: Any, decay: float) -> Any:
    """Returns the learning-rate factor of each parameter, decay ** (layers below the head).

    The head's layer has the factor 1, see `vit_jax.models.registry.layers_of`. Parameters of a
    stack get a vector over their leading axis.

    Source: arXiv:2106.08254, appendix; as in MAE (arXiv:2111.06377), Table 9.
    """
    layers = layers_of(params)
    last = max(int(number.max()) for number in layers.values())
    return map_named(
        lambda name, leaf: np.asarray(decay ** (last - layers[name]), np.float32), params
    )
