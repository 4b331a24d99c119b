"""Builds the optimizer of a run: any optimizer of `optax` or `optax.contrib`, by name.

The chain is clip -> optimizer at learning rate 1 -> weight decay -> per-layer scale -> schedule.
"""

import dataclasses
import functools
import inspect
import re
import types
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


@dataclasses.dataclass(frozen=True)
class _Traits:
    """Properties of an optimizer that need special handling.

    Attributes:
        refused: reason why it is not supported; None: it is supported.
        per_tensor: whether the update depends on a whole tensor (its norm, rows and columns,
            singular values), so that each layer of a stack must be updated separately.
        loop_layers: whether to update the layers of a stack in a loop, because `vmap` would run
            both branches of a conditional.
        rate_inside: whether the update is not proportional to the learning rate, so that the
            optimizer itself needs the schedule.
        layer_rates: whether scaling a layer's update is the same as scaling its learning rate.
        decoupled_decay: whether weight decay can be added to the update.
        own_decay_is_l2: whether its own weight decay is an L2 penalty, which is then not used.
        matrix_axes: name and type of the option that gives the axes of each matrix.
    """

    refused: str | None = None
    per_tensor: bool = False
    loop_layers: bool = False
    rate_inside: bool = False
    layer_rates: bool = True
    decoupled_decay: bool = True
    own_decay_is_l2: bool = False
    matrix_axes: tuple[str, Any] | None = None


# Optimizers without a row have the default traits.
_TRAITS = {
    "adafactor": _Traits(per_tensor=True),
    "cocob": _Traits(refused="it ignores the learning rate"),
    "dadapt_adamw": _Traits(rate_inside=True),
    "dog": _Traits(own_decay_is_l2=True),
    "dowg": _Traits(own_decay_is_l2=True),
    "dpsgd": _Traits(refused="it needs the gradient of each example"),
    "fromage": _Traits(per_tensor=True, rate_inside=True, layer_rates=False),
    "galore": _Traits(
        per_tensor=True,
        loop_layers=True,
        matrix_axes=("weight_dimension_numbers", optax.contrib.GaLoreDimensionNumbers),
    ),
    "lamb": _Traits(per_tensor=True),
    "lars": _Traits(per_tensor=True),
    "lbfgs": _Traits(refused="it needs the loss function, for its line search"),
    # Recomputes the parameters from their initial values.
    "madgrad": _Traits(rate_inside=True, layer_rates=False, decoupled_decay=False),
    "mechanize": _Traits(refused="it wraps another optimizer"),
    "momo": _Traits(refused="it needs the loss value"),
    "momo_adam": _Traits(refused="it needs the loss value"),
    "muon": _Traits(
        per_tensor=True,
        matrix_axes=("muon_weight_dimension_numbers", optax.contrib.MuonDimensionNumbers),
    ),
    "noisy_sgd": _Traits(refused="it needs a random key"),
    "novograd": _Traits(per_tensor=True),
    "polyak_sgd": _Traits(refused="it needs the loss value"),
    "prodigy": _Traits(rate_inside=True),
    "rprop": _Traits(refused="its step sizes do not follow a learning-rate schedule"),
    "sam": _Traits(refused="it needs two gradients a step"),
    "schedule_free": _Traits(
        refused="it wraps another optimizer (use schedule_free_adamw or schedule_free_sgd)"
    ),
    "sm3": _Traits(per_tensor=True),
    "sophia": _Traits(refused="it needs the loss function, to estimate the Hessian"),
}
# Arguments of optax's functions that `optimizer.options` must not set -> the key that sets them.
_NOT_OPTIONS = {
    "base_optimizer": None,
    "learning_rate": "learning_rate",
    "mask": "weight_decay_mask",
    "muon_weight_dimension_numbers": None,
    "warmup_steps": "schedule.warmup_steps",
    "weight_decay": "weight_decay",
    "weight_decay_mask": "weight_decay_mask",
    "weight_dimension_numbers": None,
}
# nadam and nadamw are partial functions.
_FUNCTIONS = (types.FunctionType, functools.partial)
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

    Raises:
        ConfigError: an unknown optimizer or option, incompatible options, a parameter that no
            weight-decay pattern matches, or a freeze pattern that matches no parameter.
    """
    weight_decay_mask(config, params)  # Raises early if a pattern is missing.
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

    Args:
        opt_state: state of a schedule-free optimizer from `build_optimizer`.
        params: all parameters. Frozen ones are returned unchanged.

    Source: arXiv:2405.15682, the sequence x of equation 5.
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


def find_optimizers() -> dict[str, Callable[..., Any]]:
    """Returns name -> function of all optimizers of optax, including those not supported."""
    found = {}
    for module in (optax, optax.contrib):
        for name, function in vars(module).items():
            if name.startswith(("_", "scale_by_")) or not isinstance(function, _FUNCTIONS):
                continue
            if name in _TRAITS or "learning_rate" in inspect.signature(function).parameters:
                found[name] = function
    return found


def reason_refused(name: str) -> str | None:
    """Returns why an optimizer of optax is not supported; None: it is supported."""
    return _TRAITS.get(name, _Traits()).refused


def _arguments(name: str) -> Mapping[str, inspect.Parameter]:
    """Returns the arguments of a usable optimizer's function."""
    functions = find_optimizers()
    if name not in functions:
        usable = [known for known in functions if reason_refused(known) is None]
        raise ConfigError(
            f"is {name!r}",
            "adamw, adam, sgd, adafactor or another optimizer of optax or optax.contrib",
            f"did you mean {nearest(name, usable)!r}?",
            key="optimizer.name",
        )
    if reason := reason_refused(name):
        raise ConfigError(
            f"is {name!r}, which is not supported: {reason}",
            "an optimizer that needs only gradients and a learning rate",
            "choose another, e.g. adamw",
            key="optimizer.name",
        )
    return inspect.signature(functions[name]).parameters


