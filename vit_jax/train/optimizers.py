"""Builds the optimizer of a run, by the name of a function of optax or of `train.own_optimizers`.

The chain is clip -> optimizer at learning rate 1 -> weight decay -> per-layer scale -> schedule.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from vit_jax.config.optimizer import SCHEDULE_FREE, OptimizerConfig
from vit_jax.errors import ConfigError, PluginError, nearest
from vit_jax.models.heads import is_head
from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import layer_indices
from vit_jax.own_functions import OwnFunction, owner_of
from vit_jax.registry import Registry
from vit_jax.schema import describe
from vit_jax.train.own_optimizers import adafactor, clip_tensors, lamb, muon
from vit_jax.train.parameter_groups import (
    by_layer,
    check_weight_decay,
    freeze_labels,
    layer_scales,
    scale_each,
    weight_decay_mask,
)

F = TypeVar("F", bound=Callable[..., Any])

# Elementwise optimizers of optax and optax.contrib: a stack of layers is updated like its layers.
_ELEMENTWISE = (
    "acprop", "adabelief", "adadelta", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan",
    "ademamix", "adopt", "amsgrad", "lion", "nadam", "nadamw", "optimistic_adam_v2",
    "optimistic_gradient_descent", "radam", "rmsprop", "sgd", "sign_sgd", "signum",
    "simplified_ademamix", "yogi",
)  # fmt: skip
# The update depends on a whole tensor (its norm, rows and columns, singular values), so that each
# layer of a stack must be updated separately.
_PER_TENSOR = ("adafactor", "lamb", "lars", "muon")
_OWN = {"adafactor": adafactor, "lamb": lamb, "muon": muon}
# Name -> function of optax, or ours where optax differs from the authors' code.
OPTIMIZERS: Registry[Callable[..., Any]] = Registry(kind="optimizer")
for _name in (*_ELEMENTWISE, *_PER_TENSOR, SCHEDULE_FREE):
    _function = _OWN.get(_name) or getattr(optax, _name, None) or getattr(optax.contrib, _name)
    OPTIMIZERS.add(_name, _function, __name__)
# Arguments of optax's functions that `optimizer.options` must not set -> the key that sets them.
_NOT_OPTIONS = {
    "base_optimizer": None,
    "is_matrix": None,
    "learning_rate": "learning_rate",
    "mask": "weight_decay_mask",
    "warmup_steps": "schedule.warmup_steps",
    "weight_decay": "weight_decay",
    "weight_decay_mask": "weight_decay_mask",
}
_STATE_DTYPE_KEYS = ("mu_dtype", "accumulator_dtype", "dtype_momentum")
# Matches the first layer of a model, which is no hidden matrix for Muon.
_INPUT = re.compile(r"(^|/)(patch_embedding|conv_root)/")


def register_optimizer(function: F) -> F:
    """Registers an optimizer; use it as a decorator.

    The function's name is a value of `optimizer.name`. Its other arguments are keys of
    `optimizer.options`. It runs at learning rate 1: clipping, weight decay, layer-wise rates and
    the schedule are added around it, as for every optimizer. Each layer of a stack of layers is
    updated by itself.

    Args:
        function: (learning_rate, ...) -> optax.GradientTransformation, like the functions of optax.

    Returns:
        The function, unchanged.

    Raises:
        PluginError: no argument learning_rate, or a name that another module has registered.

    >>> @register_optimizer  # doctest: +SKIP
    ... def plain(learning_rate, momentum: float = 0.0):
    ...     return optax.sgd(learning_rate, momentum)
    """
    if "learning_rate" not in inspect.signature(function).parameters:
        raise PluginError(
            f"optimizer '{function.__name__}' of {owner_of(function)} has no learning_rate",
            "(learning_rate, ...) -> optax.GradientTransformation",
            "add this argument; it is 1, because the schedule multiplies the update",
        )
    OPTIMIZERS.add(function.__name__, function, owner_of(function))
    return function


def build_optimizer(
    config: OptimizerConfig,
    schedule: optax.Schedule,
    params: Any,
    model: ModelConfig,
    *,
    weight_decay: optax.Schedule | None = None,
    freeze_steps: int | None = None,
) -> optax.GradientTransformation:
    """Returns the complete optimizer.

    The optimizer runs at learning rate 1 and the schedule scales everything after it, so that
    weight decay, layer-wise rates and freezing mean the same with every optimizer.

    Args:
        config: the optimizer section.
        schedule: step -> learning rate.
        params: parameters or their shapes, for masks by name.
        model: the model section, for rates by layer.
        weight_decay: step -> weight decay; None: that of the config.
        freeze_steps: number of steps for which `config.freeze` holds; None: all.
    """
    check_weight_decay(config, params)
    # adamw is adam with weight decay, which the chain adds for every optimizer.
    name = "adam" if config.name == "adamw" else config.name
    options = _checked_options(config, _arguments(name))

    def chain(delay: int = 0) -> optax.GradientTransformation:
        rate, decay = _delayed(schedule, delay), _delayed(weight_decay, delay)
        if not config.averages_parameters:
            return _chain(config, name, options, rate, decay, params, model)
        # optax's function builds the chain itself, so that masked weight decay and layer-wise rates
        # could not be added to it. The wrapper counts steps from 1, as the authors' code.
        adam, others = _without_first_moment(options)
        inner = _chain(config, "rmsprop", adam, _delayed(rate, 1), decay, params, model)
        return optax.contrib.schedule_free(inner, rate, **others)

    if not config.freeze:
        return chain()
    labels = freeze_labels(config.freeze, params)
    frozen = optax.set_to_zero()
    if freeze_steps is not None:
        # Its updates are zero, and its state stays new, before that step.
        frozen = optax.conditionally_mask(
            chain(freeze_steps), lambda step, **_: jnp.greater_equal(step, freeze_steps)
        )
    return optax.partition({"trained": chain(), "frozen": frozen}, labels)


def _delayed(schedule: Any, delay: int) -> Any:
    """Returns step -> schedule(step + delay); None for None."""
    return schedule if schedule is None or not delay else lambda step: schedule(step + delay)


def schedule_free_params(opt_state: Any, params: Any) -> Any:
    """Returns the averaged parameters of a schedule-free optimizer, for evaluation.

    Frozen parameters are returned unchanged. Source: arXiv:2405.15682, the sequence x of equation
    5.
    """

    def is_state(node: Any) -> bool:
        return isinstance(node, optax.contrib.ScheduleFreeState)

    def is_masked(node: Any) -> bool:
        return isinstance(node, optax.MaskedNode)

    (state,) = filter(is_state, jax.tree.leaves(opt_state, is_leaf=is_state))
    trained = jax.tree.map(
        lambda z, y: z if is_masked(z) else y, state.z, params, is_leaf=is_masked
    )
    averaged = optax.contrib.schedule_free_eval_params(state, trained)
    return jax.tree.map(lambda x, y: y if is_masked(x) else x, averaged, params, is_leaf=is_masked)


def _arguments(name: str) -> Mapping[str, inspect.Parameter]:
    """Returns the arguments of an optimizer's function."""
    if not OPTIMIZERS.knows(name):
        raise OPTIMIZERS.unknown(name, "optimizer.name")
    return inspect.signature(OPTIMIZERS[name]).parameters


