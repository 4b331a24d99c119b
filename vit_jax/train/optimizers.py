"""Builds the optimizer of a run, by the name of a function of optax or of `train.own_optimizers`.

The chain is clip -> optimizer at learning rate 1 -> weight decay -> per-layer scale -> schedule.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from vit_jax.config.optimizer import OptimizerConfig
from vit_jax.errors import ConfigError, nearest
from vit_jax.models.heads import is_head
from vit_jax.models.registry import layer_indices
from vit_jax.named_tree import leaf_names, map_named, named_leaves
from vit_jax.parallel.sharding import match_first
from vit_jax.schema import describe
from vit_jax.train.own_optimizers import adafactor, clip_tensors, lamb, muon

# Elementwise optimizers of optax and optax.contrib: a stack of layers is updated like its layers.
_ELEMENTWISE = (
    "acprop", "adabelief", "adadelta", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan",
    "ademamix", "adopt", "amsgrad", "lion", "nadam", "nadamw", "optimistic_adam",
    "optimistic_adam_v2", "optimistic_gradient_descent", "radam", "rmsprop", "sgd", "sign_sgd",
    "signum", "simplified_ademamix", "yogi",
)  # fmt: skip
# The update depends on a whole tensor (its norm, rows and columns, singular values), so that each
# layer of a stack must be updated separately.
_PER_TENSOR = ("adafactor", "lamb", "lars", "muon")
_SCHEDULE_FREE = ("schedule_free_adamw", "schedule_free_sgd")
_OWN = {"adafactor": adafactor, "lamb": lamb, "muon": muon}
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    name: _OWN.get(name) or getattr(optax, name, None) or getattr(optax.contrib, name)
    for name in (*_ELEMENTWISE, *_PER_TENSOR, *_SCHEDULE_FREE)
}
"""Name -> function of optax, or ours where optax differs from the authors' code."""
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

# Matches the stack in the name of a parameter that has a leading axis over layers.
_STACK = re.compile(r"(.*?/)?blocks(?=/)")
# Matches the first layer of a model, which is no hidden matrix for Muon.
_INPUT = re.compile(r"(^|/)(patch_embedding|conv_root)/")