def _chain(
    config: OptimizerConfig,
    name: str,
    options: Mapping[str, Any],
    schedule: optax.Schedule,
    weight_decay: optax.Schedule | None,
    params: Any,
) -> optax.GradientTransformation:
    """Returns clip -> optimizer -> weight decay -> per-layer scale -> schedule."""
    traits = _TRAITS.get(name, _Traits())
    _check_combination(config, traits)
    rate: Any = 1.0
    if traits.rate_inside:
        # Not 0, as at the start of a warmup: prodigy would then divide 0 by 0.
        rate = lambda step: jnp.maximum(schedule(step), 1e-6 * config.learning_rate)  # noqa: E731
    base, decays_inside = _base_optimizer(config, name, options, rate)
    if traits.per_tensor:
        base = _by_layer(base, params, loop=traits.loop_layers)
    parts = [base]
    if config.clip_global_norm is not None:
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
        amount: Any = weight_decay or (lambda step: config.weight_decay)
        decay: Any = -config.weight_decay
        if traits.rate_inside:
            decay = lambda step: -amount(step) * schedule(step)  # noqa: E731
        elif weight_decay is not None:
            decay = lambda step: -amount(step)  # noqa: E731
        parts.append(optax.add_decayed_weights(decay, _mask_fn(config)))
    if config.layer_decay < 1:
        parts.append(_scale_layers(layer_scales(params, config.layer_decay)))
    if not traits.rate_inside:
        parts.append(optax.scale_by_schedule(schedule))
    return optax.chain(*parts)


def _base_optimizer(
    config: OptimizerConfig, name: str, options: Mapping[str, Any], rate: Any
) -> tuple[optax.GradientTransformation, bool]:
    """Returns the optimizer, and whether it applies the weight decay itself."""
    traits, arguments = _TRAITS.get(name, _Traits()), _arguments(name)
    options = dict(options)
    decays_inside = {"weight_decay", "mask"} <= arguments.keys() and not traits.own_decay_is_l2
    if decays_inside:
        options.update(weight_decay=config.weight_decay, mask=_mask_fn(config))
    if traits.matrix_axes is not None:
        key, kind = traits.matrix_axes
        options[key] = _matrix_axes_fn(kind)
    try:
        if "adam_learning_rate" in options:  # The schedule multiplies it by config.learning_rate.
            options["adam_learning_rate"] /= config.learning_rate
        base = find_optimizers()[name](learning_rate=rate, **options)
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
    defaults = {key: argument.default for key, argument in _arguments(config.name).items()}
    settings = defaults | dict(options)
    if config.name == "schedule_free_adamw":
        # Adam without its first moment, as in optax.
        inner = {"decay": settings["b2"], "eps": settings["eps"]}
        inner |= {"eps_in_sqrt": False, "bias_correction": True}
        chain = _chain(config, "rmsprop", inner, schedule, weight_decay, params)
    else:
        chain = _chain(config, "sgd", {}, schedule, weight_decay, params)
    return optax.contrib.schedule_free(chain, schedule, **outer)