def _chain(
    config: OptimizerConfig,
    name: str,
    options: Mapping[str, Any],
    schedule: optax.Schedule,
    weight_decay: optax.Schedule | None,
    params: Any,
    model: ModelConfig,
) -> optax.GradientTransformation:
    """Returns clip -> optimizer -> weight decay -> per-layer scale -> schedule."""
    base = _base_optimizer(config, name, options)
    # Of an optimizer from outside it is not known.
    parts = [base if name in _ELEMENTWISE else by_layer(base, params)]
    if config.clip_global_norm is not None and config.clip_each_parameter:
        parts.insert(0, by_layer(clip_tensors(config.clip_global_norm), params))
    elif config.clip_global_norm is not None:
        parts.insert(0, optax.clip_by_global_norm(config.clip_global_norm))
    if name == "lamb" and weight_decay is not None:
        raise ConfigError(
            f"is {config.end_weight_decay} with lamb, which applies a constant weight decay itself",
            "an optimizer without weight decay of its own, such as adamw",
            "leave it out, or choose another optimizer",
            key="optimizer.end_weight_decay",
        )
    if weight_decay is not None:
        parts.append(
            optax.add_decayed_weights(
                lambda step: jnp.negative(weight_decay(step)), _mask_fn(config)
            )
        )
    elif config.weight_decay and name != "lamb":
        parts.append(optax.add_decayed_weights(-config.weight_decay, _mask_fn(config)))
    if config.layer_decay < 1:
        layers = layer_indices(params, model)
        parts.append(scale_each(layer_scales(layers, config.layer_decay)))
    return optax.chain(*parts, optax.scale_by_schedule(schedule))