def build_optimizer(
    config: OptimizerConfig,
    schedule: optax.Schedule,
    params: Any,
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
        weight_decay: step -> weight decay; None: that of the config.
        freeze_steps: number of steps for which `config.freeze` holds; None: all.
    """
    _check_weight_decay(config, params)
    # adamw is adam with weight decay, which the chain adds for every optimizer.
    name = "adam" if config.name == "adamw" else config.name
    options = _checked_options(config, _arguments(name))

    def chain(delay: int = 0) -> optax.GradientTransformation:
        rate, decay = _delayed(schedule, delay), _delayed(weight_decay, delay)
        if config.averages_parameters:
            return _schedule_free(config, options, rate, decay, params)
        return _chain(config, name, options, rate, decay, params)

    if not config.freeze:
        return chain()
    labels = freeze_labels(config.freeze, params)
    frozen = optax.set_to_zero()
    if freeze_steps is not None:
        frozen = _starting_at(freeze_steps, chain(freeze_steps))
    return optax.partition({"trained": chain(), "frozen": frozen}, labels)


def _delayed(schedule: Any, delay: int) -> Any:
    """Returns step -> schedule(step + delay); None for None."""
    return schedule if schedule is None or not delay else lambda step: schedule(step + delay)


class _StartingState(NamedTuple):
    step: jax.Array
    inner: Any


def _starting_at(
    first: int, optimizer: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Returns an optimizer whose updates are zero, and whose state stays new, before a step."""

    def init(params: Any) -> _StartingState:
        return _StartingState(jnp.zeros((), jnp.int32), optimizer.init(params))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        new, inner = optimizer.update(updates, state.inner, params)
        started = state.step >= first
        new = jax.tree.map(lambda u: jnp.where(started, u, jnp.zeros_like(u)), new)
        inner = jax.tree.map(lambda a, b: jnp.where(started, a, b), inner, state.inner)
        return new, _StartingState(state.step + 1, inner)

    return optax.GradientTransformation(init, update)


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
    if name not in OPTIMIZERS:
        known = sorted(OPTIMIZERS)
        raise ConfigError(
            f"is {name!r}",
            f"one of {', '.join(known)}",
            f"did you mean {nearest(name, known)!r}?",
            key="optimizer.name",
        )
    return inspect.signature(OPTIMIZERS[name]).parameters


def _chain(
    config: OptimizerConfig,
    name: str,
    options: Mapping[str, Any],
    schedule: optax.Schedule,
    weight_decay: optax.Schedule | None,
    params: Any,
) -> optax.GradientTransformation:
    """Returns clip -> optimizer -> weight decay -> per-layer scale -> schedule."""
    base, decays_inside = _base_optimizer(config, name, options)
    if name in _PER_TENSOR:
        base = _by_layer(base, params)
    parts = [base]
    if config.clip_global_norm is not None and config.clip_each_parameter:
        parts.insert(0, _by_layer(clip_tensors(config.clip_global_norm), params))
    elif config.clip_global_norm is not None:
        parts.insert(0, optax.clip_by_global_norm(config.clip_global_norm))
    if weight_decay is not None and decays_inside:
        raise ConfigError(
            f"is {config.end_weight_decay} with {config.name}, which applies a constant weight"
            " decay itself",
            "an optimizer without weight decay of its own, such as adamw",
            "leave it out, or choose another optimizer",
            key="optimizer.end_weight_decay",
        )
    if (config.weight_decay or weight_decay is not None) and not decays_inside:
        amount: Any = weight_decay
        decay: Any = -config.weight_decay if amount is None else lambda step: -amount(step)
        parts.append(optax.add_decayed_weights(decay, _mask_fn(config)))
    if config.layer_decay < 1:
        parts.append(_scale_layers(layer_scales(params, config.layer_decay)))
    return optax.chain(*parts, optax.scale_by_schedule(schedule))


def _base_optimizer(
    config: OptimizerConfig, name: str, options: Mapping[str, Any]
) -> tuple[optax.GradientTransformation, bool]:
    """Returns the optimizer, and whether it applies the weight decay itself."""
    options = dict(options)
    decays_inside = {"weight_decay", "mask"} <= _arguments(name).keys()
    if decays_inside:
        options.update(weight_decay=config.weight_decay, mask=_mask_fn(config))
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
    return base, decays_inside


def _schedule_free(
    config: OptimizerConfig,
    options: Mapping[str, Any],
    schedule: optax.Schedule,
    weight_decay: optax.Schedule | None,
    params: Any,
) -> optax.GradientTransformation:
    """Returns a schedule-free optimizer around the whole chain of its base optimizer.

    optax's `schedule_free_adamw` and `schedule_free_sgd` build the base optimizer themselves, so
    masked weight decay and layer-wise rates could not be added to it.
    """
    wrapper = inspect.signature(optax.contrib.schedule_free).parameters
    outer = {key: value for key, value in options.items() if key in wrapper}
    rate = _delayed(schedule, 1)  # The wrapper counts steps from 1, as the authors' code.
    defaults = {key: argument.default for key, argument in _arguments(config.name).items()}
    settings = defaults | dict(options)
    if config.name == "schedule_free_adamw":
        # Adam without its first moment, as in optax.
        inner = {"decay": settings["b2"], "eps": settings["eps"]}
        inner |= {"eps_in_sqrt": False, "bias_correction": True}
        chain = _chain(config, "rmsprop", inner, rate, weight_decay, params)
    else:
        chain = _chain(config, "sgd", {}, rate, weight_decay, params)
    return optax.contrib.schedule_free(chain, schedule, **outer)


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


def _by_layer(base: optax.GradientTransformation, params: Any) -> optax.GradientTransformation:
    """Applies an optimizer to each layer of each stack separately, and to all other parameters."""

    def init(params: Any) -> Any:
        return jax.vmap(base.init)(params) if jax.tree.leaves(params) else base.init(params)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        if not jax.tree.leaves(updates):
            return base.update(updates, state, params)
        return jax.vmap(base.update)(updates, state, params)

    def labels(params: Any) -> Any:
        return map_named(lambda name, _: _stack_of(name) or "plain", params)

    # One transformation for each stack, because their depths differ.
    by_layer = optax.GradientTransformation(init, update)
    stacks = {label for label in jax.tree.leaves(labels(params)) if label != "plain"}
    return optax.partition({"plain": base, **dict.fromkeys(sorted(stacks), by_layer)}, labels)


def _stack_of(name: str) -> str | None:
    """Returns a label for the stack that contains a parameter, e.g. "encoder_blocks", if any."""
    match = _STACK.match(name)
    return None if match is None else match[0].replace("/", "_")


def weight_decay_mask(config: OptimizerConfig, params: Any) -> Any:
    """Returns a tree of bools: whether weight decay applies to each parameter."""
    key = "optimizer.weight_decay_mask"
    return map_named(lambda name, _: match_first(name, config.weight_decay_mask, key), params)


def _check_weight_decay(config: OptimizerConfig, params: Any) -> None:
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


def _mask_fn(config: OptimizerConfig) -> Callable[[Any], Any]:
    # A function, because inside `partition` the tree has no frozen parameters.
    return lambda params: weight_decay_mask(config, params)


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

    def label(name: str, _: Any) -> str:
        return "frozen" if any(re.fullmatch(p, name) for p in patterns) else "trained"

    labels = map_named(label, params)
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
        frozen = any(re.fullmatch(pattern, name) for pattern in config.freeze)
        return jax.lax.stop_gradient(leaf) if frozen else leaf

    return map_named(stop, params)


def _scale_layers(scales: Any) -> optax.GradientTransformation:
    """Multiplies each update by its scale; `scales` may include frozen parameters."""
    by_name = named_leaves(scales)

    def update(updates: Any, params: Any = None) -> Any:
        del params
        return map_named(lambda name, u: u * by_name[name].astype(u.dtype), updates)

    return optax.stateless(update)


def layer_scales(params: Any, decay: float) -> Any:
    """Returns the learning-rate factor of each parameter, decay ** (layers below the head).

    The layer of the head has the factor 1. Layers are numbered by `models.registry.layer_indices`.
    Parameters of a stack get a vector over their leading axis.

    Source: arXiv:2106.08254, appendix; as in MAE (arXiv:2111.06377), Table 9.
    """
    layers = layer_indices(params)
    last = max(int(number.max()) for number in layers.values())
    return map_named(
        lambda name, leaf: np.asarray(decay ** (last - layers[name]), np.float32), params
    )