def _check_combination(config: OptimizerConfig, traits: _Traits) -> None:
    """Raises ConfigError if an optimizer does not support layer-wise rates or weight decay."""
    if config.layer_decay < 1 and not traits.layer_rates:
        raise ConfigError(
            f"is {config.layer_decay} with {config.name}",
            "an optimizer whose update is proportional to the learning rate",
            "set it to 1, or choose another optimizer",
            key="optimizer.layer_decay",
        )
    if (config.weight_decay or config.end_weight_decay) and not traits.decoupled_decay:
        raise ConfigError(
            f"is {config.weight_decay} with {config.name}, which computes parameters from their"
            " initial values and would undo the decay",
            "no weight decay",
            "set it to 0, or choose another optimizer",
            key="optimizer.weight_decay",
        )


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
        if kind in (bool, int, float) and not fits:
            raise ConfigError(
                f"is {value!r}",
                describe(kind),
                "correct it",
                key=f"optimizer.options.{key}",
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


def _matrix_axes_fn(kind: Any) -> Callable[[Any], Any]:
    """Returns a function (parameters of one layer) -> tree of the axes of each matrix.

    Args:
        kind: optax's type of dimension numbers.
    """
    # Muon treats the other axes as a batch of matrices. GaLore must be given all axes.
    batched = kind is optax.contrib.MuonDimensionNumbers

    def axes(name: str, leaf: Any) -> Any:
        if not name.endswith("kernel") or is_head(name) or (batched and _INPUT.search(name)):
            return None  # Adam updates them, as position tables, biases and scales.
        every = tuple(range(-leaf.ndim, 0))
        if re.search(r"/(qkv|query|key|value)/kernel$", name) and leaf.ndim > 2:
            # [D, 3, H, head_dim] or [D, H, head_dim]: queries, keys and values are separate.
            return kind(every[:1], every[-2:] if batched else every[1:])
        # [in, out], [H, head_dim, D], or [height, width, in, out] of patches and convolutions.
        return kind(every[:-1], every[-1:])

    return lambda params: map_named(axes, params)


def _by_layer(
    base: optax.GradientTransformation, params: Any, *, loop: bool
) -> optax.GradientTransformation:
    """Applies an optimizer to each layer of each stack separately, and to all other parameters."""

    def init(params: Any) -> Any:
        return jax.vmap(base.init)(params) if jax.tree.leaves(params) else base.init(params)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        if not jax.tree.leaves(updates):
            return base.update(updates, state, params)
        if loop:
            return jax.lax.map(lambda layer: base.update(*layer), (updates, state, params))
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
    """Returns a tree of bools: whether weight decay applies to each parameter.

    Raises:
        ConfigError: a parameter that no pattern matches.
    """
    key = "optimizer.weight_decay_mask"
    return map_named(lambda name, _: match_first(name, config.weight_decay_mask, key), params)


def _mask_fn(config: OptimizerConfig) -> Callable[[Any], Any]:
    # A function, because inside `partition` the tree has no frozen parameters.
    return lambda params: weight_decay_mask(config, params)


def freeze_labels(patterns: tuple[str, ...], params: Any) -> Any:
    """Returns a tree of "frozen" or "trained".

    Raises:
        ConfigError: a pattern matches no parameter, or the patterns match all parameters.
    """
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
    """Returns parameters of which those that stay frozen have no gradient.

    Parameters that are frozen only at the start of a run keep theirs.
    """
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