def _base_optimizer(
    config: OptimizerConfig, name: str, options: Mapping[str, Any]
) -> optax.GradientTransformation:
    """Returns the optimizer at learning rate 1, without weight decay; LAMB with it."""
    options = dict(options)
    if name == "lamb":  # The decay is part of the update whose norm counts.
        options.update(weight_decay=config.weight_decay, mask=_mask_fn(config))
    elif "weight_decay" in _arguments(name):
        options["weight_decay"] = 0.0
    if OPTIMIZERS.owner(name) != __name__:
        return _own_optimizer(name, options)
    if name == "muon":
        options["is_matrix"] = _is_hidden_matrix
    try:
        if "adam_learning_rate" in options:  # The schedule multiplies it by config.learning_rate.
            options["adam_learning_rate"] /= config.learning_rate
        base = OPTIMIZERS[name](learning_rate=1.0, **options)
        jax.eval_shape(base.init, {"kernel": jnp.zeros((2, 2))})
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"optimizer {config.name} with options {config.options}: {error}",
            "options that optax accepts",
            f"see optax's documentation of {name}",
        ) from None
    return base


def _own_optimizer(name: str, options: Mapping[str, Any]) -> optax.GradientTransformation:
    """Returns an optimizer from outside at learning rate 1, after checking its updates."""
    own = OwnFunction("optimizer", name, OPTIMIZERS[name])
    base = own(learning_rate=1.0, **options)
    if not isinstance(base, optax.GradientTransformation):
        raise own.error(f"returned {base!r}", "an optax.GradientTransformation", "return one")
    params = {"kernel": jnp.zeros((2, 3))}

    def update(params: Any) -> Any:
        return base.update(params, base.init(params), params)[0]

    updates = dataclasses.replace(own, function=update)
    found = jax.eval_shape(updates, params)
    if found != jax.eval_shape(lambda: params):
        raise own.error(
            f"updates {{'kernel': float32[2, 3]}} by {found}",
            "updates with the names, shapes and types of the parameters",
            "return such updates",
        )
    return base


def _without_first_moment(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns RMSProp's options for Adam without its first moment, as in optax, and the others."""
    adam = {"decay": options.get("b2", 0.999), "eps": options.get("eps", 1e-8)}
    adam |= {"eps_in_sqrt": False, "bias_correction": True}
    return adam, {key: value for key, value in options.items() if key not in ("b2", "eps")}


def _checked_options(
    config: OptimizerConfig, arguments: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """Returns the optimizer's keyword arguments, after checking their names and types."""
    options = dict(config.options)
    known = [name for name in arguments if name not in _NOT_OPTIONS]
    for key, value in options.items():
        if key not in known:
            elsewhere = _NOT_OPTIONS.get(key)
            raise ConfigError(
                f"unknown option '{key}' of optimizer {config.name}",
                f"one of {', '.join(known)}",
                f"did you mean 'optimizer.options.{nearest(key, known)}'?"
                if elsewhere is None
                else f"set optimizer.{elsewhere}",
            )
        kind = type(arguments[key].default)
        fits = isinstance(value, kind) or (kind is float and type(value) is int)
        fits = fits or (value is None and "None" in str(arguments[key].annotation))
        if kind in (bool, int, float) and not fits:
            raise ConfigError(
                f"is {value!r}", describe(kind), "correct it", key=f"optimizer.options.{key}"
            )
    if config.name == "sgd":
        options.setdefault("momentum", 0.9)
    if config.state_dtype != "float32":
        key = next((k for k in _STATE_DTYPE_KEYS if k in arguments), None)
        if key is None:
            raise ConfigError(
                f"is {config.state_dtype} with {config.name}",
                "an optimizer whose momentum type can be set (adamw, sgd, adafactor, ...)",
                "set it to float32",
                key="optimizer.state_dtype",
            )
        options.setdefault(key, jnp.dtype(config.state_dtype))
    return options


def _is_hidden_matrix(name: str) -> bool:
    """Returns whether Muon updates a parameter: kernels but those of both ends of the model."""
    return name.endswith("kernel") and not is_head(name) and not _INPUT.search(name)


def _mask_fn(config: OptimizerConfig) -> Callable[[Any], Any]:
    # A function, because inside `partition` the tree has no frozen parameters.
    return lambda params: weight_decay_mask(config, params)
